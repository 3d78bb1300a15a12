"""What must hold of any history of a fleet, whatever broke meanwhile: one checker for tests and the soak.

Pure: it gets what the clients saw, what the engine saw, what the gateways logged and counted, what was
reclaimed, and which faults were injected when. It returns a finding for each line of that which no fault
explains. All times are monotonic seconds of one machine.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, Literal, cast

from services.gateway.refusals import Reason, refusal_at_end

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

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


@dataclass(slots=True)
class Excess:
    """How far and for how long pools were over their limits at the engine, by kind of pool and cause."""

    most: Counter[tuple[str, str]] = field(default_factory=Counter)
    area_s: dict[tuple[str, str], float] = field(default_factory=lambda: defaultdict(float))
    findings: list[Finding] = field(default_factory=list)


def over_limits(spans: Sequence[Span], limits: Limits, faults: Faults) -> Excess:
    """Hold every pool against its limit at every instant, as the engine counted it.

    A limit lowered below use cuts nobody, so what counts is each request that came while the pool was full.
    """
    excess = Excess()
    _sweep("total", spans, limits, faults, excess)
    _sweep("cold", [span for span in spans if span.class_ == "cold"], limits, faults, excess)
    for tenant in sorted({span.tenant for span in spans}):
        _sweep(f"tenant:{tenant}", [s for s in spans if s.tenant == tenant], limits, faults, excess)
    return excess


def _sweep(pool: str, spans: Sequence[Span], limits: Limits, faults: Faults, excess: Excess) -> None:
    """Walk one pool's requests in time; at one and the same instant an end goes before a start."""
    moves = sorted(chain(((s.closed_s, -1) for s in spans), ((s.opened_s, 1) for s in spans)))
    if not moves:
        return
    kind = pool.partition(":")[0]
    changes = [at_s for at_s, _ in limits.seen if moves[0][0] < at_s < moves[-1][0]]
    level, over, since_s, why = 0, 0, 0.0, ""
    walked: list[tuple[float, int]] = sorted(chain(moves, ((at_s, 0) for at_s in changes)))
    for at_s, move in walked:
        if over:
            excess.area_s[kind, why] += over * (at_s - since_s)
        level, since_s = level + move, at_s
        if move > 0 and level > limits.allowed(pool, at_s):
            fault = faults.near(APART, at_s)
            why = fault.kind if fault else "unexplained"
            if fault is None:
                what = f"{level} of {pool} at the engine at {at_s:.3f}, allowed {limits.allowed(pool, at_s)}"
                excess.findings.append(Finding("over_limit", what))
        over = max(0, level - limits.now(pool, at_s))
        why = (why or "limit lowered") if over else ""
        if over:
            excess.most[kind, why] = max(excess.most[kind, why], over)


def lines_match(asked: Sequence[Asked], lines: Sequence[Line], faults: Faults) -> list[Finding]:
    """Each request has one line, in the log of the gateway that it was sent to, which says what was seen."""
    found = []
    by_id: dict[str, list[Line]] = defaultdict(list)
    for line in lines:
        by_id[str(line.fields.get("client_request_id"))].append(line)
    for one in asked:
        mine = by_id.pop(one.id, [])
        if len(mine) > 1:
            found.append(Finding("line_twice", f"{one.id} has {len(mine)} lines: {mine}"))
        elif mine:
            found += _line_agrees(one, mine[0])
        elif not _line_may_be_missing(one, faults):
            found.append(Finding("line_missing", f"{one}"))
    found += [Finding("line_of_nobody", f"{line}") for rest in by_id.values() for line in rest]
    found += _no_two("request_id", lines) + _no_two("lease", lines)
    return found


def _line_agrees(one: Asked, line: Line) -> list[Finding]:
    fields = line.fields
    wrong = []
    if line.gateway != one.gateway:
        wrong.append(f"was sent to {one.gateway}")
    if bool(fields["reason"]) == bool(fields["refused"]):
        wrong.append("has not exactly one of reason and refused")
    elif not _end_agrees(one, line):
        wrong.append("says another end")
    if one.request_id is not None and fields["request_id"] != one.request_id:
        wrong.append("has another request id")
    if one.lease is not None and fields["lease"] != one.lease:
        wrong.append("has another lease")
    if fields["lease"] and not fields["queued_at"] <= (fields["admitted_at"] or 0):
        wrong.append("has no time of admission")
    return [Finding("line_disagrees", f"{', '.join(wrong)}: {one} / {fields}")] if wrong else []


def _end_agrees(one: Asked, line: Line) -> bool:
    if one.end == "done" and one.code is None:
        return bool(line.fields["reason"] == "completed")
    if one.code is not None:
        return line.ended_as == one.code
    # Who left, or was cut off, cannot tell why; but what broke off for its client was not completed.
    return bool(one.end not in ("cut", "reset") or line.fields["reason"] != "completed")


def _line_may_be_missing(one: Asked, faults: Faults) -> bool:
    """A killed process takes along what it had not written; who left early may never have been read."""
    if one.end == "left" and one.request_id is None:
        return True
    for fault in faults.all:
        if fault.target != one.gateway or fault.kind not in GONE or fault.start_s < one.start_s - 60:
            continue
        # Lines are written ten times a second, once Redis has acknowledged the release.
        waits = faults.near(REDIS, one.end_s, fault.start_s, one.gateway) is not None
        if one.start_s <= fault.end_s and fault.start_s <= one.end_s + (60 if waits else 1):
            return fault.kind == "kill" or one.end in ("refused", "unanswered", "reset")
    return False


def _no_two(name: str, lines: Iterable[Line]) -> list[Finding]:
    counts = Counter(line.fields[name] for line in lines if line.fields[name])
    return [Finding("id_twice", f"{name} {value}: {count}") for value, count in counts.items() if count > 1]


def answers_explained(asked: Iterable[Asked], faults: Faults) -> list[Finding]:
    """Who meets no fault is served, or refused for a full pool; and some answers no fault excuses."""
    found = []
    for one in asked:
        never = one.end == "hung" or one.code == "internal_error"
        never |= one.code == "invalid_api_key" and one.wanted != "invalid_api_key"
        if never:
            found.append(Finding("answer_never", f"{one}"))
        elif not (served(one) or faults.near(HARMFUL, one.start_s, one.end_s)):
            found.append(Finding("answer_unexplained", f"{one}"))
    return found


def served(one: Asked) -> bool:
    """Say whether a request got what it deserves while nothing is broken; a full pool is no fault."""
    if one.end == "left" or one.stopped:
        return True
    if one.wanted is not None:
        return one.code == one.wanted
    return one.end == "done" and (one.status == 200 if one.code is None else one.status == 429)


def metrics_match(
    holder: str, lines: Iterable[Line], counted: Mapping[tuple[str, str], float]
) -> list[Finding]:
    """Hold what one gateway counted since its start against what it logged.

    `counted` is keyed by (metric, label). A caller that left while it was answered may be counted as asked
    and refused or granted, and logged as gone.
    """
    mine = [line.fields for line in lines if line.holder == holder]
    ends = Counter(fields["reason"] for fields in mine if fields["lease"])
    refused = Counter(fields["refused"] for fields in mine if fields["refused"])
    slack = sum(1 for fields in mine if not fields["lease"] and fields["reason"])
    found = []
    for (metric, label), count in counted.items():
        if metric == "ends" and count != ends[label]:
            found.append(Finding("metrics", f"{holder}: ends {label} {count:g}, {ends[label]} in the log"))
        if metric == "admissions" and label not in ("granted", "queued"):
            more = count - refused[label]
            # Some codes are also given by those who never ask Redis.
            if more > slack or (more < 0 and label not in ("admission_unavailable", "forbidden")):
                what = f"{holder}: refused {label} {count:g}, {refused[label]} in the log"
                found.append(Finding("metrics", what))
    granted = counted.get(("admissions", "granted"), 0) + counted.get(("admissions", "queued"), 0)
    if not 0 <= granted - ends.total() <= slack:
        what = f"{holder}: granted {granted:g}, {ends.total()} leases in the log"
        found.append(Finding("metrics", what))
    return found


@dataclass(frozen=True, slots=True)
class Told:
    """One event of the fleet's stream, or a line of a log that is no request; `by` is the gateway's name."""

    kind: str
    by: str | None
    at_s: float
    fields: Mapping[str, Any]


def reclaims_explained(reclaims: Iterable[Told], faults: Faults) -> list[Finding]:
    """Leases are taken back only from who died, slept or was cut off."""
    kinds = REDIS | GONE
    return [
        Finding("reclaim_unexplained", f"{one.fields} at {one.at_s:.3f}")
        for one in reclaims
        if not faults.near(kinds, one.at_s, target=one.by)
    ]


def killed_reclaimed(
    held: Mapping[str, tuple[float, Collection[str]]], reclaims: Iterable[Told], faults: Faults
) -> list[Finding]:
    """What a killed holder held is reclaimed once: `held` is holder -> (when it died, its leases)."""
    counts = Counter(str(one.fields.get("lease")) for one in reclaims)
    found = []
    for holder, (at_s, leases) in held.items():
        if faults.near(LOSS, at_s, at_s + faults.tail_s):
            continue  # Redis forgot them, and nobody was left to say that they ran
        found += [
            Finding("killed_lease", f"{lease} of {holder} was reclaimed {counts[lease]} times")
            for lease in leases
            if counts[lease] != 1
        ]
    return found


# What a gateway or a reaper may say of itself, and the faults that it may say it of. Anything else of level
# warning or worse is a finding.
SAYS: Final[Mapping[str, Collection[str]]] = {
    "redis_unavailable": REDIS,
    "pass failed, trying on": REDIS,
    "last_flush_failed": REDIS,
    "lease_reasserted lost_epoch": LOSS,
    "lease_reasserted lost_write": REDIS,
    "lease_reasserted reaped_late": APART,
    "leases_lost": REDIS,
    "reclaimed": REDIS | GONE,
    "repaired": REDIS | GONE,
}
HARMLESS: Final = frozenset({"info", "debug"})


def words_explained(words: Iterable[Told], faults: Faults) -> list[Finding]:
    """Every warning names a fault that was there; errors, tracebacks and stray lines have no excuse."""
    found = []
    for word in words:
        if word.fields.get("level") in HARMLESS:
            continue
        kinds = SAYS.get(" ".join([word.kind, *filter(None, [word.fields.get("cause")])]))
        if kinds is None or "exception" in word.fields or not faults.near(kinds, word.at_s, target=word.by):
            found.append(Finding("word_unexplained", f"{word.by} at {word.at_s:.3f}: {dict(word.fields)}"))
    return found
