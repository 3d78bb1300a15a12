"""Administration: what a person may see and change while traffic flows. No HTTP, no printing.

Everything is checked before anything is written, and each change is one script per fleet that it touches, so
nothing is ever half done for longer than it takes to repeat the call: all of them are idempotent. Each is in
an event stream with who, what, old and new value, and holds at once on every replica; keys and tenants
within a second.

As with `Store`, a call that is cancelled can spoil a connection: shield it where that may happen.
"""

import hashlib
import secrets
from collections.abc import Mapping
from typing import Final

from services.permits.admin_checks import (
    LIMIT_MAX,
    WEIGHT_MAX,
    check_limits,
    check_number,
    is_key_id,
    is_lease,
    is_request,
)
from services.permits.admin_model import FleetState, NewKey, TenantState
from services.permits.admin_views import AdminViews, named
from services.permits.errors import NotFound
from services.permits.ledger import KEY_ID_CHARS
from services.permits.names import check_name
from services.permits.store import Store

_KEY_BYTES: Final = 24


class Admin(AdminViews):
    """On a store that the caller owns. `who` is the name under which changes are recorded."""

    def __init__(self, store: Store, *, who: str) -> None:
        """Talk to nobody yet."""
        super().__init__(store)
        self._who = who

    # --- fleets

    async def set_limits(self, fleet: str, changes: Mapping[str, object]) -> FleetState:
        """Set total, cold, tenant_default, line_max, line_max_per_tenant, engine:E or shadow.

        Numbers are whole, from 0 to a million; shadow is a list of kinds of pools. Lowering cuts nobody.
        Raises NotFound, or BadLimits before anything is written.
        """
        await self._known(fleet)
        engines = named(await self._store.limit_fields(fleet), "engine:")
        fields = check_limits(changes, engines)
        if fields:
            await self._store.set_limits(fleet, fields, who=self._who)
        return await self.fleet(fleet)

    # --- tenants and their keys

    async def put_tenant(
        self, tenant: str, *, weight: object = None, quotas: Mapping[str, object] | None = None
    ) -> TenantState:
        """Make a tenant, or change it. What is not given stays; a quota of None goes back to the default.

        Raises BadName, BadLimits, or NotFound for a fleet that does not exist, before anything is written.
        """
        check_name("tenant", tenant)
        fleets = await self._store.fleets()
        written: dict[str, dict[str, int | str]] = {fleet: {} for fleet in fleets}
        for fleet, quota in (quotas or {}).items():
            if fleet not in written:
                raise NotFound(
                    f"there is no fleet {fleet[:64]!a}; the fleets are {', '.join(fleets) or 'none'}"
                )
            limit = "" if quota is None else check_number(f"quotas.{fleet}", quota, 0, LIMIT_MAX)
            written[fleet][f"tenant:{tenant}"] = limit
        if weight is not None:
            heavy = check_number("weight", weight, 1, WEIGHT_MAX)
            for fields in written.values():
                fields[f"weight:{tenant}"] = heavy
        await self._store.set_tenant(tenant, who=self._who, mode="add")
        for fleet, fields in written.items():
            if fields:
                await self._store.set_limits(fleet, fields, who=self._who)
        return await self.tenant(tenant)

    async def delete_tenant(self, tenant: str) -> None:
        """Refuse a tenant's new requests; its streams run on. Raises NotFound."""
        check_name("tenant", tenant)
        changed = await self._store.set_tenant(tenant, who=self._who, mode="remove")
        own = (f"tenant:{tenant}", f"weight:{tenant}")
        for fleet in await self._store.fleets():
            fields = await self._store.limit_fields(fleet)
            if gone := {field: "" for field in own if fields.get(field)}:
                # Also for a tenant that is gone: the call before this one may have been interrupted here.
                changed = await self._store.set_limits(fleet, gone, who=self._who)
        if changed is None:
            raise NotFound(f"there is no tenant {tenant}")

    async def add_key(self, tenant: str) -> NewKey:
        """Make a key, which only the answer shows; raises NotFound."""
        check_name("tenant", tenant)
        key = f"tnr-{secrets.token_hex(_KEY_BYTES)}"
        digest = hashlib.sha256(key.encode()).hexdigest()
        if await self._store.set_key(tenant, digest, who=self._who, last4=key[-4:]) is None:
            raise NotFound(f"there is no tenant {tenant}")
        return NewKey(tenant, key, digest[:KEY_ID_CHARS])

    async def revoke_key(self, tenant: str, key_id: str) -> None:
        """End a key for ever: also an older file does not bring it back. Raises NotFound."""
        check_name("tenant", tenant)
        if not is_key_id(key_id) or await self._store.set_key(tenant, key_id, who=self._who) is None:
            raise NotFound(f"tenant {tenant} has no key {key_id[:64]!a}")

    # --- gateways and requests

    async def drain(self, gateway: str) -> list[str]:
        """Let a gateway, by its name or holder id, finish and stop; returns the holders that were told."""
        told = [row for row in await self.gateways() if gateway in (row.gateway, row.holder)]
        if not told:
            raise NotFound(f"there is no gateway {gateway[:80]!a} that still ticks")
        for row in told:
            for fleet in row.fleets:
                await self._store.drain(fleet, row.holder, who=self._who)
        return [row.holder for row in told]

    async def revoke(self, lease: str) -> None:
        """End one request, running or waiting, by its lease id; raises NotFound, also when it has ended."""
        for fleet in await self._store.fleets() if is_lease(lease) else ():
            if await self._store.revoke(fleet, lease=lease, reason="revoked", who=self._who):
                return
        raise NotFound(f"there is no live lease {lease[:80]!a}: it has ended, or never was")

    async def stop(self, request_id: str, tenant: str) -> bool:
        """End a tenant's own request, running or waiting, by its exact id; False: it has none like that."""
        for fleet in await self._store.fleets() if is_request(request_id) else ():
            if await self._store.revoke(
                fleet, request_id=request_id, tenant=tenant, reason="user_stop", who=self._who
            ):
                return True
        return False
