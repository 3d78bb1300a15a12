"""The clients: several tenants, every kind of request, every way to leave."""

from __future__ import annotations

import asyncio
import json
import random
import re
import secrets
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from tests.soak.world import REPLICAS, World
from tests.support.client import Call, HungUpError, chat_body, fetch, request_bytes
from tests.support.config_file import key_of
from tests.support.history import Asked

if TYPE_CHECKING:
    from tests.soak.book import Book

# Longer than every budget of a request together, and than the longest fault with them.
PATIENCE_S: Final = 45.0
TENANTS: Final = {"acme": 5, "beta": 3, "gamma": 3, "tiny": 1}
REPEATED: Final = [f"a prompt that is asked again and again, number {n}, {'word ' * 40}" for n in range(4)]
DONE: Final = b"[DONE]"
TOKEN: Final = re.compile(rb'"content": " *(\d+)"')


@dataclass(frozen=True)
class Kind:
    """One kind of request: how often it comes, what it asks of the engine, what its client does."""

    name: str
    weight: int
    stream: bool = True
    tokens: tuple[int, int] = (2, 8)
    gap_s: float = 0.02
    delay_s: tuple[float, float] = (0.0, 0.05)
    act: str = "read"
    size: int = 8
    headers: tuple[tuple[str, str], ...] = ()
    repeated: bool = False
    receive_buffer: int | None = None
    wanted: str | None = None


KINDS: Final = (
    Kind("short", 20),
    Kind("long", 8, tokens=(20, 80), gap_s=0.05),
    Kind("slow prefill", 4, delay_s=(0.2, 1.5)),
    Kind("whole", 10, stream=False, delay_s=(0.02, 0.6)),
    Kind("repeated", 12, repeated=True),
    Kind("repeated whole", 4, stream=False, repeated=True),
    Kind("impatient", 4, headers=(("tenure-patience-ms", "0"),)),
    Kind("in a hurry", 3, headers=(("tenure-patience-ms", "150"),)),
    Kind("leaves before the head", 5, delay_s=(0.1, 0.5), act="leave_early"),
    Kind("leaves mid-stream", 6, tokens=(20, 60), act="leave_late"),
    Kind("half closes", 3, tokens=(20, 60), act="half_close"),
    Kind("stalls", 2, tokens=(400, 400), gap_s=0.0, size=4000, act="stall", receive_buffer=4096),
    Kind("stopped by its user", 3, tokens=(60, 120), gap_s=0.05, act="stop"),
    Kind("leaves mid-body", 2, act="half_body"),
    Kind("wrong key", 2, wanted="invalid_api_key"),
    Kind("unknown model", 2, wanted="unknown_model"),
    Kind("no JSON", 2, wanted="bad_request"),
)


@dataclass
class Load:
    """The clients of a soak; `pause` lets every request end, `resume` goes on."""

    world: World
    book: Book
    seed: int
    clients: int
    think_s: float
    _going: asyncio.Event = field(default_factory=asyncio.Event)
    _busy: int = 0
    _number: int = 0

    async def run(self) -> None:
        """Send requests until cancelled."""
        self._going.set()
        async with asyncio.TaskGroup() as group:
            for number in range(self.clients):
                group.create_task(self._client(random.Random(f"{self.seed} client {number}")))

    def resume(self) -> None:
        """Send again."""
        self._going.set()

    def pause(self) -> None:
        """Send nothing new; what is under way ends by itself."""
        self._going.clear()

    @property
    def busy(self) -> int:
        """Return how many requests are under way."""
        return self._busy

    async def _client(self, rng: random.Random) -> None:
        while True:
            await self._going.wait()
            self._busy += 1
            try:
                await self._one(rng)
            finally:
                self._busy -= 1
            await asyncio.sleep(rng.expovariate(1 / self.think_s))

    async def _one(self, rng: random.Random) -> None:
        kind = rng.choices(KINDS, [kind.weight for kind in KINDS])[0]
        tenant = rng.choices([*TENANTS], [*TENANTS.values()])[0]
        self._number += 1
        asked = Asked(
            id=f"{tenant}.{self._number}",
            tenant=tenant,
            kind=kind.name,
            gateway=rng.choice(REPLICAS),
            start_s=time.monotonic(),
            wanted=kind.wanted,
        )
        try:
            async with asyncio.timeout(PATIENCE_S):
                await self._ask(kind, asked, rng)
        except TimeoutError:
            asked.end = "hung"
        except ConnectionRefusedError:
            asked.end = "refused"
        except (OSError, HungUpError):
            asked.end = "unanswered" if not asked.status else "reset"
        asked.end_s = time.monotonic()
        asked.stopped = asked.stopped or bool({asked.lease, asked.request_id} & self.book.stopped)
        self.book.chapter.asked.append(asked)

    async def _ask(self, kind: Kind, asked: Asked, rng: random.Random) -> None:
        url = self.world.url(asked.gateway)
        whole = request_bytes(
            url,
            key="no key at all" if kind.wanted == "invalid_api_key" else key_of(asked.tenant),
            body=_body(kind, rng),
            headers=(("x-request-id", asked.id), *kind.headers),
        )
        with await Call.connect(url, receive_buffer=kind.receive_buffer) as call:
            if kind.act == "half_body":
                await call.send(whole[: -rng.randint(1, 40)])
                asked.end = "left"
                await asyncio.sleep(rng.uniform(0, 0.3))
                return
            await call.send(whole)
            await getattr(self, f"_{kind.act}")(call, asked, rng)

    # What clients do once they have asked.

    async def _read(self, call: Call, asked: Asked, _rng: random.Random) -> None:
        await self._head(call, asked)
        await self._rest(call, asked)

    async def _leave_early(self, call: Call, asked: Asked, rng: random.Random) -> None:
        await asyncio.sleep(rng.uniform(0, 0.2))
        asked.end = "left"
        _go(call, rng)

    async def _leave_late(self, call: Call, asked: Asked, rng: random.Random) -> None:
        await self._head(call, asked)
        read = await _some(call, rng.randint(0, 10))
        if call.status != 200 or call.ended is not None:
            return await self._rest(call, asked, read)
        asked.end = "left"
        _go(call, rng)
        return None

    async def _half_close(self, call: Call, asked: Asked, rng: random.Random) -> None:
        await asyncio.sleep(rng.uniform(0, 0.3))
        call.half_close()
        asked.end = "left"
        # The gateway takes it for gone and closes: what it still sends does not matter.
        while await call._receive():  # noqa: SLF001 - bytes, whatever they are
            call._raw.clear()  # noqa: SLF001

    async def _stall(self, call: Call, asked: Asked, _rng: random.Random) -> None:
        await self._head(call, asked)
        if call.status != 200:
            return await self._rest(call, asked)
        # Reads nothing for longer than the budget; what comes then is what the kernels held.
        await asyncio.sleep(3.0)
        asked.end = "left"
        return None

    async def _stop(self, call: Call, asked: Asked, rng: random.Random) -> None:
        """Ask another replica to end it; whether that one can is not this client's business."""
        await self._head(call, asked)
        read = await _some(call, rng.randint(1, 8))
        if call.status == 200:
            asked.stopped = True
            url = self.world.url(rng.choice(REPLICAS))
            try:
                path = f"/v1/requests/{asked.request_id}"
                answer = await fetch(url, path, method="DELETE", key=key_of(asked.tenant), patience_s=20)
                self.book.deeds[f"user stop {answer.status}"] += 1
            except (OSError, HungUpError, TimeoutError):
                self.book.deeds["user stop unanswered"] += 1
        await self._rest(call, asked, read)

    async def _head(self, call: Call, asked: Asked) -> None:
        asked.status = await call.head(PATIENCE_S)
        asked.code = call.headers.get("tenure-refused")
        asked.request_id = call.headers.get("x-request-id")
        asked.lease = call.headers.get("tenure-lease")

    async def _rest(self, call: Call, asked: Asked, read: bytes = b"") -> None:
        """Read on to the end; `read` is what was read of the body before."""
        body = read + await call.rest(PATIENCE_S)
        tokens = TOKEN.findall(body)
        if [int(token) for token in tokens] != [*range(len(tokens))]:
            self.book.find("tokens", f"{asked}: {tokens}")
        if call.ended != "clean":
            asked.end = "reset" if call.ended == "reset" else "cut"
        elif asked.status == 200 and b"data: " in body:
            self._end_of_stream(body, asked)
        else:
            asked.end = "done"

    def _end_of_stream(self, body: bytes, asked: Asked) -> None:
        last = body.rstrip().rpartition(b"\n")[2].removeprefix(b"data: ")
        if last == DONE:
            asked.end = "done"
            return
        try:
            asked.code = json.loads(last)["error"]["code"]
            asked.end = "event"
        except (ValueError, KeyError, TypeError):
            self.book.find("invented_ending", f"{asked}: {body[-200:]!r}")
            asked.end = "cut"


async def _some(call: Call, events: int) -> bytes:
    """Read so many events of a stream, or to its end."""
    read = b""
    while call.status == 200 and events:
        found = await call.next_event(PATIENCE_S)
        if found is None:
            break
        read += found + b"\n\n"
        events -= 1
    return read


def _body(kind: Kind, rng: random.Random) -> Any:
    if kind.wanted == "bad_request":
        return b'{"model": "demo", "messages": ['
    wish = {"delay_s": rng.uniform(*kind.delay_s)}
    if kind.stream:
        wish |= {"tokens": rng.randint(*kind.tokens), "gap_s": kind.gap_s, "size": kind.size}
    return chat_body(
        "nobody" if kind.wanted == "unknown_model" else "demo",
        prompt=rng.choice(REPEATED) if kind.repeated else f"a new prompt {secrets.token_hex(8)}",
        stream=kind.stream,
        soak=wish,
    )


def _go(call: Call, rng: random.Random) -> None:
    if rng.random() < 0.5:
        call.reset()
    else:
        call.close()
