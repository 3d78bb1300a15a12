"""What is remembered between two rests, by whoever saw it; checked and forgotten at each rest."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.soak.world import TAIL_S
from tests.support.history import Asked, Fault, Faults, Finding, Line, Told

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping


@dataclass
class Chapter:
    """One stretch of load and faults, from one rest to the next."""

    began_s: float = field(default_factory=time.monotonic)
    asked: list[Asked] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)
    words: list[Told] = field(default_factory=list)
    reclaims: list[Told] = field(default_factory=list)
    limits: list[tuple[float, Mapping[str, int]]] = field(default_factory=list)
    # holder -> when it was killed, and what it held then
    killed: dict[str, tuple[float, Collection[str]]] = field(default_factory=dict)


@dataclass
class Book:
    """Everything that the parts of the soak write down."""

    faults: list[Fault] = field(default_factory=list)
    chapter: Chapter = field(default_factory=Chapter)
    findings: list[Finding] = field(default_factory=list)
    # Lines of living gateways since their start: holder -> lines, for what they count.
    lines_of: dict[str, list[Line]] = field(default_factory=dict)
    # Requests that somebody was asked to end, by lease or request id.
    stopped: set[str] = field(default_factory=set)
    deeds: Counter[str] = field(default_factory=Counter)
    # Of the fleet's event stream, by kind.
    events: Counter[str] = field(default_factory=Counter)

    def begin(self, kind: str, target: str | None = None) -> Fault:
        """Note that a fault begins now; whoever injects it sets its end."""
        fault = Fault(kind, target, time.monotonic())
        self.faults.append(fault)
        return fault

    def known_faults(self) -> Faults:
        """Return the faults so far, as the checker takes them."""
        return Faults(self.faults, TAIL_S)

    def find(self, check: str, what: str) -> None:
        """Note something that nothing explains."""
        self.findings.append(Finding(check, what))

    def turn_page(self) -> Chapter:
        """Return the chapter that ends, and begin the next one with the limits last seen."""
        ended, self.chapter = self.chapter, Chapter()
        self.chapter.limits += ended.limits[-1:]
        self.stopped.clear()
        return ended
