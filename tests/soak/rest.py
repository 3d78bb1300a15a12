"""A rest: load and faults pause, and when all is quiet every count is compared exactly."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Final

from services.permits.store import whole_numbers
from tests.nodes.places import GATEWAYS, LIMITS
from tests.soak.officer import patiently
from tests.soak.world import LEASE, REPLICAS, World
from tests.support import invariants
from tests.support.client import fetch
from tests.support.history import APART, Asked, Limits, Line, Span
from tests.support.processes import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tests.soak.book import Book, Chapter
    from tests.soak.faults import Injector
    from tests.soak.load import Load
    from tests.soak.officer import Officer
    from tests.soak.watch import Logs, Watch
    from tests.support.reply import Seen

# Every request has ended by its budgets, every fault was undone, and what it left behind has lapsed.
QUIET_S: Final = 60.0
EMPTY_S: Final = (LEASE["ttl_ms"] + 2 * LEASE["tick_ms"]) / 1000 + 5.0
SETTLED_S: Final = 10.0
# What may be in Redis while nothing runs.
KNOWN_KEYS: Final = re.compile(
    r"tenure:(\{demo\}:(meta|limits|limits:set_at|gateways|events|ends|reported|evidence:e1|line:tenants)"
    r"|fleets|tenants|keys|events)"
)
COUNTED: Final = re.compile(
    r'^tenure_(?P<metric>ends|admissions)_total\{fleet="demo",(?:reason|outcome)="(?P<label>\w+)"\}'
    r" (?P<count>\S+)$",
    re.MULTILINE,
)
# Connections that a gateway keeps at hand: its pools to Redis, and to the engine.
POOLED_FDS: Final = 64


@dataclass(frozen=True)
class Vitals:
    """What one process has of the machine."""

    rss_kib: int
    fds: int
    threads: int


@dataclass
class Rest:
    """What was seen at one rest, `at_s` seconds after the start."""

    at_s: float
    took_s: float
    asked: list[Asked]
    lines: list[Line]
    excess: invariants.Excess
    vitals: dict[str, Vitals]
    engine_requests: int
    max_open: int
    reasserted: Counter[str] = field(default_factory=Counter)
    reclaimed: int = 0
    longest_gap_s: float = 0.0
    strict_s: float = 0.0


@dataclass
class Inspector:
    """Makes everything rest, compares, and lets it go on."""

    world: World
    book: Book
    load: Load
    injector: Injector
    officer: Officer
    watch: Watch
    logs: Logs
    fds_at_start: dict[int, int] = field(default_factory=dict)

    async def rest(self, started_s: float) -> Rest:
        """Rest once; what is wrong goes into the book's findings."""
        began_s = time.monotonic()
        await asyncio.gather(self.injector.pause(), self.officer.pause())
        self.load.pause()
        await self._until(lambda: self.load.busy == 0, QUIET_S, "every client has its answer")
        await self._until(lambda: self.world.engine.open == 0, SETTLED_S, "nothing is open at the engine")
        for name in REPLICAS:
            await self.world.gateways[name].ready(within_s=120)
        await self._until(lambda: not self._left(), EMPTY_S, "nothing is left in Redis", self._left)
        await self._until(self._sessions_agree, SETTLED_S, "only the living have sessions", self._sessions)
        await self._until(self._lines_agree, SETTLED_S, "every line is written")
        await self.watch.look()
        self.logs.read()
        chapter = self.book.turn_page()
        rest = await self._compare(chapter, began_s, started_s)
        await self.officer.settle()
        for part in (self.load, self.injector, self.officer):
            part.resume()
        return rest

    async def _until(
        self, reached: Callable[[], object], within_s: float, what: str, state: Callable[[], object] = str
    ) -> None:
        until_s = time.monotonic() + within_s
        while not await asyncio.to_thread(reached):
            if time.monotonic() > until_s:
                self.book.find("rest", f"not within {within_s:.1f} s: {what}; {state()}")
                return
            await asyncio.sleep(0.1)

    def _left(self) -> list[str]:
        keys: list[str] = self.world.redis.cli("KEYS", "*")
        return [key for key in sorted(keys) if not KNOWN_KEYS.fullmatch(key)]

    def _sessions(self) -> list[str]:
        sessions: list[str] = self.world.redis.cli("ZRANGE", GATEWAYS, 0, -1)
        return sorted(sessions)

    def _sessions_agree(self) -> bool:
        self.logs.read()
        return self._sessions() == sorted(self.logs.holders.values())

    def _lines_agree(self) -> bool:
        self.logs.read()
        chapter = self.book.chapter
        return not invariants.lines_match(chapter.asked, chapter.lines, self.book.known_faults())

    async def _compare(self, chapter: Chapter, began_s: float, started_s: float) -> Rest:
        faults = self.book.known_faults()
        seen = await asyncio.to_thread(self.world.engine.take_ended)
        excess = invariants.over_limits(_spans(seen, chapter), Limits(chapter.limits), faults)
        findings = [
            *excess.findings,
            *invariants.lines_match(chapter.asked, chapter.lines, faults),
            *invariants.answers_explained(chapter.asked, faults),
            *invariants.reclaims_explained(chapter.reclaims, faults),
            *invariants.killed_reclaimed(chapter.killed, chapter.reclaims, faults),
            *invariants.words_explained(chapter.words, faults),
        ]
        for name in REPLICAS:
            holder = self.logs.holders[name]
            counted = await self._counted(name)
            findings += invariants.metrics_match(holder, self.book.lines_of.get(holder, []), counted)
        self.book.findings += findings
        await self._agrees_with_the_command_line()
        self._limits_are_as_wanted()
        vitals = self._vitals()
        now_s = time.monotonic()
        return Rest(
            at_s=began_s - started_s,
            took_s=now_s - began_s,
            asked=chapter.asked,
            lines=chapter.lines,
            excess=excess,
            vitals=vitals,
            engine_requests=len(seen),
            max_open=_most_together(seen),
            reasserted=Counter(w.fields["cause"] for w in chapter.words if w.kind == "lease_reasserted"),
            reclaimed=len(chapter.reclaims),
            longest_gap_s=_longest_gap_s(seen),
            strict_s=faults.free_s(APART, chapter.began_s, began_s),
        )

    async def _counted(self, name: str) -> Mapping[tuple[str, str], float]:
        text = (await fetch(self.world.url(name), "/metrics", patience_s=120)).body.decode()
        return {(m["metric"], m["label"]): float(m["count"]) for m in COUNTED.finditer(text)}

    async def _agrees_with_the_command_line(self) -> None:
        """`tenure fleets --json` and each replica's admin API say what Redis says: nothing runs."""
        config = str(self.world.configs[REPLICAS[0]])
        command = [sys.executable, "-m", "services.cli", "fleets", "--json", "--config", config]
        printed = await asyncio.to_thread(
            subprocess.run, command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
        )
        said = [("tenure fleets", json.loads(printed.stdout)["fleets"][0])]
        said += [
            (name, await patiently(self.world.admin(name).ok, "GET", "/fleets/demo")) for name in REPLICAS
        ]
        for who, state in said:
            pools = state["pools"]
            groups = [pools["total"], pools["cold"], *pools["tenants"].values(), *pools["engines"].values()]
            # The command line shows no line of its own with the fleets.
            others = state.get("waiting", 0) + state.get("over_commit", 0)
            busy = sum(pool["in_use"] for pool in groups) + others
            if busy or state["gateways"] != len(REPLICAS):
                self.book.find("rest", f"{who} sees {state}")

    def _limits_are_as_wanted(self) -> None:
        fields = whole_numbers(self.world.redis.cli("HGETALL", LIMITS))
        for name, values in self.officer.wanted.items():
            if fields.get(name) not in values:
                self.book.find("limits", f"{name} is {fields.get(name)}, wanted one of {sorted(values)}")

    def _vitals(self) -> dict[str, Vitals]:
        processes = {**self.world.gateways, **self.world.reapers}
        found = {name: _vitals_of(process.pid) for name, process in processes.items()}
        for name, process in processes.items():
            first = self.fds_at_start.setdefault(process.pid, found[name].fds)
            if found[name].fds > first + POOLED_FDS:
                self.book.find("descriptors", f"{name} has {found[name].fds} open, {first} at first")
        return {**found, "redis": _vitals_of(self.world.redis.pid)}


def _vitals_of(pid: int) -> Vitals:
    proc = Path(f"/proc/{pid}")
    status = dict(line.split(":", 1) for line in (proc / "status").read_text().splitlines())
    rss_kib, threads = int(status["VmRSS"].split()[0]), int(status["Threads"])
    return Vitals(rss_kib, len(list((proc / "fd").iterdir())), threads)


def _spans(seen: list[Seen], chapter: Chapter) -> list[Span]:
    classes = {str(line.fields["client_request_id"]): line.fields["class"] for line in chapter.lines}
    spans = []
    for one in seen:
        asked = one.header("x-client-request-id") or "nobody."
        closed_s = one.closed_at if one.closed_at is not None else time.monotonic()
        spans.append(Span(asked.partition(".")[0], classes.get(asked), one.opened_at, closed_s))
    return spans


def _longest_gap_s(seen: list[Seen]) -> float:
    opened = [one.opened_at for one in seen]
    return max((after - before for before, after in pairwise(opened)), default=0.0)


def _most_together(seen: list[Seen]) -> int:
    moves = [(one.opened_at, 1) for one in seen]
    moves += [(one.closed_at, -1) for one in seen if one.closed_at is not None]
    level = most = 0
    for _, move in sorted(moves):
        level += move
        most = max(most, level)
    return most
