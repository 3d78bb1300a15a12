"""Those of this process who stand in line. The order is Redis's; here is only whom to wake.

Written by the event loop, read by the ticker's thread; news is delivered in the event loop.
"""

import asyncio
import threading
from collections.abc import Iterable

from services.permits.model import Cut, Granted, Unknown

News = Granted | Cut | Unknown


class Waiters:
    """A thread-safe table of lease id -> the future of whoever waits for it."""

    def __init__(self) -> None:
        """Start empty."""
        self._lock = threading.Lock()
        self._fleets: dict[str, dict[str, asyncio.Future[News]]] = {}

    def join(self, fleet: str, lease: str) -> "asyncio.Future[News]":
        """Begin to wait; the caller must `leave`, whatever happens."""
        future: asyncio.Future[News] = asyncio.get_running_loop().create_future()
        with self._lock:
            self._fleets.setdefault(fleet, {})[lease] = future
        return future

    def leave(self, fleet: str, lease: str) -> None:
        """Wait no longer."""
        with self._lock:
            self._fleets.get(fleet, {}).pop(lease, None)

    def of(self, fleet: str) -> list[str]:
        """Return the ids of those who wait in one fleet."""
        with self._lock:
            return list(self._fleets.get(fleet, {}))

    def tell(self, fleet: str, news: Iterable[tuple[str, News]]) -> list[tuple[str, News]]:
        """Wake those concerned, in the event loop; returns the news that nobody here waited for."""
        unheard = []
        for lease, one in news:
            future = self._fleets.get(fleet, {}).get(lease)
            if future is None:
                unheard.append((lease, one))
            elif not future.done():
                future.set_result(one)
        return unheard
