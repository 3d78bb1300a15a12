"""A client that costs little: keep-alive connections on the event loop, replies parsed in C."""

import asyncio
import contextlib
import itertools
import json
import random
import socket
import struct
from collections.abc import AsyncIterator, Iterator
from time import monotonic
from typing import Final, Self, cast
from urllib.parse import urlsplit

import httptools

from bench.engine import TOKEN
from tests.support.config_file import MODEL, key_of

_RESET: Final = struct.pack("ii", 1, 0)
# Nothing that is measured here takes so long unless it is broken.
_PATIENCE_S: Final = 120.0
_SEED: Final = 7


class FailedError(Exception):
    """A request was not answered as meant: figures of such requests would be none."""


def request_bytes(url: str, tokens: int, mark: str = "") -> bytes:
    """Return a streaming chat request for so many tokens; `mark` tells it apart at the engine."""
    fields = {"model": MODEL, "stream": True, "max_tokens": tokens, "user": mark}
    body = json.dumps({**fields, "messages": [{"role": "user", "content": "hello"}]}).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: {urlsplit(url).netloc}\r\n"
        f"authorization: Bearer {key_of('acme')}\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


class Line(asyncio.Protocol):
    """One connection, which carries one request at a time.

    tokens         how many have come, of all requests
    sent_s         monotonic time of the last request, and of its first token: `first_token_s`
    gone           is done when the connection is lost
    request_id     what the reply's header said
    """

    def __init__(self) -> None:
        """Be idle; made by `open`."""
        loop = asyncio.get_running_loop()
        self.tokens = 0
        self.sent_s = self.first_token_s = 0.0
        self.lease = ""
        self.gone: asyncio.Future[float] = loop.create_future()
        self._parser = httptools.HttpResponseParser(self)
        self._begun: asyncio.Future[None] | None = None
        self._done: asyncio.Future[None] | None = None

    @classmethod
    async def open(cls, url: str) -> Self:
        """Connect; raises OSError."""
        at = urlsplit(url)
        _, line = await asyncio.get_running_loop().create_connection(cls, at.hostname or "", at.port or 80)
        return line

    async def ask(self, request: bytes) -> None:
        """Send a request and return when its reply has been read whole. Raises FailedError."""
        self.send(request)
        assert self._done is not None  # noqa: S101  (as sent)
        async with asyncio.timeout(_PATIENCE_S):
            await self._done

    async def begin(self, request: bytes) -> None:
        """Send a request and return at its first token; the reply is read on. Raises FailedError."""
        self.send(request)
        assert self._begun is not None  # noqa: S101  (as sent)
        async with asyncio.timeout(_PATIENCE_S):
            await self._begun

    def send(self, request: bytes) -> None:
        """Send a request and wait for nothing."""
        loop = asyncio.get_running_loop()
        self._begun, self._done = loop.create_future(), loop.create_future()
        self.sent_s, self.first_token_s = monotonic(), 0.0
        self._transport.write(request)

    def reset(self) -> None:
        """Leave with RST, which is on its way when `gone` is done; nothing when the connection is lost."""
        if self._transport.is_closing():
            return
        sock = cast("socket.socket", self._transport.get_extra_info("socket"))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def connection_lost(self, error: Exception | None) -> None:
        self._fail(FailedError(f"the connection was lost before the reply was whole: {error}"))
        if not self.gone.done():
            self.gone.set_result(monotonic())

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"tenure-lease":
            self.lease = value.decode()

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status != 200:
            self._fail(FailedError(f"the status is {status}"))

    def on_body(self, body: bytes) -> None:
        if TOKEN in body:
            self.tokens += body.count(TOKEN)
            if not self.first_token_s:
                self.first_token_s = monotonic()
                if self._begun is not None and not self._begun.done():
                    self._begun.set_result(None)

    def on_message_complete(self) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_result(None)

    def _fail(self, error: FailedError) -> None:
        for waiting in (self._begun, self._done):
            if waiting is not None and not waiting.done():
                waiting.set_exception(error)
                waiting.exception()  # whoever does not wait has left the request to itself


@contextlib.asynccontextmanager
async def lines(url: str, count: int) -> AsyncIterator[list[Line]]:
    """Open so many connections; they are reset at the end."""
    opened: list[Line] = []
    try:
        while len(opened) < count:
            opened.append(await Line.open(url))
        yield opened
    finally:
        for line in opened:
            line.reset()
        await asyncio.gather(*(line.gone for line in opened))


async def each_in_turn(opened: list[Line], request: bytes, count: int, tokens: int) -> None:
    """Make `count` requests, each line one after the other, and see that each brings its tokens."""
    numbers = iter(range(count))
    before = sum(line.tokens for line in opened)
    await asyncio.gather(*(_turns(line, request, numbers) for line in opened))
    came = sum(line.tokens for line in opened) - before
    if came != count * tokens:
        raise FailedError(f"{came} tokens came of {count * tokens}")


async def _turns(line: Line, request: bytes, numbers: Iterator[int]) -> None:
    for _ in numbers:
        await line.ask(request)


async def at_a_rate(opened: list[Line], request: bytes, rate_per_s: float, seconds: float) -> list[float]:
    """Make requests at random moments, so many a second; return the seconds to the first token of each.

    The moments are the same in each call with the same rate. Whoever finds no idle line waits for one, and
    that counts.
    """
    moments = random.Random(_SEED)
    idle: asyncio.LifoQueue[Line] = asyncio.LifoQueue()
    for line in opened:
        idle.put_nowait(line)
    found_s: list[float] = []

    async def once() -> None:
        due_s = monotonic()
        line = await idle.get()
        await line.ask(request)
        found_s.append(line.first_token_s - due_s)
        idle.put_nowait(line)

    async with asyncio.TaskGroup() as group:
        began_s = monotonic()
        at_s = 0.0
        for _ in itertools.repeat(None):
            at_s += moments.expovariate(rate_per_s)
            if at_s > seconds:
                break
            await asyncio.sleep(max(0.0, began_s + at_s - monotonic()))
            group.create_task(once())
    return found_s
