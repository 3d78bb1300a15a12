"""One look at everything a fleet's line depends on, and what should follow from it, in plain Python."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.lua.fleet import RawFleet

TENANTS: Final = ("a", "b", "c")
ENGINES: Final = ("e1", "e2")


@dataclass(frozen=True)
class Waiter:
    """One who stands in line. `live` says whether its gateway ticks and its patience lasts."""

    lease: str
    tenant: str
    class_: str
    engines: tuple[str, ...]
    warm: tuple[str, ...]
    ticket: int
    alive: bool


@dataclass(frozen=True)
class View:
    """Redis at one instant. `pools` has the live members only."""

    now: int
    learning: bool
    limits: dict[str, int]
    pools: dict[str, frozenset[str]]
    waiters: dict[str, Waiter]

    @property
    def live(self) -> frozenset[str]:
        return self.pools["total"]

    def limit(self, pool: str) -> int:
        """Return the limit of a pool; a tenant without one of its own has the default."""
        default = self.limits["tenant_default"] if pool.startswith("tenant:") else 10**9
        return self.limits.get(pool, default)

    def room(self, pool: str) -> bool:
        return len(self.pools[pool]) < self.limit(pool)

    def fits(self, waiter: Waiter) -> bool:
        """Say whether a permit could be granted to this waiter right now."""
        if self.learning or not waiter.alive or not self.room("total"):
            return False
        if not self.room(f"tenant:{waiter.tenant}"):
            return False
        if any(self.room(f"engine:{name}") for name in waiter.warm):
            return True
        return self.room("cold") and any(self.room(f"engine:{name}") for name in waiter.engines)

    def without(self, lease: str) -> View:
        """Return what it would be had this lease not been granted."""
        return replace(self, pools={pool: members - {lease} for pool, members in self.pools.items()})

    def share(self, tenant: str) -> int:
        """Return what a tenant holds for its weight."""
        return len(self.pools[f"tenant:{tenant}"]) * 1024 // self.limits.get(f"weight:{tenant}", 1)

    def queue(self, tenant: str, class_: str) -> list[Waiter]:
        """Return those of one tenant and class who live, the oldest first."""
        mine = [one for one in self.waiters.values() if (one.tenant, one.class_) == (tenant, class_)]
        return sorted((one for one in mine if one.alive), key=lambda one: one.ticket)

    def heads(self) -> Iterator[Waiter]:
        """Yield the oldest of each tenant and class."""
        for tenant in TENANTS:
            for class_ in ("warm", "cold"):
                yield from self.queue(tenant, class_)[:1]


def look(fleet: RawFleet) -> View:
    """Read everything in one round trip."""
    keys = fleet.keys
    names = ["total", "cold", *(f"tenant:{t}" for t in TENANTS), *(f"engine:{e}" for e in ENGINES)]
    queues = [f"{class_}:{tenant}" for class_ in ("warm", "cold") for tenant in TENANTS]
    with fleet.client.pipeline(transaction=True) as pipe:
        pipe.hgetall(keys.meta)
        pipe.hgetall(keys.limits)
        pipe.hgetall(keys.waiting)
        pipe.zrange(keys.gateways, 0, -1, withscores=True)
        for name in names:
            pipe.zrange(keys.pool(name), 0, -1, withscores=True)
        for queue in queues:
            pipe.zrange(keys.meta.replace("meta", f"line:queue:{queue}"), 0, -1, withscores=True)
        meta, limits, waiting, gateways, *sets = pipe.execute()
    now = int(meta["clock"])
    sessions = {holder for holder, until in gateways if until > now}
    members = [frozenset(lease for lease, expiry in found if expiry > now) for found in sets[: len(names)]]
    tickets = {lease: int(score) for found in sets[len(names) :] for lease, score in found}
    assert set(tickets) == set(waiting), "who has a place in a queue has a record, and the other way round"
    waiters = {}
    for lease, record in waiting.items():
        _, tenant, class_, deadline, _, _, engines, warm = record.split(" ")
        waiters[lease] = Waiter(
            lease=lease,
            tenant=tenant,
            class_=class_,
            engines=tuple(engines.split(",")),
            warm=() if warm == "-" else tuple(warm.split(",")),
            ticket=tickets[lease],
            alive=lease.rpartition("~")[0] in sessions and int(deadline) > now,
        )
    return View(
        now=now,
        learning=int(meta["learning_until"]) > now,
        limits={field: int(text) for field, text in limits.items()},
        pools=dict(zip(names, members, strict=True)),
        waiters=waiters,
    )
