"""The time a request may take, part by part; all requests of an event loop share one timer.

Deadlines are attributes that each chunk pushes on; the timer looks at them when it fires and sleeps on
when they have moved. The same deadlines bound how long the ticker renews the lease: a stream that hangs
loses its lease even in a healthy process.
"""

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

import msgspec

from services.gateway.refusals import Reason
from services.permits.clock import monotonic
from services.settings.schema import Budgets

# A timer may fire a little before its deadline on a clock of its own.
_EARLY_S: Final = 0.001
_NEVER_S: Final = float("inf")


class Seconds(msgspec.Struct, frozen=True):
    """A fleet's budgets as its requests count them: made once, for pydantic's fields are dear to read."""

    first_token: float
    idle: float
    stall: float
    total: float

    @classmethod
    def of(cls, budgets: Budgets) -> "Seconds":
        """Convert what is configured in ms."""
        spans_ms = (budgets.first_token_ms, budgets.idle_ms, budgets.stall_ms, budgets.total_ms)
        return cls(*[span_ms / 1000 for span_ms in spans_ms])


class Renewable(Protocol):
    """What of a permit the deadlines touch."""

    # Until then its lease is renewed.
    renewed_until_s: float


class Watch:
    """The timer. A timer of the event loop's for each request would be a tenth of its CPU.

    It is set for the earliest deadline there was when it last fired, or for one that came nearer since. Most
    deadlines move on before they are reached, so it fires now and then, and looks at all of them.
    """

    def __init__(self) -> None:
        """Watch nothing yet."""
        self._kept: set[Deadlines] = set()
        self._timer: asyncio.TimerHandle | None = None
        # When it fires.
        self.due_s = _NEVER_S

    def keep(self, deadlines: "Deadlines") -> None:
        """Look at these from now on."""
        self._kept.add(deadlines)

    def drop(self, deadlines: "Deadlines") -> None:
        """Look at these no more. Safe to repeat."""
        self._kept.discard(deadlines)

    def wake_at(self, due_s: float, now_s: float) -> None:
        """Fire at `due_s` instead of later."""
        if self._timer is not None:
            self._timer.cancel()
        self.due_s = due_s
        self._timer = asyncio.get_running_loop().call_later(max(0.0, due_s - now_s), self._look)

    def _look(self) -> None:
        self._timer = None
        self.due_s = _NEVER_S
        now_s = monotonic()
        for deadlines in tuple(self._kept):
            due_s = deadlines.look(now_s)
            self.due_s = min(self.due_s, due_s)
        if self._kept:
            self.wake_at(self.due_s, now_s)


class Deadlines:
    """The budgets of one admitted request. `cut` is called at most once, with the budget that ran out.

    Exactly one side is waited for at any time: the engine (`reading`) or the client (`sending`).
    """

    __slots__ = (
        "_cut", "_decoding", "_first_s", "_gap_s", "_grace_s", "_idle_s", "_permit", "_stall_s", "_total_s",
        "_watch", "is_sending",
    )  # fmt: skip

    def __init__(
        self,
        budgets: Seconds,
        permit: Renewable,
        *,
        cut: Callable[[Reason], None],
        grace_s: float,
        watch: Watch,
    ) -> None:
        """Start counting now, at admission. `grace_s` is how long a lease outlives a deadline: one tick."""
        now_s = monotonic()
        self._first_s = now_s + budgets.first_token
        self._total_s = now_s + budgets.total
        self._idle_s = budgets.idle
        self._stall_s = budgets.stall
        self._permit = permit
        self._cut = cut
        self._grace_s = grace_s
        self._decoding = False
        # Whether the client is the one waited for.
        self.is_sending = False
        self._watch = watch
        watch.keep(self)
        self._push(self._first_s, now_s)

    def decoding(self, now_s: float) -> None:
        """Note the first token: from now on the gaps between chunks count, not the wait for the first."""
        self._decoding = True
        if not self.is_sending:
            self._push(now_s + self._idle_s, now_s)

    def reading(self) -> float:
        """Wait for the engine from now on; return now."""
        now_s = monotonic()
        self.is_sending = False
        self._push(now_s + self._idle_s if self._decoding else self._first_s, now_s)
        return now_s

    def token(self) -> float:
        """Do as `reading` does, for the next token while the engine is waited for; return now."""
        now_s = monotonic()
        # It only moves on: nothing wakes earlier.
        self._gap_s = gap_s = now_s + self._idle_s
        total_s = self._total_s
        self._permit.renewed_until_s = (gap_s if gap_s < total_s else total_s) + self._grace_s  # noqa: FURB136
        return now_s

    def sending(self) -> float:
        """Wait for the client from now on; return now."""
        now_s = monotonic()
        self.is_sending = True
        self._push(now_s + self._stall_s, now_s)
        return now_s

    def stop(self) -> None:
        """Cut nothing any more. Safe to repeat."""
        self._watch.drop(self)

    def look(self, now_s: float) -> float:
        """Return the next deadline; cut when it has passed."""
        gap_s, total_s = self._gap_s, self._total_s
        due_s = min(gap_s, total_s)
        if now_s + _EARLY_S < due_s:
            return due_s
        self.stop()
        self._cut("total_timeout" if total_s <= gap_s else self._gap_reason())
        return _NEVER_S

    def _push(self, gap_s: float, now_s: float) -> None:
        """Tell the lease how far it may go, and wake earlier than planned when a deadline came nearer."""
        self._gap_s = gap_s
        due_s = gap_s if gap_s < self._total_s else self._total_s  # noqa: FURB136  (for each token)
        self._permit.renewed_until_s = due_s + self._grace_s
        if due_s < self._watch.due_s:
            self._watch.wake_at(due_s, now_s)

    def _gap_reason(self) -> Reason:
        if self.is_sending:
            return "client_stalled"
        return "idle_timeout" if self._decoding else "first_token_timeout"
