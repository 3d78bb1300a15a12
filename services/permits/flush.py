"""Sends one run of the outbox: entries of one kind and fleet, in one call."""

from collections.abc import Sequence

from services.permits.outbox import Downgrade, Entry, Evidence, Release, fleet_of
from services.permits.store import Store


async def flush_run(store: Store, run: Sequence[Entry]) -> None:
    """Tell Redis; raises Unavailable, and then the same run may be sent again."""
    fleet = fleet_of(run[0])
    match run[0]:
        case Release():
            releases = (entry.permit for entry in run if isinstance(entry, Release))
            await store.release(fleet, [gone for permit in releases for gone in permit.gone()])
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
