"""Passing a reply on, and ending one that cannot be passed on to its end."""

from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Final

from starlette.types import Send

from services.gateway.budgets import Deadlines
from services.gateway.engine_wire import Reply
from services.gateway.evidence import Report
from services.gateway.headers import RawHeaders, for_client
from services.gateway.refusals import Refusal, error_event, refusal_at_end
from services.gateway.sse import Observer, observer_for
from services.gateway.trip import Trip

# Their Content-Length speaks of a body that is not sent.
_BODILESS: Final = frozenset({204, 304})


class OwnedStream:
    """Passes a reply to the client and, when the engine's part ends for any reason, closes what it owns."""

    def __init__(self, reply: Reply, trip: Trip, *, owned: AsyncExitStack) -> None:
        """Take ownership of `owned`, which holds the reply and, outside it, the permit."""
        self.reply = reply
        self._trip = trip
        self._owned = owned
        self._is_read = False
        self._report: Report | None = None
        self.observer: Observer = observer_for(reply.status, reply.content_type, reply.encoding)

    async def send_to(self, send: Send) -> None:
        """Send all of the reply. The permit goes back when the engine is done, before the last byte is out.

        Raises EngineFailed, or CancelledError after a cut; then `farewell` has the last word.
        """
        async with self._owned:
            await self._send_head(send)
            last = await self._pump(send)
        await _finish(self._trip, send, last)

    def takes_event(self) -> bool:
        """Whether an event of ours may follow: between two whole ones, both sent, in an open-ended body."""
        has_length = any(name == b"content-length" for name, _ in self.reply.raw_headers)
        is_stream = self.observer.is_stream and self._trip.head.method != "HEAD"
        waits_for_client = _deadlines(self._trip).is_sending or self._trip.wire.is_behind
        return is_stream and not has_length and not waits_for_client and self.observer.at_boundary()

    def tokens(self) -> int:
        """Return the generated tokens: the engine's figure where it gave one, else the events seen."""
        report = self.report()
        return report.generated if report and report.generated is not None else self.observer.generated()

    def report(self) -> Report | None:
        """Return the engine's own report, read once, when the last chunk has passed."""
        if not self._is_read:
            self._is_read = True
            self._report = self.observer.report()
        return self._report

    async def _send_head(self, send: Send) -> None:
        trip, reply = self._trip, self.reply
        headers = for_client(reply.raw_headers, keep_length=reply.status not in _BODILESS)
        headers += own_headers(trip)
        names = {name for name, _ in headers}
        if self.observer.is_stream:
            # Whoever stands between us and the client must not gather a stream.
            wanted = ((b"x-accel-buffering", b"no"), (b"cache-control", b"no-cache"))
            headers += [header for header in wanted if header[0] not in names]
        has_body = trip.head.method != "HEAD" and reply.status not in _BODILESS
        if trip.head.http10 and has_body and b"content-length" not in names:
            trip.wire.unframe()
        trip.status = reply.status
        trip.head_sent = True
        _deadlines(trip).sending()
        trip.wire.begin()
        await send({"type": "http.response.start", "status": reply.status, "headers": headers})

    async def _pump(self, send: Send) -> bytes:
        """Pass chunk by chunk: nothing is gathered, and none is read before the last one was taken.

        Returns the last chunk unsent: the engine is done with it, so the permit need not wait for the client.
        """
        trip, reply, observer, deadlines = self._trip, self.reply, self.observer, _deadlines(self._trip)
        pass_on = _passing_on(trip, observer) if trip.wire.is_open_ended else None
        deadlines.reading()
        while True:
            chunk = await reply.read(pass_on if trip.first_token_s else None)
            now_s = deadlines.reading()
            observer.feed(chunk)
            ended = not chunk or reply.is_read
            if not trip.first_token_s and (observer.first_token or ended):
                trip.first_token(now_s)
            trip.last_token_s = now_s if chunk else trip.last_token_s or now_s
            if ended:
                deadlines.sending()
                return chunk
            message = {"type": "http.response.body", "body": chunk, "more_body": True}
            if trip.wire.is_behind:
                deadlines.sending()
                await send(message)
                deadlines.reading()
            else:
                # Nothing is waited for, so there is nothing to time.
                await send(message)


def _passing_on(trip: Trip, observer: Observer) -> Callable[[bytes], bool]:
    """Return what passes a chunk on in the call that brought it; False: the client must be waited for."""
    wire, reading, feed, pass_on = trip.wire, _deadlines(trip).reading, observer.feed, trip.wire.pass_on

    def take(chunk: bytes) -> bool:
        if wire.is_behind or trip.reason is not None:
            return False
        trip.last_token_s = reading()
        feed(chunk)
        pass_on(chunk)
        return True

    return take


def own_headers(trip: Trip) -> RawHeaders:
    """Return the headers that every reply under a permit carries, refusals included once there is one."""
    headers = [(b"x-request-id", trip.request_id.encode())]
    if trip.head.client_request_id:
        headers.append((b"x-client-request-id", trip.head.client_request_id.encode()))
    if trip.permit is not None:
        headers += [
            (b"tenure-lease", trip.permit.id.encode()),
            (b"tenure-class", trip.permit.class_.encode()),
            (b"tenure-queue-ms", b"%d" % trip.queue_ms),
        ]
    return headers


async def send_refusal(refusal: Refusal, trip: Trip, send: Send) -> None:
    """Send our own answer whole. It is the connection's last one when the request was not read to its end."""
    body = refusal.envelope
    headers = [*refusal.headers(body), *own_headers(trip)]
    unread = not trip.body_read and trip.head.has_body and not trip.wire.has_whole_body
    if unread and not refusal.close:
        headers.append((b"connection", b"close"))
    trip.head_sent = True
    trip.status = refusal.status
    trip.wire.begin()
    await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})


async def farewell(trip: Trip, send: Send) -> None:
    """Tell the client why the request ends, as far as what it already got leaves a way to."""
    await trip.awake()
    assert trip.reason is not None  # noqa: S101  (whoever calls has settled it)
    refusal = refusal_at_end(trip.reason)
    if refusal is None:
        trip.wire.cut()
    elif not trip.head_sent:
        await send_refusal(refusal, trip, send)
    elif trip.stream is not None and trip.stream.takes_event():
        await _finish(trip, send, error_event(trip.reason))
    else:
        trip.wire.cut()


async def _finish(trip: Trip, send: Send, last: bytes) -> None:
    """Send the last bytes of a reply and end it."""
    if trip.wire.is_unframed:
        await send({"type": "http.response.body", "body": last, "more_body": True})
        trip.wire.finish()
    else:
        await send({"type": "http.response.body", "body": last, "more_body": False})


def _deadlines(trip: Trip) -> Deadlines:
    assert trip.deadlines is not None  # noqa: S101  (a reply is relayed under a permit only)
    return trip.deadlines
