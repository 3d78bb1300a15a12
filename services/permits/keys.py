"""Every Redis key, built here and (for keys that only a script can know) in `lua/` from the same prefix.

All keys of a fleet carry the hash tag `{fleet}`: each script touches one slot.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FleetKeys:
    """The keys of one fleet, under `prefix`."""

    prefix: str
    fleet: str

    def _key(self, tail: str) -> str:
        return f"{self.prefix}:{{{self.fleet}}}:{tail}"

    @property
    def meta(self) -> str:
        """Hash: epoch, lease clock, grant number. Scripts derive the fleet's prefix from this key."""
        return self._key("meta")

    @property
    def limits(self) -> str:
        """Hash: every limit of the fleet; edit it with HSET."""
        return self._key("limits")

    @property
    def set_at(self) -> str:
        """Hash: limit -> lease clock at which somebody last set it."""
        return self._key("limits:set_at")

    @property
    def total(self) -> str:
        """Sorted set: lease -> expiry, all leases."""
        return self._key("pool:total")

    @property
    def cold(self) -> str:
        """Sorted set: lease -> expiry, cold places."""
        return self._key("pool:cold")

    @property
    def gateways(self) -> str:
        """Sorted set: holder -> session expiry."""
        return self._key("gateways")

    @property
    def events(self) -> str:
        """Stream: reclaims, re-assertions, limit changes; capped."""
        return self._key("events")

    @property
    def ends(self) -> str:
        """Stream: how requests ended; capped."""
        return self._key("ends")

    @property
    def draining(self) -> str:
        """Set: holders that were told to drain."""
        return self._key("draining")

    @property
    def reported(self) -> str:
        """String: the id of the last event that a reaper was handed."""
        return self._key("reported")

    @property
    def waiting(self) -> str:
        """Hash: lease id -> the demand of one who stands in line."""
        return self._key("line:waiting")

    def wake(self, holder: str) -> str:
        """Return the channel on which scripts tell a gateway what became of its waiters."""
        return self._key(f"line:wake:{holder}")

    def pool(self, name: str) -> str:
        """Return the sorted set of the pool called `name`: total, cold, tenant:T or engine:E."""
        return self._key(f"pool:{name}")

    def tenant_pool(self, tenant: str) -> str:
        """Sorted set: lease -> expiry, one tenant."""
        return self._key(f"pool:tenant:{tenant}")

    def lease(self, lease: str) -> str:
        """Hash: the facts of one lease."""
        return self._key(f"lease:{lease}")

    def evidence(self, engine: str) -> str:
        """Sorted set: prefix hash -> expiry, what one engine has proved to hold."""
        return self._key(f"evidence:{engine}")


@dataclass(frozen=True, slots=True)
class SharedKeys:
    """The keys that belong to no fleet.

    On a Cluster scripts touch several of them together, so there, and only there, they share a hash tag.
    """

    prefix: str
    clustered: bool = False

    def _key(self, name: str) -> str:
        return f"{{{self.prefix}}}:{name}" if self.clustered else f"{self.prefix}:{name}"

    @property
    def fleets(self) -> str:
        """Set: the names of all fleets that were ever seeded."""
        return self._key("fleets")

    @property
    def tenants(self) -> str:
        """Set: the names of all tenants."""
        return self._key("tenants")

    @property
    def keys(self) -> str:
        """Hash: SHA-256 of a caller's key, in hex -> tenant, empty when revoked; notes begin with `#`."""
        return self._key("keys")

    @property
    def events(self) -> str:
        """Stream: changes of tenants and keys; capped."""
        return self._key("events")
