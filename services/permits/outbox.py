"""What is still to be told to Redis, in order. Appending never waits; one task flushes.

Releases, downgrades and evidence are facts about the past: they may be sent late and twice. The first two
are kept until Redis acknowledged them; evidence is dropped when Redis does not take it. An outbox that
overflows (Redis away for very long) forgets its oldest entries; their leases are not renewed either, so they
end by themselves.
"""

import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from services.permits.clock import monotonic
from services.permits.permit import Permit

ENTRIES_MAX: Final = 100_000


@dataclass(frozen=True, slots=True)
class Release:
    """All places of one permit go back."""

    permit: Permit
    at_s: float


@dataclass(frozen=True, slots=True)
class Downgrade:
    """The cold place of one permit goes back."""

    permit: Permit
    at_s: float


@dataclass(frozen=True, slots=True)
class Evidence:
    """What an engine reported about prefixes: hash -> was cached."""

    fleet: str
    engine: str
    prefixes: Mapping[str, bool]
    at_s: float


Entry = Release | Downgrade | Evidence


def fleet_of(entry: Entry) -> str:
    """Return the fleet that an entry belongs to."""
    return entry.fleet if isinstance(entry, Evidence) else entry.permit.fleet


class Outbox:
    """A bounded, ordered, thread-safe queue with one reader."""

    def __init__(self, wake: Callable[[], None]) -> None:
        """`wake` is called after an append to an empty outbox; it must be thread-safe and quick."""
        self._entries: deque[Entry] = deque(maxlen=ENTRIES_MAX)
        self._lock = threading.Lock()
        self._wake = wake

    def append(self, entry: Entry) -> None:
        """Add an entry; safe from any thread, never waits."""
        with self._lock:
            first = not self._entries
            self._entries.append(entry)
        if first:
            self._wake()

    def take_run(self, most: int) -> list[Entry]:
        """Take the oldest entries of one kind and fleet, at most `most`: what one call can carry in order."""
        run: list[Entry] = []
        with self._lock:
            while self._entries and len(run) < most:
                entry = self._entries[0]
                if run and (type(entry) is not type(run[0]) or fleet_of(entry) != fleet_of(run[0])):
                    break
                run.append(self._entries.popleft())
                if isinstance(entry, Evidence):
                    break
        return run

    def put_back(self, run: list[Entry]) -> None:
        """Return a run that was not acknowledged to the front."""
        with self._lock:
            room = ENTRIES_MAX - len(self._entries)
            self._entries.extendleft(reversed(run[-room:] if room else []))

    def drop_evidence(self) -> None:
        """Forget all evidence: it is advice, and what Redis does not take must not block the rest."""
        with self._lock:
            kept = [entry for entry in self._entries if not isinstance(entry, Evidence)]
            self._entries.clear()
            self._entries.extend(kept)

    def age_s(self) -> float:
        """Return how long the oldest entry has waited; 0 when there is none."""
        with self._lock:
            return monotonic() - self._entries[0].at_s if self._entries else 0.0

    def __len__(self) -> int:
        """Return how many entries wait."""
        return len(self._entries)
