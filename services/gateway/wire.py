"""One request's connection, as its task sees it: the body, the reply, the client's leave.

Uvicorn reads requests and starts their tasks. What a reply needs is done here: its own way, by messages that
are checked and taken apart again, costs a tenth of a request, and has no word for "cut this connection" or
"frame by closing it".
"""

import asyncio
from collections.abc import Callable
from typing import Final

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

from services.gateway.headers import BODILESS, Fields
from services.permits.resets import reset

# How long a cut connection may take to hand over what was already written.
_FLUSH_S: Final = 5.0


def _nothing() -> None:
    """Do nothing."""


class Exit:
    """A connection's transport as replies use it: closing it lets the client read what was written."""

    __slots__ = ("close", "flow", "is_closing", "transport", "write")

    def __init__(self, transport: asyncio.Transport, flow: FlowControl, leave: Callable[[], None]) -> None:
        """`leave` closes the connection."""
        self.transport = transport
        self.flow = flow
        self.close = leave
        self.write = transport.write
        self.is_closing = transport.is_closing

    def let_go(self) -> None:
        """Forget the connection, which is lost."""
        self.close = _nothing


class Wire:
    """One request's connection. Made by the protocol, found in `scope["state"]["wire"]`.

    A reply is `start`, then `pass_on` for each part of the body, then `finish`. None of them waits: a part
    that the client is not yet ready for is passed on again after `drain`. Once it has left nothing is sent.
    """

    __slots__ = ("_cycle", "_exit", "_has_body", "_head", "_on_gone", "_unframed")

    def __init__(self, cycle: RequestResponseCycle, exit_: Exit) -> None:
        """Belong to one request on one connection."""
        self._cycle = cycle
        self._exit = exit_
        self._unframed = False
        self._has_body = True
        # Until the first part of the body: one write, and one read of the client, do for both.
        self._head = b""
        self._on_gone: Callable[[], None] | None = None

    # The request's side.

    @property
    def has_whole_body(self) -> bool:
        """Whether all of the request has arrived, so that reading it cannot wait."""
        return not self._cycle.more_body

    def take_body(self) -> bytes:
        """Return the body of a request that has arrived whole, and hold it no more."""
        body, self._cycle.body = bytes(self._cycle.body), bytearray()
        return body

    # The client's leave.

    def watch(self, on_gone: Callable[[], None]) -> None:
        """Call `on_gone` once when the client leaves, at once when it has; only after the body was read.

        Cheaper than a task that awaits `receive`, and blind to nothing: the connection is read on.
        """
        self._on_gone = on_gone
        if self._cycle.disconnected:
            self.gone()
        else:
            self._exit.flow.resume_reading()

    def unwatch(self) -> None:
        """Call nobody any more."""
        self._on_gone = None

    def gone(self) -> None:
        """Note that the client has left, or has got its last answer."""
        self._cycle.disconnected = True
        self._cycle.waiting_for_100_continue = False
        self._cycle.message_event.set()
        on_gone, self._on_gone = self._on_gone, None
        if on_gone is not None:
            on_gone()

    # The reply.

    @property
    def has_begun(self) -> bool:
        """Whether part of the reply has been sent."""
        return self._cycle.response_started

    @property
    def is_over(self) -> bool:
        """Whether the reply has been sent whole."""
        return self._cycle.response_complete

    @property
    def is_behind(self) -> bool:
        """Whether the client has to take some of what it was sent before it is sent more."""
        return self._exit.flow.write_paused

    async def drain(self) -> None:
        """Return when the client has taken enough, or has left."""
        if self._exit.flow.write_paused and not self._cycle.disconnected:
            await self._exit.flow.drain()

    def start(self, status: int, fields: Fields, more: bytes = b"") -> None:
        """Begin the reply; its head goes out with what follows it, or by `flush`.

        `more` are further lines of the head, which do not frame the body. A body without a Content-Length
        goes out in chunks, or ends with the connection: HTTP/1.0 knows no chunks.
        """
        cycle = self._cycle
        cycle.response_started = True
        cycle.waiting_for_100_continue = False
        self._has_body = cycle.scope["method"] != "HEAD" and status not in BODILESS
        is_open_ended = self._has_body and not fields.has_length
        self._unframed = is_open_ended and cycle.scope["http_version"] == "1.0"
        cycle.chunked_encoding = is_open_ended and not self._unframed
        framing = b"transfer-encoding: chunked\r\n" if cycle.chunked_encoding else b""
        if self._unframed or fields.closes:
            cycle.keep_alive = False
        if not cycle.keep_alive and not fields.closes:
            framing += b"connection: close\r\n"
        self._head = b"%b%b%b%b\r\n" % (STATUS_LINE[status], fields.lines, more, framing)

    def pass_on(self, part: bytes) -> bool:
        """Send a part of the body, which is not empty; False: not yet, see `drain`."""
        cycle, exit_ = self._cycle, self._exit
        if cycle.disconnected or not self._has_body:
            return True
        if exit_.flow.write_paused:
            return False
        data = b"%x\r\n%b\r\n" % (len(part), part) if cycle.chunked_encoding else part
        if self._head:
            data, self._head = self._head + data, b""
        exit_.write(data)
        return True

    def flush(self) -> None:
        """Send the head alone: what follows it is still to come."""
        head, self._head = self._head, b""
        if head and not self._cycle.disconnected:
            self._exit.write(head)

    def finish(self, last: bytes = b"") -> None:
        """Send the last part of the body, and end the reply."""
        cycle = self._cycle
        if cycle.disconnected:
            return
        if not cycle.chunked_encoding:
            end = last if self._has_body else b""
        elif last:
            end = b"%x\r\n%b\r\n0\r\n\r\n" % (len(last), last)
        else:
            end = b"0\r\n\r\n"
        self._exit.write(self._head + end)
        self._head = b""
        cycle.response_complete = True
        if not cycle.keep_alive:
            self._exit.close()
        cycle.on_response()

    def cut(self) -> None:
        """End the connection without ending the reply, so that the client sees it is not whole."""
        transport = self._exit.transport
        if not transport.is_closing():
            self.flush()
            if self._unframed or self.is_behind:
                # A closing FIN would look like the end of an unframed body; a full buffer would never empty.
                reset(transport)
            else:
                transport.close()
                asyncio.get_running_loop().call_later(_FLUSH_S, transport.abort)
        # Uvicorn takes a reply that nobody ends for a defect, unless its client is gone.
        self._cycle.disconnected = True
