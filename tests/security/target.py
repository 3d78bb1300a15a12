"""One gateway process under attack, its engine, its Redis: what reached whom, and what is left."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from tests.nodes.places import leases_left
from tests.security.strict_http import Message, requests_in
from tests.support.client import Call, chat_body, fetch, request_bytes
from tests.support.config_file import key_of
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from tests.support.processes import Process
    from tests.support.redis_server import RedisServer
    from tests.support.scripted_engine import ScriptedEngine

KEY: Final = key_of("acme")
CHAT: Final = "/v1/chat/completions"
PATIENCE_S: Final = 15.0

# "closed" by FIN, "reset" by RST, or still "open" after so long without a byte.
Ended = Literal["closed", "reset", "open"]


@dataclass
class Target:
    """A gateway with an engine behind it. `mark` and `arrived` say what reached the engine in between."""

    gateway: Process
    engine: ScriptedEngine
    redis: RedisServer

    @property
    def url(self) -> str:
        """Return the gateway's base URL."""
        return self.gateway.url

    def mark(self) -> None:
        """Forget what the engine got so far."""
        for tape in self.engine.tapes:
            tape.clear()

    def arrived(self) -> list[Message]:
        """Return the requests that the engine got since `mark`; every byte belongs to one of them."""
        return [request for tape in self.engine.tapes for request in requests_in(bytes(tape))]

    async def good_request(self) -> None:
        """Be served as anybody would be."""
        body = chat_body(prompt="an honest request", stream=False)
        answer = await fetch(self.url, CHAT, method="POST", key=KEY, body=body)
        assert answer.status == 200, answer
        assert self.engine.requests[-1].json() == body

    async def is_unharmed(self) -> None:
        """Wait until nothing runs; then nothing may be left, and a good request be served."""
        await wait_until(lambda: self.engine.open == 0, "the engine was let go")
        await wait_until(lambda: not leases_left(self.redis), "all places came back")
        await self.good_request()
        await wait_until(lambda: not leases_left(self.redis), "and the last one")
        assert self.gateway.alive
        assert "internal error" not in self.gateway.log_text()


async def exchange(
    url: str,
    *pieces: bytes,
    patience_s: float = PATIENCE_S,
    quiet_s: float | None = None,
    gap_s: float = 0.0,
) -> tuple[bytes, Ended]:
    """Send `pieces` on one connection and return everything that comes back, and how it ended.

    Between two pieces there are `gap_s`, so that they are read apart. The other side may close before all was
    sent. With `quiet_s` the connection counts as open after so long without a byte; otherwise it must end
    within `patience_s`.
    """
    loop = asyncio.get_running_loop()
    with await Call.connect(url) as call:
        sending = asyncio.create_task(_send(call, pieces, gap_s))
        received = bytearray()
        try:
            async with asyncio.timeout(patience_s):
                while True:
                    async with asyncio.timeout(quiet_s):
                        data = await loop.sock_recv(call.sock, 65536)
                    if not data:
                        return bytes(received), "closed"
                    received += data
        except ConnectionResetError:
            return bytes(received), "reset"
        except TimeoutError:
            assert quiet_s is not None, f"still open after {patience_s} s: {received[:200]!r}"
            return bytes(received), "open"
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)


async def _send(call: Call, pieces: tuple[bytes, ...], gap_s: float) -> None:
    for piece in pieces:
        await asyncio.get_running_loop().sock_sendall(call.sock, piece)
        await asyncio.sleep(gap_s)


def good(path: str = CHAT, *, close: bool = True, prompt: str = "good", **request: Any) -> bytes:
    """Return a request that would be served, by default as the last one of its connection."""
    headers = [*request.pop("headers", ()), *([("connection", "close")] if close else [])]
    body = request.pop("body", chat_body(prompt=prompt, stream=False))
    return request_bytes("http://gateway", path=path, body=body, headers=headers, **{"key": KEY, **request})


def code_of(reply: Message) -> str:
    """Return the code of one of our own refusals, told in its header and in its envelope alike."""
    error = json.loads(reply.body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert reply.values("tenure-refused") == [error["code"]]
    assert reply.values("content-type") == ["application/json"]
    return str(error["code"])


def resident_bytes(process: Process) -> int:
    """Return how much memory the process has in RAM now."""
    with open(f"/proc/{process.pid}/statm") as statm:  # noqa: PTH123 - no file of the disk
        return int(statm.read().split()[1]) * 4096


def cpu_s(process: Process) -> float:
    """Return how much CPU time the process has used."""
    with open(f"/proc/{process.pid}/stat") as stat:  # noqa: PTH123 - no file of the disk
        fields = stat.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100
