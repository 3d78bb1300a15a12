"""What must hold of any history of a fleet, whatever broke meanwhile: one checker for tests and the soak.

Pure: it gets what the clients saw, what the engine saw, what the gateways logged and counted, what was
reclaimed, and which faults were injected when. It returns a finding for each line of that which no fault
explains.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from tests.support.history import APART, GONE, HARMFUL, LOSS, REDIS, Finding

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from tests.support.history import Asked, Faults, Limits, Line, Span, Told


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
    return found + ends_sound(line.fields for line in lines)


def _line_agrees(one: Asked, line: Line) -> list[Finding]:
    fields = line.fields
    wrong = []
    if line.gateway != one.gateway:
        wrong.append(f"was sent to {one.gateway}")
    if not _end_agrees(one, line):
        wrong.append("says another end")
    if one.request_id is not None and fields["request_id"] != one.request_id:
        wrong.append("has another request id")
    if one.lease is not None and fields["lease"] != one.lease:
        wrong.append("has another lease")
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
        # Lines are written four times a second, once Redis has acknowledged the release.
        waits = faults.near(REDIS, one.end_s, fault.start_s, one.gateway) is not None
        if one.start_s <= fault.end_s and fault.start_s <= one.end_s + (60 if waits else 1):
            return fault.kind == "kill" or one.end in ("refused", "unanswered", "reset")
    return False


def ends_sound(lines: Iterable[Mapping[str, Any]]) -> list[Finding]:
    """Each line has one reason or one refusal, its own request and lease, and times in their order."""
    found = []
    ids: Counter[tuple[str, str]] = Counter()
    for line in lines:
        ids.update((name, line[name]) for name in ("request_id", "lease") if line[name])
        if bool(line["reason"]) == bool(line["refused"]):
            found.append(Finding("line_unsound", f"not exactly one of reason and refused: {line}"))
        times = [line[name] for name in ("queued_at", "admitted_at", "released_at") if line[name]]
        if times != sorted(times) or (line["lease"] and not line["admitted_at"]):
            found.append(Finding("line_unsound", f"times out of order: {line}"))
    found += [
        Finding("id_twice", f"{name} {value}: {count}") for (name, value), count in ids.items() if count > 1
    ]
    return found


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
    "lease_reasserted lost_write": REDIS,
    "lease_reasserted reaped_late": APART,
    "leases_lost": REDIS,
    "reclaimed": REDIS | GONE,
    "repaired": REDIS | GONE,
}
# This one may come late: see Faults.loss_heard_of.
AFTER_LOSS: Final = "lease_reasserted lost_epoch"
HARMLESS: Final = frozenset({"info", "debug"})


def words_explained(words: Iterable[Told], faults: Faults) -> list[Finding]:
    """Every warning names a fault that was there; errors, tracebacks and stray lines have no excuse."""
    found = []
    for word in words:
        if word.fields.get("level") in HARMLESS:
            continue
        if "exception" in word.fields or not _has_its_fault(word, faults):
            found.append(Finding("word_unexplained", f"{word.by} at {word.at_s:.3f}: {dict(word.fields)}"))
    return found


def _has_its_fault(word: Told, faults: Faults) -> bool:
    said = " ".join([word.kind, *filter(None, [word.fields.get("cause")])])
    if said == AFTER_LOSS:
        return faults.loss_heard_of(word.by, word.at_s)
    kinds = SAYS.get(said)
    return kinds is not None and faults.near(kinds, word.at_s, target=word.by) is not None
