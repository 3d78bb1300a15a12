"""What a tick tells Redis of each lease is its own, however the leases are put together on the way."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from services.permits.model import Gone, Held

if TYPE_CHECKING:
    from services.permits.store import Store
    from tests.permits.scene import Seen

HOLDER = "g1~a1"


def held(number: int, tenant: str, class_: str, engine: str) -> Held:
    return Held(
        lease=f"{HOLDER}~{number}",
        request_id=f"request-{number}",
        tenant=tenant,
        class_="cold" if class_ == "cold" else "warm",
        engine=engine,
        phase="decode" if number % 3 else "prefill",
        acquired_at=1_700_000_000_000 + number,
        cold=class_ == "cold",
    )


async def test_records_that_redis_lost_are_written_as_their_holder_told(store: Store, seen: Seen) -> None:
    """Tenants, engines and classes take turns, so that no two neighbours belong together."""
    kinds = list(itertools.product(("cold", "warm"), ("e1", "e2"), ("acme", "birch", "cedar")))
    leases = [
        held(number, tenant, class_, engine)
        for number, (class_, engine, tenant) in enumerate(2 * kinds, start=1)
    ]
    await store.tick("demo", holder=HOLDER, leases=leases, news=frozenset())
    before = await store.inspect("demo")
    seen.client.delete(*(store.keys("demo").lease(one.lease) for one in leases[1::2]))
    await store.tick("demo", holder=HOLDER, leases=leases, news=frozenset({leases[0].lease}))
    rows = {row.lease: row for row in await store.inspect("demo")}
    assert rows.keys() == {row.lease for row in before} == {one.lease for one in leases}
    for one in leases:
        row = rows[one.lease]
        told = (row.request_id, row.tenant, row.class_, row.engine, row.phase, row.acquired_at)
        meant = (one.request_id, one.tenant, one.class_, one.engine, one.phase, one.acquired_at)
        assert told == meant
    cold = seen.client.zrange(store.keys("demo").cold, 0, -1)
    assert set(cold) == {one.lease for one in leases if one.cold}
    gone = [Gone(one.lease, one.tenant, one.engine) for one in leases]
    assert await store.release("demo", gone) == len(leases)
