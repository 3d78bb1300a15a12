"""What `tenure top` shows of one fleet, read from Redis in one go."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from services.cli.failure import Failure
from services.permits.admin import Admin
from services.permits.admin_model import row_json
from services.permits.model import LeaseRow, WaiterRow

# More fit no screen, and a look must not make requests wait.
LEASES_MOST: Final = 1000
RECENT_MOST: Final = 50

Event = Mapping[str, str | int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """One fleet at one instant. `state` is the fleet in the JSON shape of the admin API.

    `leases` are the oldest first, at most LEASES_MOST of them; `recent` the newest events, newest first.
    """

    at: datetime
    fleets: tuple[str, ...]
    state: Mapping[str, Any]
    leases: tuple[LeaseRow, ...]
    line: tuple[WaiterRow, ...]
    recent: tuple[Event, ...]

    @property
    def fleet(self) -> str:
        """The name of the fleet."""
        return str(self.state["fleet"])

    def as_json(self) -> dict[str, Any]:
        """Return all of it for programs."""
        return {
            **self.state,
            "leases": [row_json(lease) for lease in self.leases],
            "line": [row_json(waiter) for waiter in self.line],
            "events": list(self.recent),
        }


async def read_snapshot(admin: Admin, fleet: str | None, tenant: str = "") -> Snapshot:
    """Return the fleet as it is now; the first one when `fleet` is None or does not exist any more.

    When `tenant` is the whole name of one, only its leases are fetched: there may be too many of all.
    Raises Unavailable, and Failure when there is no fleet at all.
    """
    fleets = tuple(await admin.fleets())
    if not fleets:
        raise Failure("no fleet is known to this Redis: start a gateway first")
    shown = fleet if fleet in fleets else fleets[0]
    state = (await admin.fleet(shown)).as_json()
    only = tenant if tenant in state["pools"]["tenants"] else None
    leases = await admin.leases(shown, tenant=only, limit=LEASES_MOST)
    return Snapshot(
        at=datetime.now(UTC).astimezone(),
        fleets=fleets,
        state=state,
        leases=tuple(sorted(leases.items, key=lambda lease: -lease.age_ms)),
        line=tuple(await admin.line(shown)),
        recent=tuple(await admin.newest_events(shown, RECENT_MOST)),
    )
