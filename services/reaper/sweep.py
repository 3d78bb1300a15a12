"""One pass over every fleet: settle, repair ghosts, report what was taken back.

The reap script does each fleet's part atomically and hands every reclaimed lease to exactly one
caller, so any number of reapers may sweep at once and none of them has to.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from services.permits.model import Reaped, Reclaim
from services.reaper.survey import Seen, Survey

# What one script call is asked to compare; keeps its time near that of a tick.
NAMES_PER_CALL: Final = 200
# A pass over one fleet ends after this many calls even if the script still finds work.
CALLS_PER_FLEET: Final = 100


class Leases(Protocol):
    """The part of the store that a sweep uses."""

    async def reap(self, fleet: str, pools: Sequence[str], records: Sequence[str]) -> Reaped:
        """Settle one fleet and repair the named pools and records."""

    async def fleets(self) -> list[str]:
        """Return the fleets that Redis knows."""


class Reporter(Protocol):
    """Told at once what a sweep did, so that a crash between two fleets loses no report."""

    def reclaimed(self, fleet: str, lease: Reclaim) -> None:
        """One lease was taken back by this pass."""

    def fleet_done(self, done: "FleetPass") -> None:
        """One fleet's part of the pass is over."""


@dataclass(frozen=True, slots=True)
class FleetPass:
    """What one pass did in one fleet. `drift` counts records and sets that disagreed."""

    fleet: str
    reclaimed: tuple[Reclaim, ...]
    settled: int
    drift: int


class Sweep:
    """Sweeps the configured fleets and those that Redis knows besides.

    A pass whose every fleet failed or succeeded is over either way: one fleet that cannot be
    reached never keeps the others from being swept. The failures are raised together at the end.
    """

    def __init__(self, leases: Leases, survey: Survey, *, fleets: Sequence[str], reporter: Reporter) -> None:
        """Sweep nothing yet."""
        self._leases = leases
        self._survey = survey
        self._fleets = fleets
        self._reporter = reporter

    async def once(self, *, whole: bool = False) -> list[FleetPass]:
        """Make one pass; with `whole`, compare every key instead of the next few.

        Raises what the store raises when Redis is away, or an ExceptionGroup when only some fleets
        failed. Cancelled, it stops between two script calls.
        """
        failures: list[Exception] = []
        known: list[str] = []
        seen: dict[str, Seen] = {}
        # On a Cluster the names lie on one shard; those that are configured are swept without it.
        try:
            known = await self._leases.fleets()
            seen = await self._survey.look(whole=whole)
        except Exception as error:  # noqa: BLE001  (raised below, once the fleets are swept)
            failures.append(error)
        fleets = sorted({*self._fleets, *known})
        passes: list[FleetPass] = []
        for fleet in fleets:
            try:
                passes.append(await self._fleet(fleet, seen.get(fleet, Seen())))
            except Exception as error:  # noqa: BLE001  (raised below, once the others are swept)
                error.add_note(f"fleet {fleet}")
                failures.append(error)
        if failures:
            raise ExceptionGroup("some fleets could not be swept", failures)
        return passes

    async def _fleet(self, fleet: str, seen: Seen) -> FleetPass:
        """Reap one fleet until the script finds no more work, a bounded number of times."""
        reclaimed: list[Reclaim] = []
        settled = drift = calls = 0
        names = _portions(seen)
        while True:
            portion = next(names, None)
            pools, records = portion or ((), ())
            reaped = await self._leases.reap(fleet, pools, records)
            for lease in reaped.reclaimed:
                self._reporter.reclaimed(fleet, lease)
            reclaimed += reaped.reclaimed
            settled += reaped.settled
            drift += reaped.drift
            calls += 1
            exhausted = calls >= CALLS_PER_FLEET and not portion
            if exhausted or not (portion or reaped.more):
                break
        done = FleetPass(fleet, tuple(reclaimed), settled, drift)
        self._reporter.fleet_done(done)
        return done


def _portions(seen: Seen) -> Iterator[tuple[Sequence[str], Sequence[str]]]:
    """Cut the seen names into arguments of single calls: pools first, then records."""
    pools, records = sorted(seen.pools), sorted(seen.records)
    for start in range(0, len(pools), NAMES_PER_CALL):
        yield pools[start : start + NAMES_PER_CALL], ()
    for start in range(0, len(records), NAMES_PER_CALL):
        yield (), records[start : start + NAMES_PER_CALL]
