"""What a history of a fleet consists of, for those who check one: see `invariants.py`.

All times are monotonic seconds of one machine.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, cast

from services.gateway.refusals import Reason, refusal_at_end

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

# What takes a gateway away from its Redis for longer than its answers may take, or Redis from all of them:
# whoever cannot ask admits its share, and whoever slept runs on. Nothing else may exceed a limit.
APART: Final = frozenset({
    "sigstop", "blackhole", "one_way", "stall", "delay", "refuse", "reset", "client_kill", "redis_sleep",
    "client_pause", "redis_restart", "oom", "slow",
})  # fmt: skip
# Redis forgets.
LOSS: Final = frozenset({"flushall", "redis_restart"})
GONE: Final = frozenset({"kill", "drain"})
REDIS: Final = APART | LOSS
# What ends a request whose caller did nothing wrong.
HARMFUL: Final = REDIS | GONE | {"engine_crash", "engine_errors", "engine_stall", "reaper_kill"}

# How the client's part of a request ended. done: the whole answer is there. event: our error event. left: the
# client went on purpose. cut, reset: the connection broke. unanswered: it broke before a head. refused:
# nobody listens. hung: no end within the client's patience.
End = Literal["done", "event", "left", "cut", "reset", "unanswered", "refused", "hung"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One line that nothing explains."""

    check: str
    what: str


@dataclass(slots=True)
class Fault:
    """One injected fault; `target` is a gateway's name or None for all, `end_s` infinite while it lasts."""

    kind: str
    target: str | None
    start_s: float
    end_s: float = float("inf")


@dataclass(frozen=True, slots=True)
class Faults:
    """All faults so far. What one did may show for `tail_s` after it."""

    all: Sequence[Fault]
    tail_s: float

    def near(
        self, kinds: Collection[str], from_s: float, to_s: float | None = None, target: str | None = None
    ) -> Fault | None:
        """Return a fault of `kinds` that can have touched the span, or None; without a target any will do."""
        to_s = from_s if to_s is None else to_s
        for fault in self.all:
            meets = fault.start_s <= to_s and from_s <= fault.end_s + self.tail_s
            if meets and fault.kind in kinds and (target is None or fault.target in (None, target)):
                return fault
        return None

    def loss_heard_of(self, target: str | None, at_s: float) -> bool:
        """Whether `target` may hear at `at_s` for the first time that Redis lost its data."""
        for loss in self.all:
            if loss.kind in LOSS and loss.start_s <= at_s:
                until_s = loss.end_s
                for fault in sorted(self.all, key=lambda fault: fault.start_s):
                    # Apart from Redis without a break since the loss, it could not hear of it before.
                    if fault.kind in APART and fault.target in (None, target) and fault.start_s <= until_s:
                        until_s = max(until_s, fault.end_s)
                if at_s <= until_s + self.tail_s:
                    return True
        return False

    def free_s(self, kinds: Collection[str], from_s: float, to_s: float) -> float:
        """Return how much of a span none of `kinds` can have touched."""
        free_s, at_s = 0.0, from_s
        for fault in sorted((f for f in self.all if f.kind in kinds), key=lambda f: f.start_s):
            free_s += max(0.0, min(fault.start_s, to_s) - at_s)
            at_s = max(at_s, min(fault.end_s + self.tail_s, to_s))
        return free_s + max(0.0, to_s - at_s)


@dataclass(slots=True)
class Asked:
    """One request as its client saw it. `id` is the client's own, unique over the history."""

    id: str
    tenant: str
    kind: str
    gateway: str
    start_s: float
    end_s: float = 0.0
    status: int = 0
    code: str | None = None
    request_id: str | None = None
    lease: str | None = None
    end: End = "unanswered"
    wanted: str | None = None  # the refusal that the request deserves
    stopped: bool = False  # somebody was asked to end it


@dataclass(frozen=True, slots=True)
class Line:
    """One request in a gateway's log; `holder` is the incarnation that wrote it."""

    gateway: str
    holder: str
    fields: Mapping[str, Any]

    @property
    def ended_as(self) -> str:
        """Return the code that the client of such an end is told, or the end's reason when nobody listens."""
        if self.fields["refused"]:
            return str(self.fields["refused"])
        if not self.fields["reason"]:
            return ""
        refusal = refusal_at_end(cast("Reason", self.fields["reason"]))
        return refusal.code if refusal else str(self.fields["reason"])


@dataclass(frozen=True, slots=True)
class Span:
    """One request at the engine."""

    tenant: str
    class_: str | None
    opened_s: float
    closed_s: float


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits in Redis as somebody who looks often saw them: (when, fields), in order."""

    seen: Sequence[tuple[float, Mapping[str, int]]]
    grace_s: float = 1.5

    def now(self, pool: str, at_s: float) -> int:
        """Return the limit last seen."""
        return _limit(self.seen[max(0, self._before(at_s) - 1)][1], pool)

    def allowed(self, pool: str, at_s: float) -> int:
        """Return the most that may have been in force when somebody who starts now was admitted."""
        first = max(0, self._before(at_s - self.grace_s) - 1)
        last = self._before(at_s) + 1
        return max(_limit(fields, pool) for _, fields in self.seen[first:last])

    def _before(self, at_s: float) -> int:
        return bisect_right(self.seen, at_s, key=lambda entry: entry[0])


def _limit(fields: Mapping[str, int], pool: str) -> int:
    default = fields.get("tenant_default", 0) if pool.startswith("tenant:") else 0
    return fields.get(pool, default)


@dataclass(frozen=True, slots=True)
class Told:
    """One event of the fleet's stream, or a line of a log that is no request; `by` is the gateway's name."""

    kind: str
    by: str | None
    at_s: float
    fields: Mapping[str, Any]
