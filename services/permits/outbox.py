"""What is still to be told to Redis. Appending never waits; see `flush.py` for who tells.

Releases, downgrades and evidence are facts about the past: they may be sent late and twice, and those of
different kinds in any order (a downgrade after the release of the same permit finds nothing to give back).
So each kind waits in a queue of its own, and a busy gateway sends many at once: releases first, because
somebody may be waiting for the place, and evidence last. Releases and downgrades are kept until Redis
acknowledged them; evidence is dropped when Redis does not take it. An outbox that overflows (Redis away for
very long) forgets its oldest entries; their leases are not renewed either, so they end by themselves.
"""

import threading
from collections import deque
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from services.permits.clock import monotonic
from services.permits.permit import Permit

ENTRIES_MAX: Final = 100_000
# What one call about evidence carries: a script that runs for milliseconds makes every request wait.
PREFIXES_MAX: Final = 500


class Release(msgspec.Struct, frozen=True, eq=False):
    """All places of one permit go back."""

    permit: Permit
    at_s: float


class Downgrade(msgspec.Struct, frozen=True, eq=False):
    """The cold place of one permit goes back."""

    permit: Permit
    at_s: float


class Evidence(msgspec.Struct, frozen=True, eq=False):
    """What an engine reported about prefixes: hash -> was cached."""

    engine: str
    prefixes: Mapping[str, bool]
    at_s: float


Entry = Release | Downgrade | Evidence
KINDS: Final = (Release, Downgrade, Evidence)


class Outbox:
    """A bounded, thread-safe set of queues, of one fleet."""

    def __init__(self, fleet: str, on_filled: Callable[[], None]) -> None:
        """`on_filled`, which may be replaced, is called after an append to an empty outbox; it is quick."""
        self.fleet = fleet
        self._queues: dict[type[Entry], deque[Entry]] = {kind: deque() for kind in KINDS}
        self._count = 0
        self._lock = threading.Lock()
        self.on_filled = on_filled

    def append(self, entry: Entry) -> None:
        """Add an entry; never waits."""
        with self._lock:
            first = self._count == 0
            self._queues[type(entry)].append(entry)
            self._count += 1
            if self._count > ENTRIES_MAX:
                self._shrink()
        if first:
            self.on_filled()

    def take_run(self, most: int) -> list[Entry]:
        """Take the oldest entries of one kind, at most `most`: what one call can carry."""
        with self._lock:
            for queue in self._queues.values():
                if queue:
                    run = _head(queue, most)
                    self._count -= len(run)
                    return run
        return []

    def put_back(self, run: list[Entry]) -> None:
        """Return a run that was not acknowledged to the front of its queue."""
        with self._lock:
            self._queues[type(run[0])].extendleft(reversed(run))
            self._count += len(run)
            self._shrink()

    def drop_evidence(self) -> None:
        """Forget all evidence: it is advice, and what Redis does not take must not block the rest."""
        with self._lock:
            queue = self._queues[Evidence]
            self._count -= len(queue)
            queue.clear()

    def age_s(self) -> float:
        """Return how long the oldest entry has waited; 0 when there is none."""
        with self._lock:
            waiting = [_since(queue) for queue in self._queues.values() if queue]
            return monotonic() - min(waiting) if waiting else 0.0

    def __len__(self) -> int:
        """Return how many entries wait."""
        return self._count

    def _shrink(self) -> None:
        while self._count > ENTRIES_MAX:
            min((queue for queue in self._queues.values() if queue), key=_since).popleft()
            self._count -= 1


def _since(queue: deque[Entry]) -> float:
    return queue[0].at_s


def _head(queue: deque[Entry], most: int) -> list[Entry]:
    """Take what one call can carry from the front of a queue; evidence of one engine at a time."""
    run = [queue.popleft()]
    prefixes = len(run[0].prefixes) if isinstance(run[0], Evidence) else 0
    while queue and len(run) < most:
        entry = queue[0]
        if isinstance(entry, Evidence):
            prefixes += len(entry.prefixes)
            if prefixes > PREFIXES_MAX or entry.engine != getattr(run[0], "engine", ""):
                break
        run.append(queue.popleft())
    return run
