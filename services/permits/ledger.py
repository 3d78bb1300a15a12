"""The calls of the store that only administration makes. See `store.py`, which adds the others."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

from services.permits.caller import ScriptCaller
from services.permits.model import LeaseRow
from services.permits.replies import lease_row

Event = dict[str, str]

KEY_ID_CHARS: Final = 12


class Ledger(ScriptCaller):
    """Tenants, keys, sessions and history, one method per script or read."""

    async def set_tenant(self, tenant: str, *, who: str, mode: Literal["add", "remove"]) -> int | None:
        """Note that a tenant exists, or remove it with its keys; returns the changes, None: unknown."""
        args = {"tenant": tenant, "who": who, "mode": mode}
        changed: int | None = await self._run("set_tenant", self._people(), args, ())
        return changed

    async def set_key(self, tenant: str, digest: str, *, who: str, last4: str = "") -> int | None:
        """Give a tenant the key of this SHA-256, or without `last4` revoke it; None: no such tenant, key."""
        args = {"tenant": tenant, "who": who, "digest": digest, "last4": last4}
        changed: int | None = await self._run("set_key", self._people(), args, ())
        return changed

    async def drain(self, fleet: str, holder: str, *, who: str) -> int | None:
        """Tell a gateway to admit nothing more; None when it has no session in this fleet."""
        args = {"holder": holder, "who": who}
        changed: int | None = await self._run("drain", self._named(fleet), args, ())
        return changed

    async def limit_fields(self, fleet: str) -> dict[str, str]:
        """Return every field of the limits as it is written."""
        fields: dict[str, str] = await self._plain(self._client.hgetall(self.keys(fleet).limits))
        return fields

    async def schema(self, fleet: str) -> int:
        """Return the number of the layout in which the fleet's keys are written; 0: nobody has yet."""
        text = await self._plain(self._client.hget(self.keys(fleet).meta, "schema"))
        return int(text) if text and text.isdigit() else 0

    async def sessions(self, fleet: str) -> list[tuple[str, int, bool]]:
        """Return (holder, end on the lease clock, told to drain) of each gateway."""
        keys = self.keys(fleet)
        scored = await self._plain(self._client.zrange(keys.gateways, 0, -1, withscores=True))
        told: set[str] = await self._plain(self._client.smembers(keys.draining))
        return [(holder, int(score), holder in told) for holder, score in scored]

    async def lease_ids(self, fleet: str, tenant: str | None = None) -> list[str]:
        """Return the ids of all leases, or of a tenant's; a few may be overdue."""
        keys = self.keys(fleet)
        pool = keys.total if tenant is None else keys.tenant_pool(tenant)
        ids: list[str] = await self._plain(self._client.zrange(pool, 0, -1))
        return ids

    async def leases(self, fleet: str, ids: Sequence[str]) -> list[LeaseRow]:
        """Return those of `ids` that are live, in their order."""
        if not ids:
            return []
        lines = await self._run("inspect", self._named(fleet), {"most": len(ids)}, ids)
        return [lease_row(line) for line in lines]

    async def events_after(self, stream: str, after: str, limit: int) -> list[tuple[str, Event]]:
        """Return (id, fields) of the oldest events after `after` in the stream of that key."""
        call = self._client.xrange(stream, f"({after}", "+", limit)
        entries: list[tuple[str, Event]] = await self._plain(call)
        return entries

    async def newest_events(self, stream: str, limit: int) -> list[tuple[str, Event]]:
        """Return (id, fields) of the newest events, the newest first."""
        call = self._client.xrevrange(stream, "+", "-", limit)
        entries: list[tuple[str, Event]] = await self._plain(call)
        return entries

    def _people(self) -> Mapping[str, Any]:
        return {"keys": self.shared.keys, "tenants": self.shared.tenants, "events": self.shared.events}
