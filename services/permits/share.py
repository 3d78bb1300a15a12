"""Admission while Redis is away, for fleets with `redis_loss = "share"`.

Each gateway admits up to floor(limit / live gateways last seen) in every pool, what it already runs included.
Summed over those gateways that is never more than the limit. So an outage over-admits only by gateways that
were added during it, and by what a gateway ran above its own share when Redis went: that runs on, and the
others cannot know of it.
"""

from collections import Counter
from collections.abc import Iterable

from services.permits.model import Demand, Full, Granted, Stamp
from services.permits.permit import Permit
from services.permits.renewal import FleetView


def admit(demand: Demand, view: FleetView, held: Iterable[Permit]) -> Granted | Full:
    """Decide from this process's own memory. Always cold: evidence cannot be asked for."""
    stamp = Stamp(epoch=view.epoch, grant=view.grant)
    limits = view.limits
    pools: Counter[str] = Counter()
    for permit in held:
        pools["total"] += 1
        pools["cold"] += permit.cold
        pools[f"tenant:{permit.tenant}"] += 1
        pools[f"engine:{permit.engine}"] += 1
    total = limits.get("total", 0)
    tenant_pool = f"tenant:{demand.tenant}"
    for pool, limit in (
        (tenant_pool, limits.get(tenant_pool, limits.get("tenant_default", total))),
        ("total", total),
        ("cold", limits.get("cold", 0)),
    ):
        share = limit // view.gateways
        if pools[pool] >= share:
            return Full(pool=pool, in_use=pools[pool], limit=share, stamp=stamp)
    loads = {name: pools[f"engine:{name}"] for name in demand.engines}
    shares = {name: limits.get(f"engine:{name}", total) // view.gateways for name in demand.engines}
    fit = [name for name in demand.engines if loads[name] < shares[name]]
    engine = min(fit or demand.engines, key=loads.__getitem__)
    if not fit:
        return Full(pool=f"engine:{engine}", in_use=loads[engine], limit=shares[engine], stamp=stamp)
    return Granted(class_="cold", engine=engine, stamp=stamp)
