"""What the tests of administration share: two fleets, and requests that run in them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from services.permits.model import Demand, Gone

if TYPE_CHECKING:
    from services.permits.store import Store

LIMITS: Final = {"total": 4, "cold": 4, "tenant_default": 3, "line_max": 9, "engine:e1": 8}


async def everything(store: Store) -> dict[str, Any]:
    """Return all limits, keys and tenants."""
    return {
        "limits": {fleet: await store.limit_fields(fleet) for fleet in await store.fleets()},
        "keys": (await store.key_copy())[1],
        "tenants": await store.tenants(),
    }


async def start(store: Store, lease: str, tenant: str = "acme", *, fleet: str = "demo") -> None:
    demand = Demand(fleet=fleet, tenant=tenant, request_id=lease.rpartition("~")[2], engines=("e1",))
    await store.acquire(demand, lease=lease, holder=lease.rpartition("~")[0])


async def end(store: Store, *leases: str, tenant: str = "acme", fleet: str = "demo") -> None:
    await store.release(fleet, [Gone(lease=lease, tenant=tenant, engine="e1") for lease in leases])
