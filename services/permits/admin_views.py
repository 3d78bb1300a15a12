"""What a person may look at while traffic flows. Writes nothing."""

from collections.abc import Mapping
from typing import Final

from services.permits.admin_checks import PAGE_MAX, check_after, check_number
from services.permits.admin_model import FleetState, GatewayRow, KeyRow, Page, TenantState
from services.permits.errors import NotFound
from services.permits.ledger import KEY_ID_CHARS, Event
from services.permits.model import LeaseRow, WaiterRow
from services.permits.names import check_name
from services.permits.store import Store, whole_numbers

_DIGEST_CHARS: Final = 64


class AdminViews:
    """On a store that the caller owns; see `Admin`, which adds the changes."""

    def __init__(self, store: Store) -> None:
        """Talk to nobody yet."""
        self._store = store

    # --- fleets

    async def fleets(self) -> list[str]:
        """Return the names of all fleets."""
        return await self._store.fleets()

    async def fleet(self, fleet: str) -> FleetState:
        """Return one fleet at one instant; raises NotFound."""
        await self._known(fleet)
        fields = await self._store.limit_fields(fleet)
        tenants = {*await self._store.tenants(), *named(fields, "tenant:")}
        counts = await self._store.count(fleet, sorted(tenants), sorted(named(fields, "engine:")))
        return FleetState(fleet, counts, tuple(fields.get("shadow", "").split()))

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

    # --- tenants

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
        return TenantState(tenant, weight, quotas, _keys_of(tenant, (await self._store.key_copy())[1]))

    # --- gateways

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

    # --- history

    async def events(
        self, fleet: str | None = None, after: str = "0", limit: int = 100, *, ends: bool = True
    ) -> Page[dict[str, str | int]]:
        """Return the oldest events after `after`, of one fleet or of everything.

        With `ends` also how requests ended. `cursor` is the next `after`: no page ends between two events of
        one id, and whoever follows one fleet misses no event but perhaps an end. Over a step back of Redis's
        clock only a single stream can be followed without a gap: one fleet, without `ends`.
        """
        check_after(after)
        limit = check_number("limit", limit, 1, PAGE_MAX)
        found = [
            (*_order(event_id), one, event_id, fields)
            for one, stream in await self._streams(fleet, ends=ends)
            for event_id, fields in await self._store.events_after(stream, after, limit)
        ]
        found.sort(key=lambda entry: (entry[0], entry[1], entry[2]))
        while limit < len(found) and found[limit][:2] == found[limit - 1][:2]:
            limit += 1
        page = [_event(event_id, one, fields) for _, _, one, event_id, fields in found[:limit]]
        return Page(page, str(page[-1]["id"]) if page else after)

    async def newest_events(
        self, fleet: str | None = None, limit: int = 100, *, ends: bool = True
    ) -> list[dict[str, str | int]]:
        """Return the newest events of one fleet or of everything, the newest first."""
        limit = check_number("limit", limit, 1, PAGE_MAX)
        found = [
            (_order(event_id), _event(event_id, one, fields))
            for one, stream in await self._streams(fleet, ends=ends)
            for event_id, fields in await self._store.newest_events(stream, limit)
        ]
        found.sort(key=lambda entry: entry[0], reverse=True)
        return [event for _, event in found[:limit]]

    async def _streams(self, fleet: str | None, *, ends: bool) -> list[tuple[str, str]]:
        """Return the streams to read, each with the fleet whose it is; "" for that of tenants and keys."""
        if fleet is not None:
            await self._known(fleet)
        fleets = await self._store.fleets() if fleet is None else [fleet]
        keys = [(one, self._store.keys(one)) for one in fleets]
        # Ends first: what is written between two reads must not be older than what the cursor has passed.
        streams = [(one, of.ends) for one, of in keys if ends] + [(one, of.events) for one, of in keys]
        return streams if fleet is not None else [*streams, ("", self._store.shared.events)]

    async def _known(self, fleet: str) -> None:
        fleets = await self._store.fleets()
        if fleet not in fleets:
            raise NotFound(f"there is no fleet {fleet[:64]!a}; the fleets are {', '.join(fleets) or 'none'}")


def named(fields: Mapping[str, str], kind: str) -> set[str]:
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


def _event(event_id: str, fleet: str, fields: Event) -> dict[str, str | int]:
    ours: dict[str, str | int] = {"id": event_id, "at": _order(event_id)[0], "fleet": fleet}
    # Anybody may write into a stream; nothing in it may pass for its place in it.
    return {**ours, "kind": "", **fields, **ours}
