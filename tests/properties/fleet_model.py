"""What one fleet's scripts promise, in plain Python: no Redis, no clock of its own."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from services.permits.model import LeaseTimes


@dataclass
class Place:
    """One lease as Redis should know it. Overdue ones stay until something settles them."""

    tenant: str
    class_: str
    engine: str
    # Expiry of the cold place; 0 when there is none. A tick without it lets it run out by itself.
    cold_until: int
    expiry: int
    grant: int
    # Why somebody ended it; empty: nobody did.
    cut: str = ""


@dataclass(frozen=True)
class Facts:
    """One lease as its gateway believes it to be."""

    tenant: str
    class_: str
    engine: str
    cold: bool


@dataclass
class FleetModel:
    """Each method is one verb at lease clock `now`, and returns the reply without epoch and grant."""

    times: LeaseTimes
    limits: dict[str, int]
    places: dict[str, Place] = field(default_factory=dict)
    evidence: set[tuple[str, str]] = field(default_factory=set)
    # holder -> end of its session, and those that were told to drain.
    sessions: dict[str, int] = field(default_factory=dict)
    draining: set[str] = field(default_factory=set)
    learning_until: int = 0
    grant: int = 0
    # Every way into and out of `places`, so that they can be balanced.
    added: int = 0
    returned: int = 0
    reclaimed: list[str] = field(default_factory=list)

    def live(self, pool: str, now: int) -> int:
        """Count the pool's leases that have not run out."""
        return sum(
            place.cold_until > now
            if pool == "cold"
            else place.expiry > now and pool in ("total", f"tenant:{place.tenant}", f"engine:{place.engine}")
            for place in self.places.values()
        )

    def settle(self, now: int) -> None:
        overdue = [(place.expiry, lease) for lease, place in self.places.items() if place.expiry <= now]
        for _, lease in sorted(overdue):
            del self.places[lease]
            self.reclaimed.append(lease)

    def acquire(
        self, lease: str, tenant: str, engines: Sequence[str], prefixes: Sequence[str], now: int
    ) -> list[Any]:
        self.settle(now)
        if lease in self.places:
            place = self.places[lease]
            # Told again, it lasts anew; what has been given back, and what ran out, does not come back.
            until = now + self.times.provisional_ms
            place.expiry = max(place.expiry, until)
            place.cold_until = place.cold_until and max(place.cold_until, until)
            return ["GRANTED", place.class_, place.engine]
        if self.learning_until > now:
            return ["LEARNING", self.learning_until - now]
        limits = self.limits
        tenant_max = limits.get(f"tenant:{tenant}", limits["tenant_default"])
        for pool, limit in ((f"tenant:{tenant}", tenant_max), ("total", limits["total"])):
            if self.live(pool, now) >= limit:
                return ["FULL", pool, self.live(pool, now), limit]
        picked = self._pick(engines, prefixes, now)
        if picked is None:
            loads = [(self.live(f"engine:{name}", now), at) for at, name in enumerate(engines)]
            pool = f"engine:{engines[min(loads)[1]]}"
            return ["FULL", pool, min(loads)[0], limits[pool]]
        warm = any((picked, prefix) in self.evidence for prefix in prefixes)
        if not warm and self.live("cold", now) >= limits["cold"]:
            return ["FULL", "cold", self.live("cold", now), limits["cold"]]
        self.grant += 1
        self.added += 1
        class_ = "warm" if warm else "cold"
        expiry = now + self.times.provisional_ms
        cold_until = 0 if warm else expiry
        self.places[lease] = Place(tenant, class_, picked, cold_until, expiry, self.grant)
        return ["GRANTED", class_, picked]

    def _pick(self, engines: Sequence[str], prefixes: Sequence[str], now: int) -> str | None:
        """Warm before cold, then the fewest live permits, then the caller's order."""
        fit = [
            (not any((name, prefix) in self.evidence for prefix in prefixes), load, at)
            for at, name in enumerate(engines)
            if (load := self.live(f"engine:{name}", now)) < self.limits[f"engine:{name}"]
        ]
        return engines[min(fit)[2]] if fit else None

    def tick(self, holder: str, running: dict[str, Facts], now: int) -> tuple[list[str], dict[str, str]]:
        """Return the leases that were missing, and what is to end. `running` is what the gateway believes."""
        self.sessions[holder] = now + 3 * self.times.tick_ms
        self.sessions = {name: until for name, until in self.sessions.items() if until > now}
        self.draining &= set(self.sessions)
        cut = {"*": "drain"} if holder in self.draining else {}
        cut |= {
            lease: place.cut
            for lease in running
            if (place := self.places.get(lease)) is not None and place.cut
        }
        missing = []
        expiry = now + self.times.ttl_ms
        for lease, facts in running.items():
            known = self.places.get(lease)
            if known is None or known.expiry <= now:
                missing.append(lease)
            if known is None:
                self.added += 1
                known = self.places[lease] = Place(facts.tenant, facts.class_, facts.engine, 0, 0, 0)
            known.expiry = expiry
            if facts.cold:
                known.cold_until = expiry
        self.settle(now)
        return missing, cut

    def revoke(self, lease: str) -> list[Any]:
        if lease not in self.places:
            return ["UNKNOWN"]
        self.places[lease].cut = "revoked"
        return ["REVOKED", lease, "live"]

    def drain(self, holder: str, now: int) -> list[Any]:
        if self.sessions.get(holder, 0) <= now:
            return ["UNKNOWN"]
        changed = int(holder not in self.draining)
        self.draining.add(holder)
        return ["DRAINING", changed]

    def release(self, leases: Sequence[str], now: int) -> int:
        returned = 0
        for lease in leases:
            returned += self.places.pop(lease, None) is not None
        self.returned += returned
        self.settle(now)
        return returned

    def downgrade(self, leases: Sequence[str], now: int) -> int:
        self.settle(now)
        given_back = 0
        for lease in leases:
            place = self.places.get(lease)
            if place is not None and place.cold_until:
                place.cold_until = 0
                given_back += 1
        return given_back

    def move(self, lease: str, engines: Sequence[str], now: int) -> list[Any]:
        self.settle(now)
        if lease not in self.places:
            return ["GONE"]
        picked = self._pick(engines, (), now)
        if picked is None:
            return ["FULL"]
        self.places[lease].engine = picked
        return ["MOVED", picked]

    def reap(self, now: int) -> None:
        self.settle(now)
        for place in self.places.values():
            if place.cold_until <= now:
                place.cold_until = 0

    def flush(self) -> None:
        """Redis lost everything; the balance begins anew."""
        self.places.clear()
        self.reclaimed.clear()
        self.evidence.clear()
        self.sessions.clear()
        self.draining.clear()
        self.grant = self.added = self.returned = 0
