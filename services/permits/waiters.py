"""Those of this process who stand in line. The order is Redis's; here is only whom to wake.

Written by the event loop, read by the ticker's thread; news is delivered in the event loop.
"""

import asyncio
import threading
from collections.abc import Iterable
from dataclasses import dataclass

from services.permits.clock import monotonic
from services.permits.model import Cut, Granted, Stamp, Unknown


@dataclass(frozen=True, slots=True)
class Handed:
    """A grant that the answer to a tick told of. `sent_s`: its lease was lengthened by a call sent then."""

    granted: Granted
    sent_s: float


# A bare Granted came by a message, which may have been on its way for any time.
News = Granted | Handed | Cut | Unknown


class Waiter:
    """One who stands in line, and until when it is known to have stood there."""

    __slots__ = ("_still", "future")

    def __init__(self) -> None:
        """Begin before the call that asks for a place: its grant may be heard of before its answer."""
        self.future: asyncio.Future[News] = asyncio.get_running_loop().create_future()
        # When the last call was sent that found it in line, and what it was answered. One value, since two
        # threads write it.
        self._still: tuple[float, Stamp | None] = (monotonic(), None)

    def still(self, sent_s: float, stamp: Stamp) -> None:
        """Note that a call which was sent then found it in line. A call under way may answer late."""
        if sent_s >= self._still[0]:
            self._still = (sent_s, stamp)

    def granted_since_s(self, news: Granted | Handed) -> float | None:
        """Return when the grant happened at the earliest; None: an old message, about a grant that ended."""
        if isinstance(news, Handed):
            return news.sent_s
        sent_s, stamp = self._still
        # One whose lease ran out stands in line again under the same id.
        is_new = stamp is None or (news.stamp.epoch == stamp.epoch and news.stamp.grant > stamp.grant)
        return sent_s if is_new else None

    def wait_on(self) -> None:
        """Forget news that was not good enough."""
        self.future = asyncio.get_running_loop().create_future()


class Waiters:
    """A thread-safe table of lease id -> who waits for it."""

    def __init__(self) -> None:
        """Start empty."""
        self._lock = threading.Lock()
        self._fleets: dict[str, dict[str, Waiter]] = {}

    def join(self, fleet: str, lease: str) -> Waiter:
        """Begin to wait; the caller must `leave`, whatever happens."""
        waiter = Waiter()
        with self._lock:
            self._fleets.setdefault(fleet, {})[lease] = waiter
        return waiter

    def leave(self, fleet: str, lease: str) -> None:
        """Wait no longer."""
        with self._lock:
            self._fleets.get(fleet, {}).pop(lease, None)

    def of(self, fleet: str) -> list[str]:
        """Return the ids of those who wait in one fleet."""
        with self._lock:
            return list(self._fleets.get(fleet, {}))

    def still(self, fleet: str, leases: Iterable[str], sent_s: float, stamp: Stamp) -> None:
        """Note who stood in line when a call that was sent at `sent_s` was carried out."""
        with self._lock:
            waiting = self._fleets.get(fleet, {})
            for lease in leases:
                if lease in waiting:
                    waiting[lease].still(sent_s, stamp)

    def tell(self, fleet: str, news: Iterable[tuple[str, News]]) -> list[tuple[str, News]]:
        """Wake those concerned, in the event loop; returns the news that nobody here waited for."""
        unheard = []
        for lease, one in news:
            waiter = self._fleets.get(fleet, {}).get(lease)
            if waiter is None:
                unheard.append((lease, one))
            elif not waiter.future.done():
                waiter.future.set_result(one)
        return unheard
