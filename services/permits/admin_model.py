"""What administration shows. Frozen, no I/O; `as_json` gives the shapes of the admin API."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Generic, TypeVar

from services.permits.model import Counts, LeaseRow, WaiterRow

T = TypeVar("T")

POOL_KINDS: Final = ("total", "cold", "tenant", "engine")
# Limits that are no pool of their own.
SETTINGS: Final = ("tenant_default", "line_max", "line_max_per_tenant")


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """Some of many; `cursor` asks for the next ones, "" when these were the last."""

    items: Sequence[T]
    cursor: str = ""


@dataclass(frozen=True, slots=True)
class FleetState:
    """One fleet at one instant: `counts` with the limits, and what of them is only watched."""

    fleet: str
    counts: Counts
    shadow: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Return the contract's shape, with the settings of the line and of shadow mode added."""
        counts, limits = self.counts, self.counts.limits
        total = limits.get("total", 0)
        default = limits.get("tenant_default", total)
        return {
            "fleet": self.fleet,
            "epoch": counts.epoch,
            "learning_ms": counts.learning_ms,
            "pools": {
                "total": {"limit": total, "in_use": counts.total},
                "cold": {"limit": limits.get("cold", 0), "in_use": counts.cold},
                "tenants": {
                    tenant: {
                        "limit": limits.get(f"tenant:{tenant}", default),
                        "in_use": in_use,
                        "waiting": counts.tenants_waiting.get(tenant, 0),
                    }
                    for tenant, in_use in counts.tenants.items()
                },
                "engines": {
                    engine: {"limit": limits.get(f"engine:{engine}", 0), "in_use": in_use}
                    for engine, in_use in counts.engines.items()
                },
            },
            "waiting": counts.waiting,
            "over_commit": counts.over_commit,
            "gateways": counts.gateways,
            "settings": {name: limits.get(name, 0) for name in SETTINGS},
            "shadow": list(self.shadow),
        }


@dataclass(frozen=True, slots=True)
class KeyRow:
    """One key in force. `last4` and `created_at` (Unix ms) are "" and 0, unknown, for keys of a file."""

    key_id: str
    last4: str
    created_at: int


@dataclass(frozen=True, slots=True)
class TenantState:
    """One tenant. `quotas` has the fleets in which it has a limit of its own."""

    tenant: str
    weight: int
    quotas: Mapping[str, int]
    keys: Sequence[KeyRow]

    def as_json(self) -> dict[str, Any]:
        """Return what the admin API answers."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class NewKey:
    """A key that was just made. Nobody can show it again: only its SHA-256 is kept."""

    tenant: str
    key: str
    key_id: str


@dataclass(frozen=True, slots=True)
class GatewayRow:
    """One gateway process that still ticks, with the leases it holds over all fleets."""

    gateway: str
    holder: str
    fleets: tuple[str, ...]
    live: int
    draining: bool
    session_expires_in_ms: int


def row_json(row: LeaseRow | WaiterRow | GatewayRow) -> dict[str, Any]:
    """Return a row under the names of the contract: `class_` is `class` there."""
    return {name.rstrip("_"): value for name, value in asdict(row).items()}
