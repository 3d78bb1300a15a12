"""Sends one run of the outbox: entries of one kind and fleet, in one call."""

from collections.abc import Sequence

from services.permits.outbox import Downgrade, Entry, Evidence, Release, fleet_of
from services.permits.store import Store


async def flush_run(store: Store, run: Sequence[Entry]) -> None:
    """Tell Redis; raises Unavailable, and then the same run may be sent again."""
    fleet = fleet_of(run[0])
    match run[0]:
        case Release():
            await store.release(fleet, [entry.permit.gone() for entry in run if isinstance(entry, Release)])
        case Downgrade():
            await store.downgrade(fleet, [entry.permit.id for entry in run if isinstance(entry, Downgrade)])
        case Evidence(engine=engine, prefixes=prefixes):
            await store.witness(fleet, engine, prefixes)
