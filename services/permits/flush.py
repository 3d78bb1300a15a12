"""Sends what waits in the outbox, in runs: entries of one kind and fleet, in one call."""

from collections.abc import Sequence

from services.permits.errors import OutOfMemory
from services.permits.outbox import Downgrade, Entry, Evidence, Outbox, Release
from services.permits.permit import Permit
from services.permits.states import Move, State
from services.permits.store import LEASES_PER_RELEASE_MAX, Store


async def flush_next(store: Store, outbox: Outbox) -> list[Entry]:
    """Send the next run and return it, empty when nothing waits; what could not be sent waits again.

    Evidence for which Redis has no memory is forgotten as if it had been sent: Redis is not away.

    Raises Unavailable.
    """
    run = outbox.take_run(LEASES_PER_RELEASE_MAX)
    if not run:
        return run
    try:
        await flush_run(store, outbox.fleet, run)
    except BaseException as error:
        if isinstance(run[0], Evidence):
            # At maxmemory it is refused while releases and ticks, which come after it, would pass.
            outbox.drop_evidence()
            if isinstance(error, OutOfMemory):
                return run
        else:
            outbox.put_back(run)
        raise
    return run


def freed_of(run: Sequence[Entry]) -> list[Permit]:
    """Return the permits of a run whose places are free now."""
    return [entry.permit for entry in run if isinstance(entry, Release)]


def tell_freed(permits: Sequence[Permit], at_s: float) -> None:
    """Tell permits, in their owners' loop, that Redis acknowledged their release at `at_s`, monotonic."""
    for permit in permits:
        if permit.state is State.CLOSING:
            permit.move(Move.FREED)
        on_released, permit.on_released = permit.on_released, None
        if on_released is not None:
            on_released(at_s)


async def flush_run(store: Store, fleet: str, run: Sequence[Entry]) -> None:
    """Tell Redis; raises Unavailable, and then the same run may be sent again."""
    match run[0]:
        case Release():
            await store.release(fleet, [gone for permit in freed_of(run) for gone in permit.gone()])
        case Downgrade():
            await store.downgrade(fleet, [entry.permit.id for entry in run if isinstance(entry, Downgrade)])
        case Evidence(engine=engine):
            # The later report of an engine holds.
            prefixes = {
                prefix: cached
                for entry in run
                if isinstance(entry, Evidence)
                for prefix, cached in entry.prefixes.items()
            }
            await store.witness(fleet, engine, prefixes)
