"""Writes configuration files for tests: every knob short, so that a fault shows within seconds."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

FLEET: Final = "demo"
MODEL: Final = "demo"

# The shortest lease that the rules allow and a busy machine still keeps up with.
LEASE: Final = {"ttl_ms": 3000, "tick_ms": 500, "provisional_ms": 2000, "learning_ms": 1000}
BUDGETS: Final = {
    "queue_ms": 0,
    "connect_ms": 2000,
    "first_token_ms": 5000,
    "idle_ms": 5000,
    "stall_ms": 5000,
    "total_ms": 30000,
    "drain_ms": 1000,
}
# Only `total` binds unless a test says otherwise.
FLEET_FIELDS: Final = {"models": [MODEL], "total": 4, "cold": 4, "tenant_default": 1000}
SLOTS: Final = 64


def key_of(tenant: str) -> str:
    """Return the key of a tenant in these files."""
    return f"key-of-{tenant}"


def write_config(
    folder: Path,
    redis_url: str,
    engines: Sequence[str | Mapping[str, Any]],
    *,
    name: str = "tenure.toml",
    fleet: Mapping[str, Any] | None = None,
    tenants: Mapping[str, int | None] | None = None,
    **sections: Mapping[str, Any],
) -> Path:
    """Write a config with one fleet, `demo`, and return its path.

    engines   URLs, or tables with a url
    fleet     fields laid over FLEET_FIELDS
    tenants   name -> quota for the fleet (None: its tenant_default); each has the key `key_of(name)`
    sections  `lease=`, `budgets=`, `gateway=`, `reaper=`, `admin=`, ... laid over the defaults here
    """
    tables: dict[str, Any] = {
        "redis": {"url": redis_url},
        "reaper": {"every_ms": 500},
        "lease": LEASE,
        "budgets": BUDGETS,
    }
    for section, values in sections.items():
        tables[section] = {**tables.get(section, {}), **values}
    tables["fleets"] = {FLEET: {**FLEET_FIELDS, "engines": list(map(_engine, engines)), **(fleet or {})}}
    tables["tenants"] = {who: _tenant(who, quota) for who, quota in (tenants or {"acme": None}).items()}
    path = folder / name
    path.write_text("\n".join(f"{key} = {_value(value)}" for key, value in _flat(tables)) + "\n")
    return path


def _engine(given: str | Mapping[str, Any]) -> dict[str, Any]:
    fields = {"url": given} if isinstance(given, str) else given
    return {"slots": SLOTS, **fields}


def _tenant(who: str, quota: int | None) -> dict[str, Any]:
    quotas = {} if quota is None else {FLEET: quota}
    return {"keys_sha256": [hashlib.sha256(key_of(who).encode()).hexdigest()], "quotas": quotas}


def _flat(tables: Mapping[str, Any], before: str = "") -> list[tuple[str, Any]]:
    """Return dotted keys with their values: TOML in its plainest form."""
    found: list[tuple[str, Any]] = []
    for key, value in tables.items():
        dotted = f"{before}{_value(key)}"
        found += _flat(value, dotted + ".") if isinstance(value, dict) and value else [(dotted, value)]
    return found


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_value(key)} = {_value(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_value, value)) + "]"
    # Numbers, booleans and strings are written alike in JSON and in TOML.
    return json.dumps(value, ensure_ascii=False)
