"""What the person in front of `tenure top` looks at, and what each key does to it. No terminal, no Redis."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from services.cli.top.snapshot import Snapshot
from services.permits.model import LeaseRow, WaiterRow
from services.permits.names import NAME_CHARS_MAX

Mode = Literal["browse", "filter", "confirm"]


@dataclass(frozen=True, slots=True)
class Quit:
    """The person has seen enough."""


@dataclass(frozen=True, slots=True)
class Reread:
    """Something else is to be shown: read it now rather than at the next turn."""


@dataclass(frozen=True, slots=True)
class Revoke:
    """End this request."""

    lease: str


Action = Quit | Reread | Revoke | None


@dataclass(slots=True)
class View:
    """One fleet, perhaps one tenant, perhaps one selected lease or waiter.

    `tenant` is the beginning of the tenants' names that are shown. A selection is kept by id, so it stays
    on its request while others come and go. `note` is the last thing to tell, `trouble` what keeps the
    figures from being true now.
    """

    fleet: str | None = None
    tenant: str = ""
    mode: Mode = "browse"
    typed: str = ""
    selected: str | None = None
    note: str = ""
    trouble: str = ""
    _row: int = field(default=0)

    def leases(self, snapshot: Snapshot) -> list[LeaseRow]:
        """Return the leases of the tenants that are shown, oldest first."""
        return [lease for lease in snapshot.leases if lease.tenant.startswith(self.tenant)]

    def line(self, snapshot: Snapshot) -> list[WaiterRow]:
        """Return those of the line who are shown, in its order."""
        return [waiter for waiter in snapshot.line if waiter.tenant.startswith(self.tenant)]

    def settle(self, snapshot: Snapshot) -> None:
        """Take in a new snapshot: a selected lease that has ended hands its place to the next one."""
        self.fleet = snapshot.fleet
        ids = [lease.lease for lease in self.leases(snapshot)]
        if self.selected is None:
            return
        if self.selected in ids:
            self._row = ids.index(self.selected)
            return
        if self.mode == "confirm":
            # The question was about that one; a late "y" must not hit its neighbour.
            self.mode, self.note = "browse", f"{self.selected} has ended by itself"
        self._row = max(0, min(self._row, len(ids) - 1))
        self.selected = ids[self._row] if ids else None

    def press(self, key: str, snapshot: Snapshot) -> Action:
        """Do what `key` means here and now."""
        if key == "quit":
            return Quit()
        match self.mode:
            case "filter":
                return self._type(key)
            case "confirm":
                return self._confirm(key)
            case "browse":
                self.note = ""
                return self._browse(key, snapshot)

    def _browse(self, key: str, snapshot: Snapshot) -> Action:
        match key:
            case "q":
                return Quit()
            case "f":
                return self._next_fleet(snapshot.fleets)
            case "t":
                self.mode, self.typed = "filter", self.tenant
            case "escape":
                self.tenant, self.selected = "", None
                return Reread()
            case "up" | "k":
                self._step(-1, snapshot)
            case "down" | "j":
                self._step(1, snapshot)
            case "r" if self.selected is None:
                self.note = "select a lease first, with up and down"
            case "r":
                self.mode = "confirm"
        return None

    def _next_fleet(self, fleets: Sequence[str]) -> Action:
        # What is on the screen may be older than the last press.
        at = fleets.index(self.fleet) if self.fleet in fleets else -1
        self.fleet, self.selected, self._row = fleets[(at + 1) % len(fleets)], None, 0
        return Reread()

    def _step(self, by: int, snapshot: Snapshot) -> None:
        ids = [lease.lease for lease in self.leases(snapshot)]
        last = len(ids) - 1
        if self.selected in ids:
            self._row = max(0, min(ids.index(self.selected) + by, last))
        else:
            self._row = 0 if by > 0 else last
        self.selected = ids[self._row] if ids else None

    def _confirm(self, key: str) -> Action:
        lease, self.mode = self.selected, "browse"
        if key not in ("y", "Y") or lease is None:
            self.note = "nothing was revoked"
            return None
        return Revoke(lease)

    def _type(self, key: str) -> Action:
        match key:
            case "enter":
                self.mode, self.tenant, self.selected = "browse", self.typed, None
                return Reread()
            case "escape":
                self.mode = "browse"
            case "backspace":
                self.typed = self.typed[:-1]
            case _ if len(key) == 1 and key != " ":
                self.typed = (self.typed + key)[:NAME_CHARS_MAX]
        return None
