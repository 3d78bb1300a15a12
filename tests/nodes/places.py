"""Where the places of a fleet are: in Redis, at the engine, and in the log, each counted for itself."""

from __future__ import annotations

import json
import secrets
import time
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, Final

from services.permits.connect import connect
from services.permits.store import Store
from services.settings.load import load
from services.settings.seed import lease_times
from tests.support.answers import Stream
from tests.support.burst import burst
from tests.support.client import Call, chat_body
from tests.support.config_file import FLEET, key_of
from tests.support.invariants import ends_sound
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
    from contextlib import ExitStack
    from pathlib import Path

    from services.permits.connect import Client
    from services.permits.model import Counts, LeaseRow
    from tests.support.processes import Process
    from tests.support.redis_server import RedisServer
    from tests.support.rig import Rig
    from tests.support.scripted_engine import ScriptedEngine

META: Final = f"tenure:{{{FLEET}}}:meta"
LIMITS: Final = f"tenure:{{{FLEET}}}:limits"
TOTAL: Final = f"tenure:{{{FLEET}}}:pool:total"
GATEWAYS: Final = f"tenure:{{{FLEET}}}:gateways"
EVENTS: Final = f"tenure:{{{FLEET}}}:events"
ENDS: Final = f"tenure:{{{FLEET}}}:ends"

# A stream that stays until the test ends it: its place cannot free itself.
LONG: Final = Stream(hold_after=1)
# One that goes on by itself, and slowly enough for a client that reads little of it.
SLOW: Final = Stream(tokens=None, gap_s=0.1)
CONTROL: Final = b"the control"


def leases_left(server: RedisServer) -> list[str]:
    """Return what of leases is in Redis: members of pools and records."""
    left = [f"record {key}" for key in server.cli("KEYS", "*:lease:*")]
    for key in server.cli("KEYS", "*:pool:*"):
        left += [f"{member} in {key}" for member in server.cli("ZRANGE", key, 0, -1)]
    return left


def reclaimed_events(server: RedisServer) -> list[dict[str, str]]:
    """Return the entries of the fleet's event stream that report a lease taken back."""
    entries: list[dict[str, str]] = [fields for _, fields in server.cli("XRANGE", EVENTS, "-", "+")]
    return [entry for entry in entries if entry["kind"] == "reclaimed"]


class Eye:
    """Counts live leases in Redis by the product's own read-only script."""

    def __init__(self, client: Client, store: Store) -> None:
        self._client = client
        self._store = store

    async def counts(self, *tenants: str, engines: Sequence[str] = ()) -> Counts:
        """Return the counts of this instant."""
        return await self._store.count(FLEET, tenants, engines)

    async def leases(self) -> list[LeaseRow]:
        """Return every live lease."""
        return await self._store.inspect(FLEET)

    async def grants(self) -> int:
        """Return how many permits the fleet has granted in this epoch."""
        return int(await self._client.hget(META, "grant") or 0)

    async def live(self) -> int:
        """Return how many leases are live."""
        return (await self.counts()).total

    async def lapsed(self) -> int:
        """Return how many leases have ended by running out, whether or not anybody has dropped them yet."""
        overdue = int(await self._client.zcard(TOTAL)) - await self.live()
        entries: Any = await self._client.xrange(EVENTS)
        reclaimed: int = sum(fields["kind"] == "reclaimed" for _, fields in entries)
        return overdue + reclaimed

    async def reasserted(self) -> set[str]:
        """Return the leases that Redis had lost, or was robbed of, and was told again."""
        entries: Any = await self._client.xrange(EVENTS)
        return {fields["lease"] for _, fields in entries if fields["kind"] == "reasserted"}

    async def ended(self) -> list[tuple[str, str]]:
        """Return (lease, reason) of every end that was written down."""
        entries: Any = await self._client.xrange(ENDS)
        return [(fields["lease"], fields["reason"]) for _, fields in entries]

    async def all_tick(self, replicas: int) -> None:
        """Return when each of so many replicas has ticked since now, and so knows of the others."""
        # Twice: a tick that was under way may have looked before now.
        for _ in range(2):
            before = await self._sessions()

            async def ticked(before: dict[str, float] = before) -> bool:
                now = await self._sessions()
                return len(now) == replicas and all(now[one] > before.get(one, 0.0) for one in now)

            await wait_until(ticked, f"{replicas} replicas tick", 10)

    async def _sessions(self) -> dict[str, float]:
        scored: Any = await self._client.zrange(GATEWAYS, 0, -1, withscores=True)
        return dict(scored)

    async def see(self, live: int, why: str, timeout_s: float = 5) -> None:
        """Return as soon as exactly `live` leases are live."""

        async def reached() -> bool:
            return await self.live() == live

        await wait_until(reached, f"{why}: {live} live in Redis", timeout_s)


@asynccontextmanager
async def looking_at(config: Path, redis_url: str | None = None) -> AsyncIterator[Eye]:
    """Yield an eye on the Redis of a config file, or on the one given, with a connection of its own."""
    settings = load(config, {})
    client = connect(redis_url or settings.redis.url)
    try:
        yield Eye(client, Store(client, prefix=settings.redis.prefix, times=lease_times(settings)))
    finally:
        await client.aclose()


@contextmanager
def frozen(processes: Iterable[Process]) -> Iterator[None]:
    """Stop the processes while the block runs."""
    held = list(processes)
    try:
        for process in held:
            process.sigstop()
        yield
    finally:
        for process in held:
            process.sigcont()


async def passes(seconds: float) -> None:
    """Return when so much time has gone by: for tests that are about how long something lasts."""
    until_s = time.monotonic() + seconds
    await wait_until(lambda: time.monotonic() >= until_s, "time passes", seconds + 5)


async def started(ends: Ends, url: str, count: int, opened: ExitStack) -> list[Call]:
    """Start streams and read their first tokens; they end with `opened`."""
    calls = [opened.enter_context(await ends.call(url)) for _ in range(count)]
    for call in calls:
        assert await call.first_token() is not None
    return calls


async def third_gets(replicas: Rig, count: int) -> None:
    """Exactly `count` of more streams that the third replica is asked for are admitted."""
    with await burst(count + 4, replicas.urls[2:], key=replicas.key()) as asked:
        assert dict(asked.statuses) == ({200: count, 429: 4} if count else {429: 4})


async def nothing_runs(eye: Eye, engine: ScriptedEngine, *, but: int = 0) -> None:
    """Return as soon as only `but` requests are open at the engine and as many leases are live."""
    await wait_until(lambda: engine.open == but, f"{but} open at the engine")
    await eye.see(but, "all others gave their places back")


async def admits_exactly(
    count: int, replicas: Rig, engine: ScriptedEngine, *, by: slice = slice(None), tenant: str = "acme"
) -> None:
    """Of count + 1 long streams that come at once exactly `count` are admitted: no leak, no double release.

    `by` selects the replicas asked. Sets the engine's answer; what it opened is gone in the end.
    """
    engine.answer, engine.choose = LONG, None
    async with looking_at(replicas.configs[0]) as eye:
        before = await eye.live()
        with await burst(count + 1, replicas.urls[by], key=key_of(tenant)) as together:
            wanted = {200: count, 429: 1} if count else {429: 1}
            assert dict(together.statuses) == wanted, together.codes
            await wait_until(lambda: engine.open == before + count, f"{count} more open at the engine")
            assert await eye.live() == before + count
        await nothing_runs(eye, engine, but=before)


@asynccontextmanager
async def control_arm(rig: Rig, engine: ScriptedEngine, number: int = 0) -> AsyncIterator[Eye]:
    """Hold one stream on replica `number` that nothing may touch, and yield an eye on Redis.

    Takes the engine's `choose`; all other requests get its `answer`. Every place that is taken in the block
    has to come back by being given back: one that was left to run out fails the test.
    """
    engine.choose = lambda seen: SLOW if CONTROL in seen.body else None
    body = chat_body(prompt=CONTROL.decode())
    async with looking_at(rig.configs[0]) as eye:
        await nothing_runs(eye, engine)
        lapsed = await eye.lapsed()
        with await Call.start(rig.urls[number], key=rig.key(), body=body) as control:
            assert await control.first_token() is not None
            lease = control.headers["tenure-lease"]
            yield eye
            assert lease in {row.lease for row in await eye.leases()}
            # Nor was it taken away by somebody else's release and told again by the next tick.
            assert lease not in await eye.reasserted()
            assert await control.next_token() is not None
        await nothing_runs(eye, engine)
        assert await eye.lapsed() == lapsed, "a place came back only because its lease ran out"
    engine.choose = None


def each_ended_once(lines: Iterable[Mapping[str, Any]]) -> None:
    """Assert that each admitted request has one line, one lease, one reason, and was acknowledged as free."""
    admitted = list(lines)
    assert not ends_sound(admitted)
    for line in admitted:
        assert line["lease"] is not None
        assert line["reason"] is not None
        assert line["released_at"] is not None


class Ends:
    """The log lines of ended requests that carried the tag of this, read as the gateways write them."""

    def __init__(self, gateways: Iterable[Process]) -> None:
        self.tag = secrets.token_hex(8)
        self._read = {gateway: len(gateway.log_path.read_bytes()) for gateway in gateways}
        self.lines: list[dict[str, Any]] = []

    def all(self) -> list[dict[str, Any]]:
        """Return all of them so far."""
        for gateway, at in self._read.items():
            with gateway.log_path.open("rb") as log:
                log.seek(at)
                text = log.read()
            whole = text[: text.rfind(b"\n") + 1]
            self._read[gateway] = at + len(whole)
            lines = [json.loads(line) for line in whole.splitlines() if line.startswith(b"{")]
            self.lines += [line for line in lines if line.get("client_request_id") == self.tag]
        return self.lines

    async def call(self, url: str, tenant: str = "acme", *, body: Any = None, **request: Any) -> Call:
        """Send a request with the tag, by default for a stream; `request` is what `Call.start` takes."""
        content = chat_body() if body is None else body
        tag = ("x-request-id", self.tag)
        headers = (*request.pop("headers", ()), tag)
        return await Call.start(url, key=key_of(tenant), body=content, headers=headers, **request)

    async def reach(self, count: int) -> list[dict[str, Any]]:
        """Wait for `count` lines and return them; more than that fails."""
        await wait_until(lambda: len(self.all()) >= count, f"{count} requests in the log")
        assert len(self.lines) == count
        return self.lines


async def all_left(ends: Ends, count: int) -> None:
    """Of the tagged requests `count` were admitted; each of them ended once, as its client left."""

    def admitted() -> list[dict[str, Any]]:
        return [line for line in ends.lines if line["lease"] is not None]

    await wait_until(lambda: ends.all() and len(admitted()) >= count, f"{count} admitted are in the log")
    assert len(admitted()) == count
    each_ended_once(admitted())
    assert {line["reason"] for line in admitted()} <= {"client_disconnect"}
