"""Who waits, who serves, what happened: `tenure line`, `gateways`, `events`; and `revoke` and `drain`."""

from datetime import UTC, datetime
from typing import Any, Final

from services.cli.reach import administer
from services.cli.shown import print_json, print_line, print_rows
from services.permits.admin_model import row_json
from services.settings.schema import Settings

_LINE_COLUMNS: Final = ("fleet", "lease", "tenant", "class", "holder", "waited", "waits for")
_GATEWAY_COLUMNS: Final = ("gateway", "holder", "fleets", "leases", "state", "session")
_EVENT_COLUMNS: Final = ("id", "at", "fleet", "kind", "what")
_HEAD_FIELDS: Final = frozenset({"id", "at", "fleet", "kind"})


async def show_line(settings: Settings, *, fleet: str | None, as_json: bool) -> None:
    """Print all who stand in line, in the order in which a free place finds them."""
    async with administer(settings) as admin:
        waiters = [
            {"fleet": name, **row_json(waiter)}
            for name in ([fleet] if fleet is not None else await admin.fleets())
            for waiter in await admin.line(name)
        ]
    if as_json:
        print_json({"line": waiters})
        return
    rows = [
        {**waiter, "waited": _seconds(waiter["waited_ms"]), "waits for": _seconds(waiter["deadline_in_ms"])}
        for waiter in waiters
    ]
    print_rows(_LINE_COLUMNS, rows, empty="nobody waits")


async def show_gateways(settings: Settings, *, as_json: bool) -> None:
    """Print every gateway that still ticks."""
    async with administer(settings) as admin:
        gateways = [row_json(gateway) for gateway in await admin.gateways()]
    if as_json:
        print_json({"gateways": gateways})
        return
    rows = [
        {
            "gateway": gateway["gateway"],
            "holder": gateway["holder"],
            "fleets": " ".join(gateway["fleets"]),
            "leases": gateway["live"],
            "state": "draining" if gateway["draining"] else "serving",
            "session": _seconds(gateway["session_expires_in_ms"]),
        }
        for gateway in gateways
    ]
    print_rows(_GATEWAY_COLUMNS, rows, empty="no gateway ticks")


async def show_events(
    settings: Settings, *, fleet: str | None, after: str | None, most: int, ends: bool, as_json: bool
) -> None:
    """Print events, the oldest first: those that follow `after`, or the newest ones when it is None."""
    async with administer(settings) as admin:
        if after is None:
            events = [*reversed(await admin.newest_events(fleet, most, ends=ends))]
        else:
            events = [*(await admin.events(fleet, after, most, ends=ends)).items]
    if as_json:
        print_json({"events": events, "cursor": events[-1]["id"] if events else after or "0"})
        return
    print_rows(_EVENT_COLUMNS, [_event_row(event) for event in events], empty="nothing happened")


async def revoke(settings: Settings, lease: str, *, as_json: bool) -> None:
    """End one request, running or waiting."""
    async with administer(settings) as admin:
        await admin.revoke(lease)
    if as_json:
        print_json({"lease": lease, "revoked": True})
    else:
        print_line(f"revoked {lease}: its gateway ends it within a second")


async def drain(settings: Settings, gateway: str, *, as_json: bool) -> None:
    """Let a replica finish what it serves, and stop."""
    async with administer(settings) as admin:
        told = await admin.drain(gateway)
    if as_json:
        print_json({"gateway": gateway, "draining": told})
        return
    for holder in told:
        print_line(f"{holder} drains: its live streams may finish, new requests go elsewhere")


def _event_row(event: dict[str, Any]) -> dict[str, Any]:
    at = datetime.fromtimestamp(int(event["at"]) / 1000, UTC).astimezone()
    what = " ".join(f"{key}={value}" for key, value in event.items() if key not in _HEAD_FIELDS)
    return {**event, "at": f"{at:%Y-%m-%d %H:%M:%S}", "fleet": event["fleet"] or "-", "what": what}


def _seconds(ms: int) -> str:
    return f"{ms / 1000:.1f} s"
