"""A TCP proxy in front of Redis that misbehaves when told: the network between a gateway and its Redis.

It runs in a thread of its own. Faults act on the bytes of real clients and a real server; nothing is
imitated.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import hiredis

from tests.support import sockets
from tests.support.loop_thread import Instrument, LoopThread

if TYPE_CHECKING:
    from collections.abc import Callable

READ_BYTES = 65536

# pass: forward. blackhole: connections open, bytes vanish. stall: bytes are kept back and delivered once
# healthy again, as TCP does after a short partition. refuse: connecting is refused, what was open is reset.
Mode = Literal["pass", "blackhole", "stall", "refuse"]
_NOT_YET = object()
# cut: the reply is thrown away and the connection reset. hang: the reply and all later ones never come.
# error: the request never reaches Redis, `reply` is answered in its place.
Harm = Literal["cut", "hang", "error"]


@dataclass
class Fault:
    """One order to harm the next `left` requests that match; `hits` counts those harmed so far."""

    match: Callable[[bytes], bool]
    left: int
    harm: Harm
    reply: bytes = b""
    hits: int = 0


class RedisShim(Instrument):
    """The proxy; every method may be called from any thread, at run time."""

    def __init__(self, target_port: int, *, target_host: str = sockets.LOOPBACK) -> None:
        """Forward to a Redis on TCP; the own port is taken at `start`."""
        self.port = 0
        self.accepted = 0
        self.target = (target_host, target_port)
        self.mode: Mode = "pass"
        self.delay_s = 0.0
        self.healthy_again = asyncio.Event()
        self._links: set[_Link] = set()
        self._faults: list[Fault] = []
        self._thread = LoopThread("redis-shim")
        self._server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        """Return the URL for a client."""
        return f"redis://{sockets.LOOPBACK}:{self.port}/0"

    @property
    def open(self) -> int:
        """Return how many client connections are open now."""
        return len(self._links)

    def healthy(self) -> None:
        """Forward and listen again, drop all orders; connections that lost bytes are reset, as they must."""
        self._thread.call(self._set("pass"))

    def delay(self, delay_ms: float) -> None:
        """Forward each request `delay_ms` later."""
        self.delay_s = delay_ms / 1000

    def blackhole(self) -> None:
        """Accept connections and swallow every byte, in both directions."""
        self._thread.call(self._set("blackhole"))

    def stall(self) -> None:
        """Hold every byte back, in both directions, until `healthy` delivers it, however late."""
        self._thread.call(self._set("stall"))

    def refuse(self) -> None:
        """Stop listening and reset what is open, as a Redis that is down."""
        self._thread.call(self._set("refuse"))

    def reset(self) -> None:
        """Reset what is open now; new connections pass."""
        self._thread.call(self._reset_all())

    def drop_replies(
        self, match: Callable[[bytes], bool], count: int = 1, *, harm: Literal["cut", "hang"] = "cut"
    ) -> Fault:
        """Let Redis carry out the next `count` requests that match, but never let their replies through."""
        return self._order(Fault(match, count, harm))

    def fail(
        self,
        match: Callable[[bytes], bool],
        count: int = 1,
        *,
        reply: bytes = b"-ERR injected by the test\r\n",
    ) -> Fault:
        """Answer the next `count` requests that match with an error; Redis never sees them."""
        return self._order(Fault(match, count, "error", reply))

    # Life.

    def start(self) -> None:
        """Listen and forward."""
        self._thread.start()
        self._thread.call(self._listen())

    def stop(self) -> None:
        """Reset everything, close the port, end the thread."""
        self._thread.call(self._set("refuse"))
        self._thread.stop()

    # Inside the thread.

    def take(self, asked: bytes) -> Fault | None:
        """Return the first order that the request `asked` falls under, and count it."""
        for fault in self._faults:
            if fault.left > 0 and fault.match(asked):
                fault.left -= 1
                fault.hits += 1
                return fault
        return None

    def _order(self, fault: Fault) -> Fault:
        self._thread.do(lambda: self._faults.append(fault))
        return fault

    async def _set(self, mode: Mode) -> None:
        before, self.mode = self.mode, mode
        if mode == "pass":
            self.delay_s = 0.0
            self._faults.clear()
            self.healthy_again.set()
            for link in [link for link in self._links if link.lost_bytes]:
                link.reset()
            await self._listen()
        else:
            self.healthy_again.clear()
        if mode == "refuse" and before != "refuse":
            if self._server is not None:
                self._server.close()
                self._server = None
            await self._reset_all()

    async def _listen(self) -> None:
        if self._server is None:
            sock = sockets.listen(self.port)
            self.port = int(sock.getsockname()[1])
            self._server = await asyncio.start_server(self._accept, sock=sock)

    async def _reset_all(self) -> None:
        links = list(self._links)
        for link in links:
            link.reset()
        await asyncio.gather(*(link.ended.wait() for link in links))

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        link = _Link(self, reader, writer)
        self._links.add(link)
        try:
            await link.run()
        finally:
            self._links.discard(link)
            link.ended.set()


def _whole_commands(data: bytes) -> tuple[list[bytes], bytes]:
    """Split what a client wrote into commands (arrays of bulk strings), and what has come of the next one."""
    commands, start = [], 0
    while (end := _end_of_command(data, start)) is not None:
        commands.append(data[start:end])
        start = end
    return commands, data[start:]


def _end_of_command(data: bytes, start: int) -> int | None:
    line_end = data.find(b"\r\n", start)
    if line_end < 0:
        return None
    at = line_end + 2
    for _ in range(int(data[start + 1 : line_end])):
        line_end = data.find(b"\r\n", at)
        if line_end < 0:
            return None
        at = line_end + 2 + int(data[at + 1 : line_end]) + 2
    return at if at <= len(data) else None


class _Link:
    """One client connection and its twin to Redis."""

    def __init__(self, shim: RedisShim, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.ended = asyncio.Event()
        self.lost_bytes = False
        self._shim = shim
        self._reader, self._writer = reader, writer
        self._part = b""
        self._unanswered = 0
        self._all_answered = asyncio.Event()
        self._all_answered.set()
        self._harm: Harm | None = None

    def reset(self) -> None:
        """Cut the client's side with RST; the rest follows."""
        sockets.abort(self._writer.transport)

    async def run(self) -> None:
        """Forward until either side ends; then end both."""
        upstream: asyncio.StreamWriter | None = None
        try:
            from_redis, upstream = await asyncio.open_connection(*self._shim.target)
            pumps = [
                asyncio.ensure_future(self._requests(upstream)),
                asyncio.ensure_future(self._replies(from_redis)),
            ]
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
        except OSError:
            self.reset()
        finally:
            for writer in (self._writer, upstream):
                if writer is not None:
                    writer.close()
                    with contextlib.suppress(OSError):
                        await writer.wait_closed()

    async def _requests(self, upstream: asyncio.StreamWriter) -> None:
        while data := await self._reader.read(READ_BYTES):
            if not await self._passes():
                continue
            if self._shim.delay_s:
                await asyncio.sleep(self._shim.delay_s)
            commands, self._part = _whole_commands(self._part + data)
            for command in commands:
                await self._request(command, upstream)

    async def _request(self, command: bytes, upstream: asyncio.StreamWriter) -> None:
        fault = self._shim.take(command)
        if fault is not None and fault.harm == "error":
            # In its turn: a client counts on replies in the order of its commands.
            await self._all_answered.wait()
            self._writer.write(fault.reply)
            return
        if fault is not None:
            self._harm = fault.harm
        self._unanswered += 1
        self._all_answered.clear()
        upstream.write(command)
        await upstream.drain()

    async def _replies(self, from_redis: asyncio.StreamReader) -> None:
        replies = hiredis.Reader(notEnoughData=_NOT_YET)
        while data := await from_redis.read(READ_BYTES):
            if self._harm == "cut":
                self.reset()
                return
            if self._harm == "hang" or not await self._passes():
                continue
            self._writer.write(data)
            replies.feed(data)
            self._unanswered -= sum(1 for _ in iter(replies.gets, _NOT_YET))
            if self._unanswered <= 0:
                self._all_answered.set()
            await self._writer.drain()

    async def _passes(self) -> bool:
        """Say whether bytes may go on now; waits out a stall."""
        if self._shim.mode == "stall":
            await self._shim.healthy_again.wait()
        if self._shim.mode == "blackhole":
            self.lost_bytes = True
        return self._shim.mode == "pass"
