"""Administration: what a person may see and change while traffic flows. No HTTP, no printing.

Everything is checked before anything is written, and each change is one script per fleet that it touches, so
nothing is ever half done for longer than it takes to repeat the call: all of them are idempotent. Each is in
an event stream with who, what, old and new value, and holds at once on every replica; keys and tenants
within a second.

As with `Store`, a call that is cancelled can spoil a connection: shield it where that may happen.
"""

import hashlib
import secrets
from collections.abc import Mapping, Sequence
from typing import Final

from services.permits.admin_checks import (
    LIMIT_MAX,
    PAGE_MAX,
    WEIGHT_MAX,
    check_after,
    check_limits,
    check_number,
    is_key_id,
    is_lease,
    is_request,
)
from services.permits.admin_model import FleetState, GatewayRow, KeyRow, NewKey, Page, TenantState
from services.permits.errors import NotFound
from services.permits.ledger import KEY_ID_CHARS, Event
from services.permits.model import LeaseRow, WaiterRow
from services.permits.names import check_name
from services.permits.store import Store, whole_numbers

_KEY_BYTES: Final = 24
_DIGEST_CHARS: Final = 64


class Admin:
    """On a store that the caller owns. `who` is the name under which changes are recorded."""

    def __init__(self, store: Store, *, who: str) -> None:
        """Talk to nobody yet."""
        self._store = store
        self._who = who

    # --- fleets

    async def fleets(self) -> list[str]:
        """Return the names of all fleets."""
        return await self._store.fleets()

    async def fleet(self, fleet: str) -> FleetState:
        """Return one fleet at one instant; raises NotFound."""
        await self._known(fleet)
        fields = await self._store.limit_fields(fleet)
        tenants = {*await self._store.tenants(), *_named(fields, "tenant:")}
        counts = await self._store.count(fleet, sorted(tenants), sorted(_named(fields, "engine:")))
        return FleetState(fleet, counts, tuple(fields.get("shadow", "").split()))

    async def set_limits(self, fleet: str, changes: Mapping[str, object]) -> FleetState:
        """Set total, cold, tenant_default, line_max, line_max_per_tenant, engine:E or shadow.

        Numbers are whole, from 0 to a million; shadow is a list of kinds of pools. Lowering cuts nobody.
        Raises NotFound, or BadLimits before anything is written.
        """
        await self._known(fleet)
        engines = _named(await self._store.limit_fields(fleet), "engine:")
        fields = check_limits(changes, engines)
        if fields:
            await self._store.set_limits(fleet, fields, who=self._who)
        return await self.fleet(fleet)

    async def leases(
        self, fleet: str, *, tenant: str | None = None, limit: int = 100, cursor: str = ""
    ) -> Page[LeaseRow]:
        """Return live leases in the order of their ids; a page may be shorter than `limit`."""
        await self._known(fleet)
        limit = check_number("limit", limit, 1, PAGE_MAX)
        if tenant is not None:
            check_name("tenant", tenant)
        ids = sorted(lease for lease in await self._store.lease_ids(fleet, tenant) if lease > cursor)
        rows = await self._store.leases(fleet, ids[:limit])
        return Page(rows, ids[limit - 1] if len(ids) > limit else "")

    async def line(self, fleet: str) -> list[WaiterRow]:
        """Return those who stand in line, in its order; a thousand at the most."""
        await self._known(fleet)
        return await self._store.line(fleet)

    # --- tenants and their keys

    async def tenants(self) -> list[str]:
        """Return the names of all tenants."""
        return await self._store.tenants()

    async def tenant(self, tenant: str) -> TenantState:
        """Return one tenant; raises NotFound."""
        if check_name("tenant", tenant) not in await self._store.tenants():
            raise NotFound(f"there is no tenant {tenant}")
        weight, quotas = 1, {}
        for fleet in await self._store.fleets():
            limits = whole_numbers(await self._store.limit_fields(fleet))
            weight = limits.get(f"weight:{tenant}", weight)
            if f"tenant:{tenant}" in limits:
                quotas[fleet] = limits[f"tenant:{tenant}"]
        return TenantState(tenant, weight, quotas, _keys_of(tenant, await self._store.key_hashes()))

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
        if await self._store.set_tenant(tenant, who=self._who, mode="remove") is None:
            raise NotFound(f"there is no tenant {tenant}")
        own = (f"tenant:{tenant}", f"weight:{tenant}")
        for fleet in await self._store.fleets():
            fields = await self._store.limit_fields(fleet)
            gone = {field: "" for field in own if fields.get(field)}
            if gone:
                await self._store.set_limits(fleet, gone, who=self._who)

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

    async def gateways(self) -> list[GatewayRow]:
        """Return every gateway that still ticks."""
        rows: dict[str, GatewayRow] = {}
        for fleet in await self._store.fleets():
            now = (await self._store.count(fleet)).clock
            held = [lease.rpartition("~")[0] for lease in await self._store.lease_ids(fleet)]
            for holder, ends, draining in await self._store.sessions(fleet):
                if ends <= now:
                    continue
                row = rows.get(holder)
                rows[holder] = GatewayRow(
                    gateway=holder.partition("~")[0],
                    holder=holder,
                    fleets=(*(row.fleets if row else ()), fleet),
                    live=held.count(holder) + (row.live if row else 0),
                    draining=draining or (row.draining if row else False),
                    session_expires_in_ms=max(ends - now, row.session_expires_in_ms if row else 0),
                )
        return sorted(rows.values(), key=lambda row: row.holder)

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

    # --- history

    async def events(
        self, fleet: str | None = None, after: str = "0", limit: int = 100
    ) -> Page[dict[str, str | int]]:
        """Return the oldest events after `after`, of one fleet or of everything.

        `cursor` is the next `after`. No page ends between two events of one id, so following it misses none.
        """
        check_after(after)
        limit = check_number("limit", limit, 1, PAGE_MAX)
        found = [
            (*_order(event_id), one, event_id, fields)
            for one in await self._streams(fleet)
            for event_id, fields in await self._store.events_after(one, after, limit)
        ]
        found.sort(key=lambda entry: (entry[0], entry[1], entry[2] or ""))
        while limit < len(found) and found[limit][:2] == found[limit - 1][:2]:
            limit += 1
        page = [_event(event_id, one, fields) for _, _, one, event_id, fields in found[:limit]]
        return Page(page, str(page[-1]["id"]) if page else after)

    async def newest_events(self, fleet: str | None = None, limit: int = 100) -> list[dict[str, str | int]]:
        """Return the newest events of one fleet or of everything, the newest first."""
        limit = check_number("limit", limit, 1, PAGE_MAX)
        found = [
            (_order(event_id), _event(event_id, one, fields))
            for one in await self._streams(fleet)
            for event_id, fields in await self._store.newest_events(one, limit)
        ]
        found.sort(key=lambda entry: entry[0], reverse=True)
        return [event for _, event in found[:limit]]

    async def _streams(self, fleet: str | None) -> Sequence[str | None]:
        if fleet is not None:
            await self._known(fleet)
            return (fleet,)
        return (*await self._store.fleets(), None)

    async def _known(self, fleet: str) -> None:
        fleets = await self._store.fleets()
        if fleet not in fleets:
            raise NotFound(f"there is no fleet {fleet[:64]!a}; the fleets are {', '.join(fleets) or 'none'}")


def _named(fields: Mapping[str, str], kind: str) -> set[str]:
    """Return the names in those fields of a kind that have a value."""
    return {field.removeprefix(kind) for field, value in fields.items() if field.startswith(kind) and value}


def _keys_of(tenant: str, facts: Mapping[str, str]) -> list[KeyRow]:
    rows = []
    for field, owner in sorted(facts.items()):
        if owner == tenant and len(field) == _DIGEST_CHARS:
            key_id = field[:KEY_ID_CHARS]
            created_at, _, last4 = facts.get(f"#key:{key_id}", "0 ").partition(" ")
            rows.append(KeyRow(key_id, last4, int(created_at) if created_at.isdigit() else 0))
    return sorted(rows, key=lambda row: row.created_at)


def _order(event_id: str) -> tuple[int, int]:
    at_ms, _, number = event_id.partition("-")
    return int(at_ms), int(number or 0)


def _event(event_id: str, fleet: str | None, fields: Event) -> dict[str, str | int]:
    return {"id": event_id, "at": _order(event_id)[0], "fleet": fleet or "", **fields}
