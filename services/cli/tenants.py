"""`tenure tenant`, `tenure key` and `tenure quota`: who may send requests, with which keys, and how many."""

from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from services.cli.limits import assignments
from services.cli.reach import administer
from services.cli.shown import print_json, print_line, print_rows
from services.permits.admin import Admin
from services.permits.admin_model import KeyRow, TenantState
from services.settings.schema import Settings

# The quota that is none of its own.
_DEFAULT = ("", "default")


async def add_tenant(settings: Settings, tenant: str, *, weight: str | None, as_json: bool) -> None:
    """Make a tenant; one that is there already stays as it is, but for a weight that is given."""
    async with administer(settings) as admin:
        there = tenant in await admin.tenants()
        state = await admin.put_tenant(tenant, weight=weight)
    if as_json:
        print_json(state.as_json())
    else:
        said = "was there already" if there else "is added"
        print_line(f"tenant {tenant} {said}; give it a key with: tenure key add {tenant}")


async def show_tenant(settings: Settings, tenant: str, *, as_json: bool) -> None:
    """Show one tenant: weight, quotas, keys."""
    async with administer(settings) as admin:
        state = await admin.tenant(tenant)
        view = await _quota_view(admin, settings, state)
    if as_json:
        print_json({**view, "keys": [asdict(key) for key in state.keys]})
        return
    _print_quotas(view)
    print_line("")
    _print_keys(state.keys)


async def list_tenants(settings: Settings, *, as_json: bool) -> None:
    """List all tenants with their weight and how many keys they have."""
    async with administer(settings) as admin:
        states = [await admin.tenant(tenant) for tenant in await admin.tenants()]
    if as_json:
        print_json({"tenants": [state.as_json() for state in states]})
        return
    rows = [
        {"tenant": s.tenant, "weight": s.weight, "keys": len(s.keys), "quotas": _quota_words(s)}
        for s in states
    ]
    print_rows(("tenant", "weight", "keys", "quotas"), rows, empty="no tenants")


async def remove_tenant(settings: Settings, tenant: str, *, as_json: bool) -> None:
    """Refuse a tenant's new requests; its streams run on."""
    async with administer(settings) as admin:
        await admin.delete_tenant(tenant)
    if as_json:
        print_json({"tenant": tenant, "removed": True})
    else:
        print_line(f"tenant {tenant} is removed: new requests are refused, live streams run on")


async def quota(
    settings: Settings, tenant: str, words: Sequence[str], *, weight: str | None, as_json: bool
) -> None:
    """Set quotas and weight, all or nothing, then show what is in force and what the file has."""
    given = assignments(words, "demo=3")
    quotas = {fleet: None if value in _DEFAULT else value for fleet, value in given.items()}
    async with administer(settings) as admin:
        # A slip of the keyboard must not make a tenant: `tenant add` does that.
        state = await admin.tenant(tenant)
        if quotas or weight is not None:
            state = await admin.put_tenant(tenant, weight=weight, quotas=quotas)
        view = await _quota_view(admin, settings, state)
    if as_json:
        print_json(view)
    else:
        _print_quotas(view)


async def add_key(settings: Settings, tenant: str, *, as_json: bool) -> None:
    """Make a key and show it, once."""
    async with administer(settings) as admin:
        made = await admin.add_key(tenant)
    if as_json:
        print_json(asdict(made))
        return
    print_line(f"{made.key}")
    print_line(f"key {made.key_id} of {tenant}, shown only now: Tenure keeps its SHA-256")


async def list_keys(settings: Settings, tenant: str, *, as_json: bool) -> None:
    """List a tenant's keys by id and last four characters."""
    async with administer(settings) as admin:
        state = await admin.tenant(tenant)
    if as_json:
        print_json({"tenant": tenant, "keys": [asdict(key) for key in state.keys]})
    else:
        _print_keys(state.keys)


async def revoke_key(settings: Settings, tenant: str, key_id: str, *, as_json: bool) -> None:
    """End a key for ever."""
    async with administer(settings) as admin:
        await admin.revoke_key(tenant, key_id)
    if as_json:
        print_json({"tenant": tenant, "key_id": key_id, "revoked": True})
    else:
        print_line(f"key {key_id} of {tenant} is revoked: every gateway refuses it within a second")


async def _quota_view(admin: Admin, settings: Settings, state: TenantState) -> dict[str, Any]:
    """Return weight and quotas, live and of the file; a quota of None means that the default holds."""
    file = settings.tenants.get(state.tenant)
    quotas = {}
    for fleet in await admin.fleets():
        default = (await admin.fleet(fleet)).counts.limits.get("tenant_default")
        pair = {"live": state.quotas.get(fleet), "default": default}
        quotas[fleet] = {**pair, "file": file.quotas.get(fleet)} if file else pair
    weight = {"live": state.weight, **({"file": file.weight} if file else {})}
    return {"tenant": state.tenant, "weight": weight, "quotas": quotas}


def _print_quotas(view: dict[str, Any]) -> None:
    weight = view["weight"]
    beside = f" (file: {weight['file']})" if "file" in weight else ""
    print_line(f"tenant {view['tenant']}, weight {weight['live']}{beside}")
    print_line("")
    columns = ("fleet", "quota", "file", "default") if "file" in weight else ("fleet", "quota", "default")
    rows = [
        {
            "fleet": fleet,
            "quota": _or_dash(pair["live"]),
            "file": _or_dash(pair.get("file")),
            "default": _or_dash(pair["default"]),
        }
        for fleet, pair in view["quotas"].items()
    ]
    print_rows(columns, rows, empty="no fleets")


def _print_keys(keys: Sequence[KeyRow]) -> None:
    rows = [
        {
            "key": key.key_id,
            "last four": key.last4 or "-",
            "created": _when(key.created_at) if key.created_at else "by the file",
        }
        for key in keys
    ]
    print_rows(("key", "last four", "created"), rows, empty="no keys")


def _quota_words(state: TenantState) -> str:
    return " ".join(f"{fleet}={limit}" for fleet, limit in state.quotas.items()) or "-"


def _or_dash(value: int | None) -> int | str:
    return "-" if value is None else value


def _when(at_ms: int) -> str:
    return f"{datetime.fromtimestamp(at_ms / 1000, UTC).astimezone():%Y-%m-%d %H:%M:%S}"
