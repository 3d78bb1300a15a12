"""What the configuration says to the permit library: the values that seed Redis, and the policies.

Redis keeps the live values; these are written only where it has none.
"""

from services.permits.model import FleetPolicy, LeaseTimes
from services.settings.schema import Settings


def seed_limits(settings: Settings, fleet: str) -> dict[str, int]:
    """Return the fields of the fleet's `limits` hash. `fleet` must be one of `settings.fleets`."""
    asked = settings.fleets[fleet]
    limits = {
        "total": asked.total,
        "cold": asked.cold,
        "tenant_default": asked.tenant_default,
        "line_max": asked.line_max,
        "line_max_per_tenant": asked.line_max_per_tenant,
    }
    limits |= {f"engine:{engine.name}": engine.slots for engine in asked.engines}
    for name, tenant in settings.tenants.items():
        limits[f"weight:{name}"] = tenant.weight
        if fleet in tenant.quotas:
            limits[f"tenant:{name}"] = tenant.quotas[fleet]
    return limits


def seed_keys(settings: Settings) -> dict[str, str]:
    """Return the tenant of each key, by the key's SHA-256 in lower-case hex."""
    return {digest: name for name, tenant in settings.tenants.items() for digest in tenant.keys_sha256}


def lease_times(settings: Settings) -> LeaseTimes:
    """Return how long leases live, as the library takes it."""
    lease = settings.lease
    return LeaseTimes(
        ttl_ms=lease.ttl_ms,
        tick_ms=lease.tick_ms,
        provisional_ms=lease.provisional_ms,
        learning_ms=lease.learning_ms,
    )


def fleet_policies(settings: Settings) -> dict[str, FleetPolicy]:
    """Return each fleet's policy with the limits that seed Redis, by the fleet's name."""
    return {
        name: FleetPolicy(
            limits=seed_limits(settings, name),
            cold_until=fleet.cold_until,
            redis_loss=fleet.redis_loss,
            lost_lease=fleet.lost_lease,
        )
        for name, fleet in settings.fleets.items()
    }
