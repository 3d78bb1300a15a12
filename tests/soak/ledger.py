"""The ledger: what a soak did and saw, added up, as a table and as JSON."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

from rich.table import Table

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console

    from tests.soak.book import Book
    from tests.soak.rest import Rest
    from tests.soak.watch import Watch

SHOWN_FINDINGS: Final = 40
MIB: Final = 1024
FLAT: Final = 0.05


@dataclass
class Ledger:
    """Adds rests up; keeps of each only figures."""

    seed: int
    asked: Counter[str] = field(default_factory=Counter)
    ends: Counter[str] = field(default_factory=Counter)
    lines: Counter[str] = field(default_factory=Counter)
    reasserted: Counter[str] = field(default_factory=Counter)
    over_s: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    over_most: Counter[str] = field(default_factory=Counter)
    reclaimed: int = 0
    engine_requests: int = 0
    max_open: int = 0
    rests: list[dict[str, Any]] = field(default_factory=list)

    def add(self, rest: Rest) -> None:
        """Take in what one rest saw."""
        self.asked.update(one.kind for one in rest.asked)
        self.ends.update(one.code or f"{one.end} {one.status or ''}".strip() for one in rest.asked)
        self.lines.update(f"class {line.fields['class']}" for line in rest.lines if line.fields["class"])
        self.lines.update(str(line.fields["reason"] or line.fields["refused"]) for line in rest.lines)
        self.reasserted.update(rest.reasserted)
        for why, seconds in rest.excess.area_s.items():
            self.over_s[why] += seconds
        for why, most in rest.excess.most.items():
            self.over_most[why] = max(self.over_most[why], most)
        self.reclaimed += rest.reclaimed
        self.engine_requests += rest.engine_requests
        self.max_open = max(self.max_open, rest.max_open)
        vitals = {name: asdict(one) for name, one in rest.vitals.items()}
        self.rests.append({"at_s": round(rest.at_s, 1), "took_s": round(rest.took_s, 1), "vitals": vitals})

    def show(self, console: Console, book: Book, watch: Watch) -> None:
        """Print everything."""
        faults = Counter(fault.kind for fault in book.faults)
        for title, counts in (
            ("faults", faults),
            ("requests, by kind", self.asked),
            ("what clients saw", self.ends),
            ("lines in the logs", self.lines),
            ("administration", book.deeds),
            ("events of the fleet", Counter(watch.events)),
            ("re-assertions, by cause", self.reasserted),
        ):
            console.print(_table(title, counts))
        over = Table(
            "over a limit at the engine, by cause", "request seconds", "most at once", title_justify="left"
        )
        for why, seconds in sorted(self.over_s.items()):
            over.add_row(why, f"{seconds:.2f}", str(self.over_most[why]))
        console.print(over)
        console.print(self._vitals())

    def _vitals(self) -> Table:
        table = Table("process", "MiB at each rest", "descriptors", "threads")
        names = sorted({name for rest in self.rests for name in rest["vitals"]})
        for name in names:
            rows = [rest["vitals"][name] for rest in self.rests]
            shown = rows if len(rows) <= 6 else [*rows[:3], *rows[-3:]]
            table.add_row(
                name,
                " ".join(f"{row['rss_kib'] / MIB:.1f}" for row in shown),
                " ".join(str(row["fds"]) for row in shown),
                " ".join(str(row["threads"]) for row in shown),
            )
        return table

    def write(self, path: Path, book: Book, watch: Watch) -> None:
        """Write everything as JSON."""
        path.parent.mkdir(parents=True, exist_ok=True)
        facts = vars(self) | {
            "faults": [asdict(fault) for fault in book.faults],
            "deeds": book.deeds,
            "events": watch.events,
            "findings": [asdict(finding) for finding in book.findings],
        }
        path.write_text(json.dumps(facts, indent=1) + "\n")


def _table(title: str, counts: Counter[str]) -> Table:
    table = Table(title, str(counts.total()))
    for name, count in counts.most_common():
        table.add_row(name, str(count))
    return table
