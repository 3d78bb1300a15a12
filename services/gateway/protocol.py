"""Uvicorn's HTTP/1.1 protocol, with its holes closed.

Through these a client could leave unseen (pipelining), stay for ever without sending a request, or send one
that others than the parser would read in another way.
"""

import asyncio
from typing import Final

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from services.gateway.headers import Fields
from services.gateway.refusals import NotServed, refusal_of
from services.gateway.wire import Exit, Wire
from services.permits.clock import monotonic

# A connection that has no request for this long, or only part of a head, is closed.
HEAD_WAIT_S: Final = 30.0
# A head longer than this is no request that an engine would take; memory is not kept for it.
HEAD_BYTES_MAX: Final = 64 * 1024
# Closing a connection on which unread bytes lie makes the kernel reset it, and the client lose the answer
# that was on its way. So whoever has not sent all of a request is listened to for a while, within bounds.
LINGER_S: Final = 5.0
LINGER_BYTES_MAX: Final = 64 * 1024 * 1024
# Requests sent ahead of their turn; beyond that the connection is not read, and the client not watched.
_PIPELINED_MAX: Final = 4
# Takes the place of the parser of a connection that is lost.
_SPENT: Final = httptools.HttpRequestParser(None)


class Protocol(HttpToolsProtocol):
    """One client connection."""

    idle_since_s = 0.0
    _in_head = False
    _head_bytes = 0
    _is_chunked = False
    # The parser takes what follows a wish for another protocol for that protocol, also the request's own
    # body. So that is read by a fresh one, which is given the framing once more.
    _unread_body = b""
    _repeats_head = False
    _lingers = False
    _lingered_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's
        """Start the wait for the first head."""
        super().connection_made(transport)
        self._wires: list[Wire] = []
        self.exit = Exit(transport, self.flow, self._leave)
        self.idle_since_s = monotonic()

    def data_received(self, data: bytes) -> None:
        """Parse on, unless the head of a request grows without end or nothing is wanted any more."""
        if self._lingers:
            self._lingered_bytes += len(data)
            if self._lingered_bytes > LINGER_BYTES_MAX:
                self.transport.abort()
            return
        if self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_BYTES_MAX:
                self.send_400_response("")
                return
        self._parse(data)

    def on_message_begin(self) -> None:
        """Start counting a head."""
        if self._repeats_head:
            return
        super().on_message_begin()
        self._in_head = True
        self._is_chunked = False
        self._head_bytes = 0

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header in; an error here ends the connection with a 400.

        A trailer is none: it would pass for a header that nobody in front of us has looked at.
        """
        if not self._in_head:
            return
        name = name.lower()
        if name == b"transfer-encoding":
            # The parser takes off the chunks alone; a body in another coding would reach the engine without
            # the word for it.
            if value.strip().lower() != b"chunked":
                raise ValueError("a coding that is not taken off")
            self._is_chunked = True
        elif name == b"expect" and value.lower() == b"100-continue":
            self.expect_100_continue = True
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        """Give the request its wire; keep watching the client when it sent this one ahead of its turn."""
        if self._repeats_head:
            return
        version = self.parser.get_http_version()
        if version != "1.1" and (version != "1.0" or self._is_chunked):
            raise ValueError("HTTP/1.0 knows no chunks, and other versions are not spoken")
        if self.parser.get_method() == b"CONNECT":
            raise ValueError("there is no tunnel here, and what follows is framed by nobody")
        self._in_head = False
        earlier = self._last_cycle
        super().on_headers_complete()
        self.cycle.transport = self.exit  # type: ignore[assignment]  # all that a cycle asks of one
        wire = self.scope["state"]["wire"] = Wire(self.cycle, self.exit)
        if earlier is None or earlier.response_complete:
            self._wires = [wire]
        else:
            self._wires = [one for one in self._wires if not one.is_over] + [wire]
            if len(self.pipeline) <= _PIPELINED_MAX:
                self.flow.resume_reading()
        if self.parser.should_upgrade():
            self._unread_body = self._framing()

    def on_message_complete(self) -> None:
        """Note that the body is whole, unless the parser has taken it for another protocol."""
        if not self._unread_body:
            super().on_message_complete()

    def on_response_complete(self) -> None:
        """Start the wait for the next head, or for the client's leave.

        Uvicorn would start a timer here, for each request: `close_if_idle` does for all of them.
        """
        self.idle_since_s = monotonic()
        if self.pipeline and not self._lingers:
            super().on_response_complete()
        elif not self._lingers and not self.transport.is_closing():
            self.flow.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell every request of the connection, not only the one that came last."""
        self._let_go()
        super().connection_lost(exc)
        # They know this connection, and it them: a ring that would wait for the garbage collector.
        self.parser = _SPENT
        self.exit.let_go()
        self._wires.clear()

    def send_400_response(self, msg: str) -> None:
        """Answer bytes that are no HTTP; in the midst of a reply there is no answer but the end."""
        del msg
        begun = next((wire for wire in self._wires if wire.has_begun and not wire.is_over), None)
        if begun is not None:
            begun.cut()
            return
        self._let_go()
        refusal = refusal_of(NotServed("bad_request", "this is not a valid HTTP/1.1 request", close=True))
        body = refusal.envelope
        lines = Fields.of(refusal.headers(body)).lines
        self.transport.write(b"HTTP/1.1 400 Bad Request\r\n" + lines + b"\r\n" + body)
        self._linger()

    def close_if_idle(self, now_s: float) -> None:
        """Close the connection when no request has come for HEAD_WAIT_S. Called about once a second."""
        cycle = self._last_cycle
        idle = cycle is None or cycle.response_complete
        if idle and now_s - self.idle_since_s > HEAD_WAIT_S and not self.transport.is_closing():
            self.transport.close()

    def _parse(self, data: bytes) -> None:
        left = memoryview(data)
        while left:
            try:
                self.parser.feed_data(left)
            except httptools.HttpParserUpgrade as wish:
                left = left[wish.args[0] :]
                self._read_on_as_http()
            except httptools.HttpParserError:
                self.send_400_response("")
                return
            else:
                return

    def _framing(self) -> bytes:
        """Return the header that says where the body of the request ends; b"" when there is none."""
        if self._is_chunked:
            return b"transfer-encoding: chunked"
        length = next((value for name, value in self.headers if name == b"content-length"), b"0")
        return b"content-length: " + length if length.strip(b" \t0") else b""

    def _read_on_as_http(self) -> None:
        """No protocol is switched to: read the body that the parser has left out, and then more requests."""
        framing, self._unread_body = self._unread_body, b""
        if framing:
            self.parser = httptools.HttpRequestParser(self)
            self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
            self._repeats_head = True
            self.parser.feed_data(b"POST / HTTP/1.1\r\n%s\r\n\r\n" % framing)
            self._repeats_head = False

    def _let_go(self) -> None:
        for wire in self._wires:
            if not wire.is_over:
                wire.gone()

    def _leave(self) -> None:
        """Close after the last reply, in such a way that the client can read it."""
        if self.cycle.more_body or self.pipeline:
            self._linger()
        else:
            self.transport.close()

    def _linger(self) -> None:
        """Say that nothing more comes, and take in what the client still sends until it leaves."""
        if self._lingers or self.transport.is_closing():
            return
        self._lingers = True
        self.transport.write_eof()
        self.flow.resume_reading()
        self.loop.call_later(LINGER_S, self.transport.abort)

    @property
    def _last_cycle(self) -> RequestResponseCycle | None:
        # Uvicorn declares it as always there; before the first request it is None.
        return self.cycle
