"""Tenants and keys, written script by script: they belong to no fleet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from services.permits.keys import SharedKeys

if TYPE_CHECKING:
    from tests.lua.fleet import RawFleet

SHARED: Final = SharedKeys("tenure")
WHERE: Final = {"keys": SHARED.keys, "tenants": SHARED.tenants, "events": SHARED.events}


class RawPeople:
    """Calls set_tenant and set_key with raw replies."""

    def __init__(self, fleet: RawFleet) -> None:
        self._fleet = fleet
        self.client = fleet.client

    def set_tenant(self, tenant: str, mode: str = "add", who: str = "ann") -> list[Any]:
        args = {"tenant": tenant, "who": who, "mode": mode}
        return self._fleet.run("set_tenant", keys=WHERE, args=args)

    def set_key(self, tenant: str, digest: str, last4: str = "", who: str = "ann") -> list[Any]:
        args = {"tenant": tenant, "who": who, "digest": digest, "last4": last4}
        return self._fleet.run("set_key", keys=WHERE, args=args)

    def facts(self) -> dict[str, str]:
        found: dict[str, str] = self.client.hgetall(SHARED.keys)
        return found

    def tenants(self) -> set[str]:
        found: set[str] = self.client.smembers(SHARED.tenants)
        return found

    def changes(self) -> list[tuple[str, str, str, str, str]]:
        """Return (kind, tenant, field, old, new) of each event."""
        entries = self.client.xrange(SHARED.events)
        return [(e["kind"], e["tenant"], e["field"], e["old"], e["new"]) for _, e in entries]
