"""One request's record: who, when, and why it ended. Each request has exactly one, from head to log line.

A trip ends once. `cut` ends it early from outside (a timer, the client's departure, a lost lease, a
shutdown) by cancelling its task; `end` and `refuse` are called by the task itself. The first one wins.
"""

import asyncio
import contextlib
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Protocol

import msgspec
from starlette.types import Scope

from services.gateway.budgets import Deadlines, Watch
from services.gateway.fleets import Fleet
from services.gateway.headers import Head, read_head
from services.gateway.metrics import FleetFigures, Metrics
from services.gateway.refusals import Reason
from services.gateway.wire import Wire
from services.permits.clock import monotonic, wall_ms
from services.permits.model import Class
from services.permits.permit import Permit


class Books(Protocol):
    """What a trip needs of whoever keeps all of them."""

    draining: bool
    grace_s: float
    ids: Iterator[str]
    metrics: Metrics
    watch: Watch

    def released(self, trip: "Trip") -> None:
        """Redis has acknowledged the trip's release."""

    def left(self, trip: "Trip") -> None:
        """The trip's task is done."""


class Passage(Protocol):
    """What a trip needs of the stream that passes its reply on."""

    def takes_event(self) -> bool:
        """Whether an event of our own may end it."""

    def tokens(self) -> int:
        """How many tokens went by."""


class LogLine(msgspec.Struct, rename={"class_": "class"}):
    """What the log says of one request: never a key or a word of the prompt or the reply.

    `..._at` are Unix ms, `..._ms` spans; None is what did not happen, or is not known.
    """

    event: str
    level: str
    timestamp: datetime
    request_id: str
    client_request_id: str | None
    lease: str | None
    fleet: str | None
    tenant: str | None
    class_: Class | None
    engine: str | None
    queued_at: int
    admitted_at: int | None
    first_token_at: int | None
    last_token_at: int | None
    released_at: int | None
    queue_ms: int | None
    prefill_ms: int | None
    decode_ms: int | None
    release_ms: int | None
    tokens: int
    status: int | None
    reason: Reason | None
    refused: str | None


class Trip:
    """The record of one request. Times are monotonic seconds; the log gets Unix ms."""

    __slots__ = (
        "_books",
        "admitted_s",
        "body_read",
        "deadlines",
        "ended_s",
        "figures",
        "first_token_s",
        "fleet",
        "head",
        "head_sent",
        "last_token_s",
        "over",
        "permit",
        "queue_ms",
        "queued_at_ms",
        "queued_s",
        "reason",
        "refused",
        "released_s",
        "request_id",
        "status",
        "stream",
        "task",
        "tenant",
        "tokens",
        "wire",
    )  # fmt: skip

    def __init__(self, scope: Scope, books: Books) -> None:
        """Begin now, in the request's own task."""
        task = asyncio.current_task()
        assert task is not None  # noqa: S101  (uvicorn runs each request in a task)
        self.task: asyncio.Task[object] = task
        self._books = books
        self.queued_at_ms = wall_ms()
        self.queued_s = monotonic()
        self.request_id = next(books.ids)
        self.head: Head = read_head(scope)
        # Taken out: left there, each request would be a ring that only the garbage collector can free.
        self.wire: Wire = scope["state"].pop("wire")
        self.tenant = ""
        self.fleet: Fleet | None = None
        self.permit: Permit | None = None
        self.deadlines: Deadlines | None = None
        # The fleet's, from admission on.
        self.figures: FleetFigures | None = None
        self.admitted_s = self.first_token_s = self.last_token_s = self.ended_s = self.released_s = 0.0
        # How long the request waited for its permit, once it has one.
        self.queue_ms = 0
        self.body_read = False
        self.head_sent = False
        self.status = 0
        self.tokens = 0
        self.stream: Passage | None = None
        self.reason: Reason | None = None
        self.refused: str | None = None
        self.over = False

    def admit(self, permit: Permit) -> None:
        """Take note of the permit, whose owner is the caller, and start the budgets of the trip's fleet."""
        assert self.fleet is not None  # noqa: S101  (the demand named it)
        self.admitted_s = monotonic()
        self.queue_ms = round(1000 * (self.admitted_s - self.queued_s))
        self.permit = permit
        permit.phase = "draining" if self._books.draining else "prefill"
        permit.on_cut = self._cut_off
        permit.on_released = self._released
        fleet, books = self.fleet, self._books
        self.deadlines = Deadlines(
            fleet.budgets, permit, cut=self.cut, grace_s=books.grace_s, watch=books.watch
        )
        self.figures = books.metrics.of(fleet.name)
        self.figures.queue_s.observe(self.admitted_s - self.queued_s)

    def first_token(self, now_s: float) -> None:
        """Note the first generated content."""
        assert self.permit and self.deadlines and self.fleet and self.figures  # noqa: S101, PT018
        self.first_token_s = now_s
        self.deadlines.decoding(now_s)
        if not self._books.draining:
            self.permit.phase = "decode"
        if self.fleet.is_cold_until_first_token:
            self.permit.downgrade()
        self.figures.prefill_s.observe(now_s - self.admitted_s)

    def cut(self, reason: Reason) -> None:
        """End the request from outside. Nothing happens when it has ended, or is ending, already."""
        if self.reason is None and not self.over:
            self.reason = reason
            self.ended_s = monotonic()
            self.task.cancel()

    def end(self, reason: Reason) -> Reason:
        """Settle why the request ended; return the reason that stands, which is the first."""
        if self.reason is None:
            self.reason = reason
            self.ended_s = monotonic()
        self._stop()
        return self.reason

    async def refuse(self, code: str) -> None:
        """Settle that the request gets our answer instead of a permit."""
        self.refused = code
        self._stop()
        await self.awake()

    async def awake(self) -> None:
        """Take in the cancellation that a cut has left behind, so that a last word can be sent."""
        if self.task.cancelling():
            # Until 3.13 a cancellation that came together with another end is still to be raised.
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0)
            self.task.uncancel()

    def close(self) -> None:
        """Leave the books: called once, when the request's task is done with everything.

        What the log line does not need is let go of: the line may wait for Redis.
        """
        if self.permit is not None and not self.over:
            self.end("internal_error")
        self._stop()
        self.ended_s = self.ended_s or monotonic()
        self.tokens = self.stream.tokens() if self.stream is not None else 0
        self.stream = None
        self.wire.unwatch()
        self._books.left(self)

    def watch_client(self) -> None:
        """From now on, cut the trip when the client leaves. The body must have been read."""
        self.wire.watch(self._client_left)

    def _client_left(self) -> None:
        self.cut("client_disconnect")

    def _cut_off(self, reason: str) -> None:
        self.cut("user_stop" if reason == "user_stop" else "revoked" if reason == "revoked" else "lease_lost")

    def _released(self, at_s: float) -> None:
        self.released_s = at_s
        self._books.released(self)

    def _stop(self) -> None:
        self.over = True
        deadlines, self.deadlines = self.deadlines, None
        if deadlines is not None:
            deadlines.stop()

    def record(self) -> LogLine:
        """Return the log line."""
        permit, begun_s, begun_ms = self.permit, self.queued_s, self.queued_at_ms
        admitted_s, first_s, last_s = self.admitted_s, self.first_token_s, self.last_token_s
        ended_s, released_s = self.ended_s, self.released_s
        return LogLine(
            event="request",
            level="info",
            timestamp=datetime.now(UTC),
            request_id=self.request_id,
            client_request_id=self.head.client_request_id or None,
            lease=permit.id if permit else None,
            fleet=self.fleet.name if self.fleet else None,
            tenant=self.tenant or None,
            class_=permit.class_ if permit else None,
            engine=permit.engine if permit else None,
            queued_at=begun_ms,
            admitted_at=begun_ms + round(1000 * (admitted_s - begun_s)) if admitted_s else None,
            first_token_at=begun_ms + round(1000 * (first_s - begun_s)) if first_s else None,
            last_token_at=begun_ms + round(1000 * (last_s - begun_s)) if last_s else None,
            released_at=begun_ms + round(1000 * (released_s - begun_s)) if released_s else None,
            queue_ms=self.queue_ms if permit else None,
            prefill_ms=round(1000 * (first_s - admitted_s)) if first_s else None,
            # A reply may end without a token, and a place be free before the client has the last bytes.
            decode_ms=max(0, round(1000 * (last_s - first_s))) if first_s else None,
            release_ms=max(0, round(1000 * (released_s - ended_s))) if released_s else None,
            tokens=self.tokens,
            status=self.status or None,
            reason=self.reason,
            refused=self.refused,
        )
