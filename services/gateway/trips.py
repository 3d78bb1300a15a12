"""All requests of this gateway that are not yet in the log, and how they end together."""

import asyncio
import os
from collections.abc import Iterator
from typing import Final

from starlette.types import Scope

from services.gateway.budgets import Watch
from services.gateway.metrics import Metrics
from services.gateway.records import Journal
from services.gateway.trip import Trip

# With Redis away for long, the oldest ends are logged without the moment of their release.
UNRELEASED_MAX: Final = 5_000
# Of one length for all: engines that match ids by their beginning must not find two.
_ID_BYTES: Final = 16
# So many at a time: asking the kernel for each costs a hundredth of a request.
_IDS_DRAWN: Final = 64


class Trips:
    """The books. A trip enters by `begin`, and leaves when its release is acknowledged and logged."""

    def __init__(self, journal: Journal, metrics: Metrics, *, grace_s: float) -> None:
        """`grace_s` is how long a lease may outlive the deadline of its request: one tick."""
        self.journal = journal
        self.ids = _new_ids()
        self.metrics = metrics
        self.grace_s = grace_s
        self.watch = Watch()
        self.draining = False
        self._running: set[Trip] = set()
        self._unreleased: dict[Trip, None] = {}
        self._empty = asyncio.Event()
        self._empty.set()

    def begin(self, scope: Scope) -> Trip:
        """Open the record of a request."""
        trip = Trip(scope, self)
        self._running.add(trip)
        self._empty.clear()
        return trip

    def left(self, trip: Trip) -> None:
        """Count the end, and log it, now or when Redis has acknowledged the release."""
        self._running.discard(trip)
        if not self._running:
            self._empty.set()
        figures = trip.figures
        if trip.fleet is None or figures is None:
            self._log(trip)
            return
        figures.ends[trip.reason or "internal_error"].inc()
        if trip.first_token_s:
            figures.decode_s.observe(max(0.0, trip.last_token_s - trip.first_token_s))
        trip.fleet.pace.held(trip.ended_s - trip.admitted_s)
        self._unreleased[trip] = None
        if trip.released_s:
            self.released(trip)
        elif len(self._unreleased) > UNRELEASED_MAX:
            self._log(next(iter(self._unreleased)))

    def released(self, trip: Trip) -> None:
        """Note that the place is free in Redis; the trip itself may still be ending."""
        if trip in self._unreleased and trip.figures is not None:
            trip.figures.release_s.observe(max(0.0, trip.released_s - trip.ended_s))
            self._log(trip)

    def _log(self, trip: Trip) -> None:
        self._unreleased.pop(trip, None)
        self.journal.note(trip.record())

    def drain(self) -> None:
        """Admit nothing more: requests without a permit are refused at once, the others run on."""
        self.draining = True
        for trip in tuple(self._running):
            if trip.permit is None:
                trip.cut("shutdown")
            else:
                trip.permit.phase = "draining"

    def cut_all(self) -> None:
        """End every request as `shutdown`."""
        for trip in tuple(self._running):
            trip.cut("shutdown")

    async def wait_empty(self) -> None:
        """Return when no request runs."""
        await self._empty.wait()

    def give_up_waiting(self) -> None:
        """Log the requests whose release Redis never acknowledged; their leases lapse by themselves."""
        for trip in tuple(self._unreleased):
            self._log(trip)


def _new_ids() -> Iterator[str]:
    """Yield ids for requests, each of which occurs once in the world."""
    digits = 2 * _ID_BYTES
    while True:
        drawn = os.urandom(_IDS_DRAWN * _ID_BYTES).hex()
        for at in range(0, len(drawn), digits):
            yield drawn[at : at + digits]
