"""The time a request may take, part by part, kept by one lazily re-armed timer per request.

Deadlines are attributes that each chunk pushes on; the timer looks at them when it fires and sleeps on
when they have moved. The same deadlines bound how long the ticker renews the lease: a stream that hangs
loses its lease even in a healthy process.
"""

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

from services.gateway.refusals import Reason
from services.permits.clock import monotonic
from services.settings.schema import Budgets

# A timer may fire a little before its deadline on a clock of its own.
_EARLY_S: Final = 0.001


class Renewable(Protocol):
    """What of a permit the deadlines touch."""

    def renew_until(self, monotonic_s: float) -> None:
        """Let the lease be renewed until then."""


class Deadlines:
    """The budgets of one admitted request. `cut` is called at most once, with the budget that ran out.

    Exactly one side is waited for at any time: the engine (`reading`) or the client (`sending`).
    """

    __slots__ = (
        "_armed_s", "_cut", "_decoding", "_first_s", "_gap_s", "_grace_s", "_idle_s", "_permit",
        "_sending", "_stall_s", "_timer", "_total_s",
    )  # fmt: skip

    def __init__(
        self, budgets: Budgets, permit: Renewable, *, cut: Callable[[Reason], None], grace_s: float
    ) -> None:
        """Start counting now, at admission. `grace_s` is how long a lease outlives a deadline: one tick."""
        now_s = monotonic()
        self._first_s = self._gap_s = now_s + budgets.first_token_ms / 1000
        self._total_s = now_s + budgets.total_ms / 1000
        self._idle_s = budgets.idle_ms / 1000
        self._stall_s = budgets.stall_ms / 1000
        self._permit = permit
        self._cut = cut
        self._grace_s = grace_s
        self._decoding = False
        self._sending = False
        self._armed_s = float("inf")
        self._timer: asyncio.TimerHandle | None = None
        self._push(now_s)

    def decoding(self) -> None:
        """Note the first token: from now on the gaps between chunks count, not the wait for the first."""
        self._decoding = True
        if not self._sending:
            self.reading()

    def reading(self) -> float:
        """Wait for the engine from now on; return now."""
        now_s = monotonic()
        self._sending = False
        self._gap_s = now_s + self._idle_s if self._decoding else self._first_s
        self._push(now_s)
        return now_s

    def sending(self) -> float:
        """Wait for the client from now on; return now."""
        now_s = monotonic()
        self._sending = True
        self._gap_s = now_s + self._stall_s
        self._push(now_s)
        return now_s

    @property
    def is_sending(self) -> bool:
        """Whether the client is the one waited for."""
        return self._sending

    def stop(self) -> None:
        """Cut nothing any more. Safe to repeat."""
        self._total_s = float("inf")
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _push(self, now_s: float) -> None:
        """Tell the lease how far it may go, and wake earlier than planned when a deadline came nearer."""
        due_s = min(self._gap_s, self._total_s)
        self._permit.renew_until(due_s + self._grace_s)
        if due_s < self._armed_s:
            if self._timer is not None:
                self._timer.cancel()
            self._arm(due_s, now_s)

    def _arm(self, due_s: float, now_s: float) -> None:
        self._armed_s = due_s
        self._timer = asyncio.get_running_loop().call_later(max(0.0, due_s - now_s), self._look)

    def _look(self) -> None:
        """Cut when a deadline has really passed, else sleep until the next one."""
        self._timer = None
        now_s, gap_s = monotonic(), self._gap_s
        due_s = min(gap_s, self._total_s)
        if now_s + _EARLY_S < due_s:
            self._arm(due_s, now_s)
        else:
            self._cut("total_timeout" if self._total_s <= gap_s else self._gap_reason())

    def _gap_reason(self) -> Reason:
        if self._sending:
            return "client_stalled"
        return "idle_timeout" if self._decoding else "first_token_timeout"
