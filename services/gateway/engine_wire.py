"""HTTP/1.1 to an engine: one connection, one request on it at a time, the reply as it arrives.

httptools splits the bytes. Decided here is what it leaves open: where a reply ends, whether its connection
may serve another one, how much is held for a slow reader, and that every other end is an error.
"""

import asyncio
import select
from collections.abc import Callable, Coroutine
from functools import partial
from itertools import repeat
from typing import Any, Final, Literal, Self, cast

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

# A reader that is behind holds less than this and one read; only then is the engine left waiting.
HELD_BYTES: Final = 32 * 1024
READ_BYTES: Final = 32 * 1024
# A head, or whatever else brings no byte of a body, may be this long, give or take one read.
HEAD_BYTES_MAX: Final = 64 * 1024
HEADERS_MAX: Final = 128
# A request goes out in pieces of this size, so that a large body is not copied into a transport's buffer.
PIECE_BYTES: Final = 64 * 1024
_INTERIM, _SWITCHING, _FINAL = 100, 101, 200

# Takes the place of a parser that is done: its callbacks would keep the reply alive, and it them.
_SPENT: Final = HttpResponseParser(None)


class EngineFailed(Exception):
    """The engine could not be reached, or broke off. `may_retry`: no work can have begun there."""

    def __init__(
        self,
        reason: Literal["engine_unreachable", "engine_error"],
        why: str,
        *,
        may_retry: bool = False,
        reply_begun: bool = False,
    ) -> None:
        """`why` is for the log; the caller is told the reason only. `reply_begun`: a byte of one has come."""
        super().__init__(why)
        self.reason: Literal["engine_unreachable", "engine_error"] = reason
        self.may_retry = may_retry
        self.reply_begun = reply_begun


class Reply:
    """One reply, filled by its connection and read by one task, which owns it.

    `status`, `raw_headers` (names in lower case, order and repeats kept), `content_type` and `encoding` are
    there once the head is. Of interim replies (1xx) nothing is seen, except of 101: nobody asked for it.
    """

    __slots__ = (
        "_begun", "_broken", "_connection", "_has_body", "_held", "_news", "_parser", "_pass_on",
        "_pieces", "_silent_bytes", "_whole", "content_type", "encoding", "is_whole", "on_body",
        "raw_headers", "reusable", "status",
    )  # fmt: skip

    def __init__(self, connection: "Connection", *, has_body: bool) -> None:
        """`has_body` is False for the reply to a HEAD, whose headers speak of a body that never comes."""
        self._connection: Connection | None = connection
        self._has_body = has_body
        self._pieces: list[bytes] = []
        # What the parser calls for each piece: no function of ours for each token.
        self.on_body = self._pieces.append
        self._parser = HttpResponseParser(self)
        # As engines are, and as other clients take them: a stray control character costs nobody a reply.
        self._parser.set_dangerous_leniencies(
            lenient_headers=True, lenient_optional_cr_before_lf=True, lenient_spaces_after_chunk_size=True
        )
        self._held = self._silent_bytes = self._whole = 0
        self._news: asyncio.Future[None] | None = None
        self._pass_on: Callable[[bytes], bool] | None = None
        self._broken: EngineFailed | None = None
        self._begun = self.is_whole = self.reusable = False
        self.status = 0
        self.raw_headers: list[tuple[bytes, bytes]] = []
        self.content_type = self.encoding = b""

    # The reader's side.

    async def head(self) -> Self:
        """Return itself when the head is there; raises EngineFailed. Cancelling cuts the connection."""
        try:
            while not self.status:
                if self._broken is not None:
                    raise self._broken
                await self._next()
        except asyncio.CancelledError:
            self.close()
            raise
        return self

    async def read(
        self, pass_on: Callable[[bytes], bool] | None = None, before_wait: Callable[[], None] | None = None
    ) -> bytes:
        """Return what has arrived, b"" at the clean end; raise EngineFailed at any other, after all bytes.

        Waits only when nothing is there, and calls `before_wait` first; meanwhile `pass_on` is offered what
        arrives before the end, in the event loop's own call, and the first piece that it does not take is
        returned: to wake a task for each token costs more than to pass it on. Neither may raise. Cancelling
        cuts the connection.
        """
        try:
            while not self._pieces:
                if self.is_whole:
                    return b""
                if self._broken is not None:
                    raise self._broken
                if before_wait is not None:
                    before_wait()
                self._pass_on = pass_on
                await self._next()
        except asyncio.CancelledError:
            self.close()
            raise
        if self._held >= HELD_BYTES and self._connection is not None:
            self._connection.resume_reading()
        return self._take()

    @property
    def is_read(self) -> bool:
        """Whether the clean end has come and every byte before it was read."""
        return self.is_whole and not self._pieces

    def close(self) -> None:
        """Let go. After a clean end the connection is in other hands already; otherwise it is cut now."""
        connection = self._connection
        if connection is not None:
            self.let_go()
            connection.abort()

    def _next(self) -> "asyncio.Future[None]":
        """Return what is done when something arrives."""
        self._news = news = asyncio.get_running_loop().create_future()
        return news

    # The connection's side.

    def feed(self, data: memoryview) -> None:
        """Take in bytes of the engine's, and wake the reader."""
        pieces = self._pieces
        before = len(pieces)
        try:
            self._parser.feed_data(data)
        except (HttpParserError, HttpParserUpgrade) as error:
            self.fail(f"sent a bad reply: {error}")
        pass_on = self._pass_on
        if pieces and pass_on is not None and not self.is_whole and pass_on(b"".join(pieces)):
            # The way of each token. Nothing was held: all of it had just come.
            pieces.clear()
            self._silent_bytes = 0
            return
        if self.is_whole and len(pieces) > self._whole:
            # Of another reply, or of the body that a reply to a HEAD does not have.
            del pieces[self._whole :]
            self.reusable = False
        if len(pieces) > before:
            self._silent_bytes = 0
            self._held += sum(map(len, pieces[before:]))
        else:
            self._silent_bytes += len(data)
        if self._silent_bytes > HEAD_BYTES_MAX:
            self.fail(f"sent {self._silent_bytes} bytes without a byte of a body")
        elif self._held >= HELD_BYTES and self._connection is not None:
            self._connection.pause_reading()
        self._wake()

    def end_of_input(self) -> None:
        """Note that the engine has closed its side: the end of a body whose length nothing else tells."""
        if self.status and _ends_by_closing(self.raw_headers):
            self.is_whole = True
            self._wake()
        else:
            self.fail("closed its connection before the end of its reply")

    def fail(self, why: str) -> None:
        """Cut the connection; a reply that is not whole stays so. `why` goes on "the engine ..."."""
        if not self.is_whole and self._broken is None:
            self._broken = EngineFailed("engine_error", f"the engine {why}", reply_begun=self._begun)
        self.close()
        self._wake()

    def let_go(self) -> None:
        """Forget the connection: what is still to be read is here."""
        self._connection = self._pass_on = None
        self._parser = _SPENT

    def _take(self) -> bytes:
        """Return all that is held, and hold it no more."""
        pieces = self._pieces
        data = b"".join(pieces)
        pieces.clear()
        self._held = 0
        return data

    def _wake(self) -> None:
        self._pass_on = None
        news, self._news = self._news, None
        if news is not None and not news.done():
            news.set_result(None)

    # What the parser calls.

    def on_message_begin(self) -> None:
        """Note the first byte of a reply; behind a whole one it is one too many."""
        self._begun = True
        self.reusable = False

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header; what comes behind the head is a trailer."""
        if self.status:
            return
        name, value = name.lower(), value.rstrip(b" \t")
        self.raw_headers.append((name, value))
        if name == b"content-type":
            self.content_type = self.content_type or value.lower()
        elif name == b"content-encoding":
            self.encoding = self.encoding or value.lower().strip()

    def on_headers_complete(self) -> None:
        """Let the reader have the head, unless a better one is to come."""
        status = self._parser.get_status_code()
        if self.status:
            return
        if _INTERIM <= status < _FINAL and status != _SWITCHING:
            self.raw_headers.clear()
            self.content_type = self.encoding = b""
            return
        if status < _INTERIM or len(self.raw_headers) > HEADERS_MAX:
            self.fail(f"sent status {status} and {len(self.raw_headers)} headers")
            return
        self._silent_bytes = 0
        self.status = status
        if not self._has_body:
            self._end()

    def on_message_complete(self) -> None:
        """Note the clean end; an interim reply ends too."""
        if self.status and not self.is_whole:
            self._end()

    def _end(self) -> None:
        self.is_whole = True
        self._whole = len(self._pieces)
        self.reusable = self._parser.should_keep_alive()


class Connection(asyncio.BufferedProtocol):
    """One connection to an engine. It serves one request after the other, and is closed by any bad end."""

    __slots__ = (
        "_buffer", "_is_full", "_on_free", "_on_lost", "_poll", "_reply", "_transport", "_unsent",
        "get_buffer", "idle_since_s",
    )  # fmt: skip

    def __init__(
        self,
        buffer: memoryview,
        *,
        on_free: Callable[["Connection"], None],
        on_lost: Callable[["Connection"], None],
    ) -> None:
        """`buffer`, of READ_BYTES, may be shared: nothing stays in it. `on_free`: fit for another request."""
        self._buffer = buffer
        # Where the next bytes go, asked by the event loop for each token: so no function of ours.
        self.get_buffer = partial(next, repeat(buffer))  # type: ignore[method-assign]
        self._on_free = on_free
        self._on_lost = on_lost
        self._poll = select.poll()
        self._reply: Reply | None = None
        self._unsent = memoryview(b"")
        self._is_full = False
        self._transport: asyncio.Transport
        self.idle_since_s = 0.0

    def exchange(self, head: bytes, body: bytes, *, has_body: bool = True) -> Coroutine[Any, Any, Reply]:
        """Send one request on the idle connection; what is returned waits for the head of its reply.

        `head` ends with the empty line; `has_body` says whether the reply may have a body. The request is
        sent on while the reply is read. Raises EngineFailed; cancelling cuts the connection.
        """
        reply = self._reply = Reply(self, has_body=has_body)
        if self._transport.is_closing():
            reply.fail("closed its connection before the request")
        elif len(body) <= PIECE_BYTES:
            self._transport.write(head + body)
        else:
            self._transport.write(head)
            self._unsent = memoryview(body)
            self._write_on()
        return reply.head()

    @property
    def is_fit(self) -> bool:
        """Whether an idle connection is still open. The kernel is asked: its end may still be unread."""
        return not self._transport.is_closing() and not self._poll.poll(0)

    def abort(self) -> None:
        """Cut the connection now, whatever is still to be written or read. Safe to repeat."""
        self._reply = None
        self._unsent = memoryview(b"")
        self._transport.abort()

    def pause_reading(self) -> None:
        """Leave the engine waiting."""
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Read on."""
        self._transport.resume_reading()

    def _write_on(self) -> None:
        """Write as much of the request as the transport takes."""
        while self._unsent and not self._is_full:
            piece, self._unsent = self._unsent[:PIECE_BYTES], self._unsent[PIECE_BYTES:]
            self._transport.write(piece)

    def _end_exchange(self, reply: Reply) -> None:
        """Part from a whole reply. An engine that answered early may not have read all of the request."""
        reply.let_go()
        self._reply = None
        if reply.reusable and not self._unsent and not self._transport.get_write_buffer_size():
            self._transport.resume_reading()
            self._on_free(self)
        else:
            self.abort()

    # What the event loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport."""
        self._transport = cast("asyncio.Transport", transport)
        self._poll.register(transport.get_extra_info("socket").fileno(), select.POLLIN)

    def buffer_updated(self, nbytes: int) -> None:
        """Pass bytes on to the reply; without one nobody asked for them."""
        reply = self._reply
        if reply is None:
            self.abort()
            return
        reply.feed(self._buffer[:nbytes])
        if reply.is_whole and self._reply is reply:
            self._end_exchange(reply)

    def eof_received(self) -> None:
        """Take the engine's end for an end of both sides."""
        if self._reply is not None:
            self._reply.end_of_input()
        self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail what was still to come."""
        reply, self._reply = self._reply, None
        if reply is not None:
            reply.fail(f"broke the connection: {type(exc).__name__}" if exc else "broke the connection")
        self._on_lost(self)

    def pause_writing(self) -> None:
        """Wait: the transport holds enough."""
        self._is_full = True

    def resume_writing(self) -> None:
        """Write on."""
        self._is_full = False
        self._write_on()


def _ends_by_closing(headers: list[tuple[bytes, bytes]]) -> bool:
    """Whether nothing in a reply's head tells where its body ends (RFC 9112, 6.3)."""
    codings = [value.lower() for name, value in headers if name == b"transfer-encoding"]
    if codings:
        return not codings[-1].endswith(b"chunked")
    return all(name != b"content-length" for name, _ in headers)
