"""Read-only looks into Redis: `tenure fleets` and `tenure leases`."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

from services.cli.failure import Failure
from services.cli.reach import open_store
from services.cli.shown import print_json, print_rows
from services.permits.model import Counts, LeaseRow
from services.permits.store import Store
from services.settings.schema import Settings

_LEASE_COLUMNS: Final = (
    "fleet",
    "lease",
    "tenant",
    "class",
    "phase",
    "engine",
    "holder",
    "age",
    "expires in",
)
_FLEET_COLUMNS: Final = ("fleet", "pool", "in use", "limit", "note")

Row = dict[str, Any]


async def show_fleets(settings: Settings, *, as_json: bool) -> None:
    """Print what each fleet has in use, pool by pool, and its limits."""
    async with open_store(settings) as store:
        counted = [(fleet, await _count(store, fleet, settings)) for fleet in await _fleets(store, settings)]
    if as_json:
        print_json({"fleets": [_fleet_view(fleet, counts) for fleet, counts in counted]})
        return
    rows = [row for fleet, counts in counted for row in _fleet_rows(fleet, counts)]
    print_rows(_FLEET_COLUMNS, rows, empty="no fleet is known to this Redis and none is configured")


async def show_leases(
    settings: Settings, *, fleet: str | None, tenant: str | None, most: int, as_json: bool
) -> None:
    """Print every live lease, the soonest to expire first; `most` per fleet."""
    async with open_store(settings) as store:
        fleets = await _fleets(store, settings)
        if fleet is not None and fleet not in fleets:
            raise Failure(f"no fleet {fleet!r}; the fleets are: {', '.join(fleets) or 'none'}")
        leases = [
            (name, lease)
            for name in ([fleet] if fleet is not None else fleets)
            for lease in await store.inspect(name, most)
            if tenant in (None, lease.tenant)
        ]
    if as_json:
        print_json({"leases": [_lease_view(name, lease) for name, lease in leases]})
        return
    print_rows(_LEASE_COLUMNS, [_lease_row(name, lease) for name, lease in leases], empty="no live leases")


async def _fleets(store: Store, settings: Settings) -> list[str]:
    return sorted({*settings.fleets, *await store.fleets()})


async def _count(store: Store, fleet: str, settings: Settings) -> Counts:
    """Count every pool that is known: named in Redis's limits, in its list of tenants, or in the file."""
    limits = await store.limits(fleet)
    configured = settings.fleets.get(fleet)
    engines = {engine.name for engine in configured.engines} if configured else set()
    engines |= _named(limits, "engine:")
    tenants = {*settings.tenants, *await store.tenants(), *_named(limits, "tenant:")}
    return await store.count(fleet, sorted(tenants), sorted(engines))


def _named(limits: dict[str, int], prefix: str) -> set[str]:
    return {field.removeprefix(prefix) for field in limits if field.startswith(prefix)}


def _fleet_view(fleet: str, counts: Counts) -> Row:
    limits = counts.limits
    default = limits.get("tenant_default")
    return {
        "fleet": fleet,
        "epoch": counts.epoch,
        "learning_ms": counts.learning_ms,
        "pools": {
            "total": {"limit": limits.get("total"), "in_use": counts.total},
            "cold": {"limit": limits.get("cold"), "in_use": counts.cold},
            "tenants": {
                name: {"limit": limits.get(f"tenant:{name}", default), "in_use": live}
                for name, live in counts.tenants.items()
            },
            "engines": {
                name: {"limit": limits.get(f"engine:{name}"), "in_use": live}
                for name, live in counts.engines.items()
            },
        },
        "over_commit": counts.over_commit,
        "gateways": counts.gateways,
    }


def _fleet_rows(fleet: str, counts: Counts) -> Sequence[Row]:
    pools = _fleet_view(fleet, counts)["pools"]
    flat = {"total": pools["total"], "cold": pools["cold"]}
    flat |= {f"engine:{name}": pool for name, pool in pools["engines"].items()}
    flat |= {f"tenant:{name}": pool for name, pool in pools["tenants"].items()}
    rows = [
        {
            "fleet": fleet,
            "pool": name,
            "in use": pool["in_use"],
            "limit": "-" if pool["limit"] is None else pool["limit"],
            "note": "",
        }
        for name, pool in flat.items()
    ]
    rows[0]["note"] = _state(counts)
    return rows


def _state(counts: Counts) -> str:
    said = [f"{counts.gateways} gateway{'' if counts.gateways == 1 else 's'}"]
    if not counts.epoch:
        said.append("not started yet")
    if counts.learning_ms:
        said.append(f"learning for {counts.learning_ms / 1000:.1f} s")
    if counts.over_commit:
        said.append(f"{counts.over_commit} over the limit")
    return ", ".join(said)


def _lease_view(fleet: str, lease: LeaseRow) -> Row:
    view = asdict(lease)
    view["class"] = view.pop("class_")
    return {"fleet": fleet, **view}


def _lease_row(fleet: str, lease: LeaseRow) -> Row:
    return {
        **_lease_view(fleet, lease),
        "age": f"{lease.age_ms / 1000:.1f} s",
        "expires in": f"{lease.expires_in_ms / 1000:.1f} s",
    }
