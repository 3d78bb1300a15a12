"""The server side of one HTTP/1.1 connection on a bare asyncio transport.

Written by hand because a framework hides what the tests must know: whether the other side is still there, at
which instant it left, and how many bytes it had taken by then.
"""

from __future__ import annotations

import asyncio
import socket
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from tests.support import sockets

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

# A send is done in pieces so that the count of accepted bytes is never off by more than this.
PIECE_BYTES = 65536
HEAD_LIMIT_BYTES = 1 << 20
# Kept of what came in on one connection, for tests that judge the very bytes.
TAPE_BYTES = 1 << 20


class PeerGoneError(Exception):
    """The other side closed or reset the connection."""


class MalformedError(Exception):
    """The bytes received are not an HTTP request."""


@dataclass(frozen=True)
class RequestHead:
    """A request line and its headers as received: order, case and repetitions are kept."""

    method: str
    path: str
    version: str
    headers: list[tuple[str, str]]

    def header(self, name: str) -> str | None:
        """Return the first value of a header, by any case, or None."""
        return next((value for key, value in self.headers if key.lower() == name.lower()), None)

    @property
    def keep_alive(self) -> bool:
        """Say whether another request may follow on this connection."""
        wish = (self.header("connection") or "").lower()
        return "close" not in wish and (self.version == "HTTP/1.1" or "keep-alive" in wish)


class Peer(asyncio.Protocol):
    """One accepted connection. Reading never pauses, so the other side's close or reset is seen at once."""

    def __init__(self, serve: Callable[[Peer], Coroutine[object, object, None]], number: int) -> None:
        """Run `serve(self)` as a task as soon as the connection is made; `number` tells connections apart."""
        self.number = number
        self.gone = asyncio.Event()
        self.gone_at: float | None = None
        self.accepted = 0
        self.cut = False
        self.tape = bytearray()
        self.transport: asyncio.Transport
        self.task: asyncio.Task[None]
        self._serve = serve
        self._inbox = bytearray()
        self._news = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport: nothing is left in user space after a send, each write is its own segment."""
        self.transport = cast("asyncio.Transport", transport)
        self.transport.set_write_buffer_limits(high=0)
        sock = cast("socket.socket", transport.get_extra_info("socket"))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.task = asyncio.get_running_loop().create_task(self._serve(self))

    def data_received(self, data: bytes) -> None:
        """Keep what came in."""
        self._inbox += data
        self.tape += data[: TAPE_BYTES - len(self.tape)]
        self._news.set()

    def eof_received(self) -> bool:
        """Stamp the moment: to a gateway as client, the end of writing is the end of interest."""
        self._leave()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """Stamp the moment of a reset; after our own close nobody looks any more."""
        del exc
        self._leave()

    def pause_writing(self) -> None:
        """The kernel's buffer is full."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """Everything written so far is in the kernel."""
        self._writable.set()

    def _leave(self) -> None:
        if self.gone_at is None:
            self.gone_at = time.monotonic()
        self.gone.set()
        self._news.set()
        self._writable.set()

    # What a script uses. Each call raises PeerGoneError once the other side has left.

    async def send(self, data: bytes) -> None:
        """Send `data` and return when the kernel has all of it, so a reader that stops stops this."""
        for start in range(0, len(data), PIECE_BYTES):
            self.check()
            piece = data[start : start + PIECE_BYTES]
            self.transport.write(piece)
            await self._writable.wait()
            self.check()
            self.accepted += len(piece)

    async def pause(self, seconds: float) -> None:
        """Wait, but not a moment longer than the other side stays."""
        try:
            async with asyncio.timeout(seconds):
                await self.gone.wait()
        except TimeoutError:
            return
        raise PeerGoneError

    async def wait_gone(self) -> None:
        """Return when the other side has left."""
        await self.gone.wait()

    def check(self) -> None:
        """Raise PeerGoneError when the other side has left."""
        if self.gone.is_set() or self.transport.is_closing():
            raise PeerGoneError

    def reset(self) -> None:
        """Cut the connection with RST."""
        self.cut = True
        sockets.abort(self.transport)

    def close(self) -> None:
        """Close with FIN. Safe to call at any time."""
        self.cut = True
        self.transport.close()

    # Reading requests.

    async def read_head(self) -> RequestHead | None:
        """Return the next request's head, or None when the other side ended between two requests."""
        try:
            raw = await self._take_until(b"\r\n\r\n")
        except PeerGoneError:
            if self._inbox:
                raise
            return None
        return parse_head(raw)

    async def read_body(self, head: RequestHead) -> bytes:
        """Return the whole body, by Content-Length or by chunks, answering `Expect: 100-continue` first."""
        if (head.header("expect") or "").lower() == "100-continue":
            await self.send(b"HTTP/1.1 100 Continue\r\n\r\n")
        if "chunked" in (head.header("transfer-encoding") or "").lower():
            return await self._read_chunks()
        return await self._take(int(head.header("content-length") or 0))

    async def _read_chunks(self) -> bytes:
        body = bytearray()
        while True:
            size = int((await self._take_until(b"\r\n")).split(b";")[0], 16)
            if size == 0:
                break
            body += await self._take(size)
            await self._take_until(b"\r\n")
        while await self._take_until(b"\r\n") != b"\r\n":
            pass  # trailers
        return bytes(body)

    async def _take_until(self, mark: bytes) -> bytes:
        while (at := self._inbox.find(mark)) < 0:
            if len(self._inbox) > HEAD_LIMIT_BYTES:
                raise MalformedError
            await self._more()
        return await self._take(at + len(mark))

    async def _take(self, count: int) -> bytes:
        while len(self._inbox) < count:
            await self._more()
        taken = bytes(self._inbox[:count])
        del self._inbox[:count]
        return taken

    async def _more(self) -> None:
        if self.gone.is_set():
            raise PeerGoneError
        self._news.clear()
        await self._news.wait()


def parse_head(raw: bytes) -> RequestHead:
    """Split a request's head; raises MalformedError, so that stray body bytes never count as a request."""
    lines = raw.decode("latin-1").split("\r\n")
    match lines[0].split(" "):
        case [method, path, ("HTTP/1.1" | "HTTP/1.0") as version] if method.isalpha():
            pass
        case _:
            raise MalformedError(lines[0][:80])
    headers = []
    for line in lines[1:-2]:
        name, colon, value = line.partition(":")
        if not colon or not name or name != name.strip():
            raise MalformedError(line[:80])
        headers.append((name, value.strip()))
    return RequestHead(method, path, version, headers)
