"""Every permit this process renews, by fleet. Written by the event loop, read by the ticker's thread."""

import threading
from collections.abc import Iterator

from services.permits.permit import Permit


class Holdings:
    """A thread-safe set of permits."""

    def __init__(self) -> None:
        """Start empty."""
        self._lock = threading.Lock()
        self._fleets: dict[str, dict[str, Permit]] = {}

    def add(self, permit: Permit) -> None:
        """Let the ticker renew this permit."""
        with self._lock:
            self._fleets.setdefault(permit.fleet, {})[permit.id] = permit

    def remove(self, permit: Permit) -> None:
        """Let it be; nothing when it is not here."""
        with self._lock:
            self._fleets.get(permit.fleet, {}).pop(permit.id, None)

    def get(self, fleet: str, lease: str) -> Permit | None:
        """Return a permit by its id; None when this process does not hold it."""
        with self._lock:
            return self._fleets.get(fleet, {}).get(lease)

    def of(self, fleet: str) -> list[Permit]:
        """Return the permits of one fleet at this instant."""
        with self._lock:
            return list(self._fleets.get(fleet, {}).values())

    def __iter__(self) -> Iterator[Permit]:
        """Iterate over all permits of this instant."""
        with self._lock:
            permits = [permit for held in self._fleets.values() for permit in held.values()]
        return iter(permits)

    def __len__(self) -> int:
        """Return how many there are."""
        with self._lock:
            return sum(map(len, self._fleets.values()))
