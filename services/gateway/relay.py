"""Passing a reply on, and ending one that cannot be passed on to its end."""

from services.gateway.budgets import Deadlines
from services.gateway.engine_wire import Reply
from services.gateway.evidence import Report
from services.gateway.headers import Fields, fields_for_client
from services.gateway.refusals import Refusal, error_event, refusal_at_end
from services.gateway.sse import Observer, observer_for
from services.gateway.trip import Trip


class Stream:
    """One reply on its way to the client. Reply and permit are the caller's, who closes them."""

    def __init__(self, reply: Reply, trip: Trip) -> None:
        """Pass `reply` on to the client of `trip`."""
        assert trip.deadlines is not None  # noqa: S101  (a reply is relayed under a permit only)
        self.reply = reply
        self._trip = trip
        self._deadlines: Deadlines = trip.deadlines
        self._last = b""
        self._is_read = False
        self._report: Report | None = None
        self.observer: Observer = observer_for(reply.status, reply.content_type, reply.encoding)

    async def pass_on(self) -> None:
        """Send all but the last part, chunk by chunk: nothing is gathered, none is read before its turn.

        When it returns the engine is done, so the permit need not wait for the client. Raises EngineFailed,
        or CancelledError after a cut; then `farewell` has the last word.
        """
        trip, reply, observer, deadlines = self._trip, self.reply, self.observer, self._deadlines
        wire = trip.wire
        self._start()
        while True:
            chunk = await reply.read(self._take if trip.first_token_s else None, before_wait=wire.flush)
            now_s = deadlines.reading()
            observer.feed(chunk)
            ended = not chunk or reply.is_read
            if not trip.first_token_s and (observer.first_token or ended):
                trip.first_token(now_s)
            if chunk or not trip.last_token_s:
                trip.last_token_s = now_s
            if ended:
                self._last = chunk
                return
            while not wire.pass_on(chunk):
                deadlines.sending()
                await wire.drain()
                deadlines.reading()

    async def finish(self) -> None:
        """Send the last part, and end the reply."""
        wire = self._trip.wire
        if wire.is_behind:
            self._deadlines.sending()
            await wire.drain()
        wire.finish(self._last)

    def takes_event(self) -> bool:
        """Whether an event of ours may follow: between two whole ones, both sent, in an open-ended body."""
        has_length = any(name == b"content-length" for name, _ in self.reply.raw_headers)
        is_stream = self.observer.is_stream and self._trip.head.method != "HEAD"
        waits_for_client = self._deadlines.is_sending or self._trip.wire.is_behind
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

    def _start(self) -> None:
        """Begin the reply: its head goes out with what the engine has sent behind its own."""
        trip, reply = self._trip, self.reply
        fields = fields_for_client(reply.status, reply.raw_headers, is_stream=self.observer.is_stream)
        trip.status = reply.status
        trip.head_sent = True
        trip.wire.start(reply.status, fields, own_lines(trip))

    def _take(self, chunk: bytes) -> bool:
        """Pass a chunk on in the call that brought it; False: the client must be waited for."""
        trip = self._trip
        if trip.reason is not None or not trip.wire.pass_on(chunk):
            return False
        trip.last_token_s = self._deadlines.token()
        self.observer.feed(chunk)
        return True


def own_lines(trip: Trip) -> bytes:
    """Return the headers that every reply under a permit carries, refusals included once there is one."""
    lines = f"x-request-id: {trip.request_id}\r\n"
    if trip.head.client_request_id:
        lines += f"x-client-request-id: {trip.head.client_request_id}\r\n"
    if (permit := trip.permit) is not None:
        lines += f"tenure-lease: {permit.id}\r\ntenure-class: {permit.class_}\r\n"
        lines += f"tenure-queue-ms: {trip.queue_ms}\r\n"
    return lines.encode()


def send_refusal(refusal: Refusal, trip: Trip) -> None:
    """Send our own answer whole. It is the connection's last one when the request was not read to its end."""
    body = refusal.envelope
    headers = refusal.headers(body)
    unread = not trip.body_read and trip.head.has_body and not trip.wire.has_whole_body
    if unread and not refusal.close:
        headers.append((b"connection", b"close"))
    trip.head_sent = True
    trip.status = refusal.status
    trip.wire.start(refusal.status, Fields.of(headers), own_lines(trip))
    trip.wire.finish(body)


async def farewell(trip: Trip) -> None:
    """Tell the client why the request ends, as far as what it already got leaves a way to."""
    await trip.awake()
    assert trip.reason is not None  # noqa: S101  (whoever calls has settled it)
    refusal = refusal_at_end(trip.reason)
    if refusal is None:
        trip.wire.cut()
    elif not trip.head_sent:
        send_refusal(refusal, trip)
    elif trip.stream is not None and trip.stream.takes_event():
        trip.wire.finish(error_event(trip.reason))
    else:
        trip.wire.cut()
