"""The ledger: what a soak did and saw, added up, as a table and as JSON."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

from rich.table import Table

from tests.soak.world import OLDEST, REAPERS
from tests.support.invariants import served

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console

    from tests.soak.book import Book
    from tests.soak.rest import Rest

KIB_PER_MIB: Final = 1024
SHOWN_RESTS: Final = 6
# Memory is followed in the processes that live from the beginning, once they are warm.
FOLLOWED: Final = (OLDEST, *REAPERS, "redis")
WARM_S: Final = 600.0
FLAT: Final = 0.05


@dataclass
class Trial:
    """What all chapters saw in which one fault was injected alone."""

    times: int = 0
    requests: int = 0
    # Requests that were neither served nor refused for a full pool, and deserved it.
    harmed: Counter[str] = field(default_factory=Counter)
    # Of any pool; request seconds by kind of pool.
    most_over: int = 0
    over_s: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    # The longest time in which the engine got no request; without a fault it is the load's own.
    longest_gap_s: float = 0.0
    quiet_s: float = 0.0
    reclaimed: int = 0
    reasserted: Counter[str] = field(default_factory=Counter)

    def add(self, rest: Rest) -> None:
        """Take in one chapter."""
        self.times += 1
        self.requests += len(rest.asked)
        self.harmed.update(one.code or one.end for one in rest.asked if not served(one))
        for (pool, why), most in rest.excess.most.items():
            if why != "limit lowered":
                self.most_over = max(self.most_over, most)
                self.over_s[pool] += rest.excess.area_s[pool, why]
        self.longest_gap_s = max(self.longest_gap_s, rest.longest_gap_s)
        self.quiet_s = max(self.quiet_s, rest.took_s)
        self.reclaimed += rest.reclaimed
        self.reasserted.update(rest.reasserted)


@dataclass
class Ledger:
    """Adds rests up; keeps of each only figures."""

    seed: int
    asked: Counter[str] = field(default_factory=Counter)
    ends: Counter[str] = field(default_factory=Counter)
    lines: Counter[str] = field(default_factory=Counter)
    classes: Counter[str] = field(default_factory=Counter)
    reasserted: Counter[str] = field(default_factory=Counter)
    over_s: dict[tuple[str, str], float] = field(default_factory=lambda: defaultdict(float))
    over_most: Counter[tuple[str, str]] = field(default_factory=Counter)
    reclaimed: int = 0
    engine_requests: int = 0
    max_open: int = 0
    # Time in which no fault would have excused an excess.
    strict_s: float = 0.0
    rests: list[dict[str, Any]] = field(default_factory=list)
    trials: dict[str, Trial] = field(default_factory=dict)

    def add(self, rest: Rest, fault: str | None = None) -> None:
        """Take in what one rest saw; `fault` is the one that was injected alone."""
        self.asked.update(one.kind for one in rest.asked)
        self.ends.update(one.code or f"{one.end} {one.status or ''}".strip() for one in rest.asked)
        self.lines.update(str(line.fields["reason"] or line.fields["refused"]) for line in rest.lines)
        self.classes.update(line.fields["class"] for line in rest.lines if line.fields["class"])
        self.reasserted.update(rest.reasserted)
        for key, seconds in rest.excess.area_s.items():
            self.over_s[key] += seconds
        for key, most in rest.excess.most.items():
            self.over_most[key] = max(self.over_most[key], most)
        self.reclaimed += rest.reclaimed
        self.engine_requests += rest.engine_requests
        self.max_open = max(self.max_open, rest.max_open)
        self.strict_s += rest.strict_s
        vitals = {name: asdict(one) for name, one in rest.vitals.items()}
        self.rests.append({"at_s": round(rest.at_s, 1), "took_s": round(rest.took_s, 1), "vitals": vitals})
        if fault is not None:
            self.trials.setdefault(fault, Trial()).add(rest)

    def grown(self) -> list[str]:
        """Return which of the old processes kept growing after they were warm; nothing before that."""
        warm = [rest for rest in self.rests if rest["at_s"] >= WARM_S]
        if not warm or warm[-1]["at_s"] < 2 * WARM_S:
            return []
        third = max(1, len(warm) // 3)
        found = []
        for name in FOLLOWED:
            sizes = [rest["vitals"][name]["rss_kib"] for rest in warm]
            first, last = sum(sizes[:third]) / third, sum(sizes[-third:]) / third
            if last > first * (1 + FLAT):
                found.append(f"{name} grew from {first / KIB_PER_MIB:.1f} to {last / KIB_PER_MIB:.1f} MiB")
        return found

    def show(self, console: Console, book: Book) -> None:
        """Print everything."""
        for title, counts in (
            ("faults", Counter(fault.kind for fault in book.faults)),
            ("requests, by kind", self.asked),
            ("what clients saw", self.ends),
            ("lines in the logs", self.lines),
            ("classes", self.classes),
            ("administration", book.deeds),
            ("events of the fleet", book.events),
            ("re-assertions, by cause", self.reasserted),
        ):
            console.print(_table(title, counts))
        over = Table("over a limit at the engine, by cause", "pool", "request seconds", "most at once")
        for (pool, why), seconds in sorted(self.over_s.items(), key=lambda entry: entry[0][::-1]):
            over.add_row(why, pool, f"{seconds:.2f}", str(self.over_most[pool, why]))
        console.print(over)
        if self.trials:
            console.print(self._trials())
        console.print(self._vitals())
        console.print(
            f"{self.engine_requests} requests at the engine, {self.max_open} at once at the most;"
            f" {self.strict_s:.0f} s in which nothing excused an excess"
        )

    def _trials(self) -> Table:
        table = Table(
            "one fault alone", "times", "requests", "harmed", "most over", "over s", "gap s", "quiet s"
        )
        for kind, trial in self.trials.items():
            table.add_row(
                kind,
                str(trial.times),
                str(trial.requests),
                ", ".join(f"{code} {count}" for code, count in trial.harmed.most_common()),
                str(trial.most_over),
                ", ".join(f"{pool} {seconds:.2f}" for pool, seconds in trial.over_s.items()),
                f"{trial.longest_gap_s:.2f}",
                f"{trial.quiet_s:.1f}",
            )
        return table

    def _vitals(self) -> Table:
        table = Table("process", "MiB at each rest", "descriptors", "threads")
        for name in sorted({name for rest in self.rests for name in rest["vitals"]}):
            rows = [rest["vitals"][name] for rest in self.rests]
            few = len(rows) <= SHOWN_RESTS
            shown = rows if few else [*rows[: SHOWN_RESTS // 2], *rows[-SHOWN_RESTS // 2 :]]
            table.add_row(
                name,
                " ".join(f"{row['rss_kib'] / KIB_PER_MIB:.1f}" for row in shown),
                " ".join(str(row["fds"]) for row in shown),
                " ".join(str(row["threads"]) for row in shown),
            )
        return table

    def write(self, path: Path, book: Book) -> None:
        """Write everything as JSON."""
        path.parent.mkdir(parents=True, exist_ok=True)
        facts = vars(self) | {
            "over_s": {f"{pool}: {why}": seconds for (pool, why), seconds in self.over_s.items()},
            "over_most": {f"{pool}: {why}": most for (pool, why), most in self.over_most.items()},
            "trials": {kind: vars(trial) for kind, trial in self.trials.items()},
            "faults": [asdict(fault) for fault in book.faults],
            "deeds": book.deeds,
            "events": book.events,
            "findings": [asdict(finding) for finding in book.findings],
        }
        path.write_text(json.dumps(facts, indent=1) + "\n")


def _table(title: str, counts: Counter[str]) -> Table:
    table = Table(title, str(counts.total()))
    for name, count in counts.most_common():
        table.add_row(name, str(count))
    return table
