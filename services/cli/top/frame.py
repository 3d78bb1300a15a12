"""One frame of `tenure top`: a snapshot as lines that fit the terminal, the most urgent first.

Everything is cut to the width; what does not fit the height is counted in its title. In a terminal of a few
lines the recent events go first, then tenants and line, then leases.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from rich.text import Text

from services.cli.top.parts import (
    Column,
    Signs,
    beside,
    cell,
    clock_of,
    gauge,
    middle,
    span,
    table,
    titled,
)
from services.cli.top.snapshot import Event, Snapshot
from services.cli.top.view import View

# Where nothing limits the height: a frame in a pipe or a file.
ALL_ROWS: Final = 1000
_HEAD_ROWS: Final = 1
_FOOT_ROWS: Final = 1
# Title and head of a block.
_TOP_ROWS: Final = 2
_TITLE_ROWS: Final = 1
_PLUMBING: Final = frozenset({"id", "at", "kind", "fleet"})


@dataclass(frozen=True, slots=True)
class Page:
    """The size of a terminal and what it can draw."""

    width: int
    height: int
    signs: Signs


def frame(snapshot: Snapshot, view: View, page: Page) -> list[Text]:
    """Return at most `page.height` lines of at most `page.width` cells."""
    left = max(0, page.height - _HEAD_ROWS - _FOOT_ROWS)
    pools = _pools(snapshot, page, max(1, left // 4))
    rows = _share_out(snapshot, view, left - len(pools))
    lines = [_head(snapshot, view, page), *pools]
    lines += _both(snapshot, view, page, rows.both) if rows.both else []
    lines += _leases(snapshot, view, page, rows.leases) if rows.leases else []
    lines += _recent(snapshot, page, rows.recent) if rows.recent else []
    if page.height < ALL_ROWS:
        lines += [Text()] * (page.height - len(lines) - _FOOT_ROWS)
        lines = [*lines[: max(0, page.height - _FOOT_ROWS)], _foot(view, page)]
    for line in lines:
        line.truncate(page.width)
    return lines


@dataclass(frozen=True, slots=True)
class _Rows:
    """How many rows each block gets, its title and head not counted; 0 leaves the block out."""

    both: int
    leases: int
    recent: int


def _share_out(snapshot: Snapshot, view: View, left: int) -> _Rows:
    """Share `left` lines out: a third for tenants and line, a quarter for events; what is spare goes on."""
    wanted = max(len(_tenants(snapshot, view)), len(view.line(snapshot)), 1)
    both = min(wanted, max(0, left // 3 - 1))
    left -= both + _TOP_ROWS if both else 0
    leases = max(1, len(view.leases(snapshot)))
    recent = max(left // 4, left - leases - _TOP_ROWS) - _TITLE_ROWS
    recent = max(0, min(recent, max(1, len(snapshot.recent))))
    left -= recent + _TITLE_ROWS if recent else 0
    return _Rows(both, max(0, min(leases, left - _TOP_ROWS)), recent)


def _head(snapshot: Snapshot, view: View, page: Page) -> Text:
    state = snapshot.state
    at, of = snapshot.fleets.index(snapshot.fleet) + 1, len(snapshot.fleets)
    words = [f"fleet {snapshot.fleet}" + (f" ({at}/{of})" if of > 1 else "")]
    words.append(f"{state['gateways']} gateway{'' if state['gateways'] == 1 else 's'}")
    if view.tenant:
        words.append(f"tenant {view.tenant}*")
    warnings = []
    if state["learning_ms"]:
        warnings.append(f"learning for {span(state['learning_ms'])}")
    if state["shadow"]:
        warnings.append(f"shadow {' '.join(state['shadow'])}")
    if state["over_commit"]:
        warnings.append(f"{state['over_commit']} over the limit")
    right = f"{snapshot.at:%H:%M:%S}"
    line = Text.assemble(("tenure top", "bold"), "  ", "  ".join(words))
    for warning in warnings:
        line.append("  ").append(warning, style="bold red")
    line.truncate(max(0, page.width - len(right) - 1), pad=True)
    return line.append(" ").append(right, style="dim")


def _pools(snapshot: Snapshot, page: Page, rows: int) -> list[Text]:
    """Return gauges, two in a row; of many engines the fullest."""
    pools = snapshot.state["pools"]
    engines = sorted(pools["engines"].items(), key=lambda item: -item[1]["in_use"])
    every = [("total", pools["total"]), ("cold", pools["cold"]), *engines]
    shown = every if len(every) <= 2 * rows else every[: 2 * rows - 1]
    half = max(0, (page.width - 2) // 2)
    cells = [gauge(name, pool["in_use"], pool["limit"], half, page.signs) for name, pool in shown]
    if len(shown) < len(every):
        cells.append(Text(f"and {len(every) - len(shown)} more", style="dim"))
    return [Text("  ").join(cells[number : number + 2]) for number in range(0, len(cells), 2)]


def _tenants(snapshot: Snapshot, view: View) -> list[tuple[str, Any]]:
    """Return the tenants that are shown, those first who wait or hold the most."""
    tenants = snapshot.state["pools"]["tenants"]
    shown = [(name, pool) for name, pool in tenants.items() if name.startswith(view.tenant)]
    return sorted(shown, key=lambda item: (-item[1]["waiting"], -item[1]["in_use"], item[0]))


def _both(snapshot: Snapshot, view: View, page: Page, rows: int) -> list[Text]:
    """Return tenants and line, side by side."""
    left = page.width // 2
    right = page.width - left - 1
    return beside(
        _tenant_block(snapshot, view, page, (left, rows)),
        _line_block(snapshot, view, page, (right, rows)),
        left,
    )


def _tenant_block(snapshot: Snapshot, view: View, page: Page, size: tuple[int, int]) -> list[Text]:
    width, rows = size
    every = _tenants(snapshot, view)
    columns = [
        Column("name", max(4, width - 24)),
        *(Column(t, 7, "right") for t in ("in use", "limit", "waiting")),
    ]
    cells = []
    for name, pool in every[:rows]:
        limit = pool["limit"]
        full = limit is not None and pool["in_use"] >= limit
        style = "red" if full and pool["waiting"] else "yellow" if full else ""
        figures = (str(pool["in_use"]), "-" if limit is None else str(limit), str(pool["waiting"]))
        cells.append(((name, *figures), style))
    return [_title(titled("TENANTS", len(cells), len(every))), *table(columns, cells, width, page.signs)]


def _line_block(snapshot: Snapshot, view: View, page: Page, size: tuple[int, int]) -> list[Text]:
    width, rows = size
    every = view.line(snapshot)
    columns = [
        Column("tenant", max(4, width - 22)),
        Column("class", 5),
        Column("waited", 6, "right"),
        Column("until", 7, "right"),
    ]
    cells = [((w.tenant, w.class_, span(w.waited_ms), span(w.deadline_in_ms)), "") for w in every[:rows]]
    total = len(every) if view.tenant else max(len(every), snapshot.state["waiting"])
    return [_title(titled("LINE", len(cells), total)), *table(columns, cells, width, page.signs)]


def _leases(snapshot: Snapshot, view: View, page: Page, rows: int) -> list[Text]:
    every = view.leases(snapshot)
    ids = [lease.lease for lease in every]
    at = ids.index(view.selected) if view.selected in ids else 0
    # The selected one stays on the screen.
    first = max(0, min(at - rows // 2, len(every) - rows))
    shown = every[first : first + rows]
    id_width = max(8, page.width - 59)
    columns = [
        Column("", 1),
        Column("lease", id_width),
        Column("tenant", 12),
        Column("class", 5),
        Column("phase", 8),
        Column("engine", 10),
        Column("age", 7, "right"),
        Column("left", 6, "right"),
    ]
    cells = []
    for lease in shown:
        selected = lease.lease == view.selected
        row = (
            page.signs.mark if selected else "",
            middle(lease.lease, id_width, page.signs),
            *(lease.tenant, lease.class_, lease.phase, lease.engine),
            *(span(lease.age_ms), span(lease.expires_in_ms)),
        )
        cells.append((row, "reverse" if selected else ""))
    total = len(every) if view.tenant else max(len(every), snapshot.state["pools"]["total"]["in_use"])
    title = titled("LEASES, oldest first:", len(shown), total)
    return [_title(title), *table(columns, cells, page.width, page.signs)]


def _recent(snapshot: Snapshot, page: Page, rows: int) -> list[Text]:
    title = "RECENT" if snapshot.recent else "RECENT: nothing yet"
    return [_title(title), *(_event(event, page) for event in snapshot.recent[:rows])]


def _event(event: Event, page: Page) -> Text:
    kind = str(event.get("kind", "?"))
    style = {"reclaimed": "yellow", "revoked": "magenta", "reasserted": "red"}.get(kind, "")
    rest = " ".join(f"{key}={value}" for key, value in _telling(event) if value not in ("", None))
    text = f"{clock_of(event['at'])} {kind} {rest}"
    return Text(cell(text, page.width, page.signs), style=style)


def _telling(event: Event) -> Sequence[tuple[str, Any]]:
    """Return what an event says, the long id last: it is what may be cut."""
    facts = [(key, value) for key, value in event.items() if key not in _PLUMBING]
    return sorted(facts, key=lambda fact: fact[0] in ("lease", "holder", "request_id"))


def _title(text: str) -> Text:
    return Text(text, style="bold")


def _foot(view: View, page: Page) -> Text:
    match view.mode:
        case "filter":
            return Text(f"tenant begins with: {view.typed}_   (Enter shows them, Esc leaves)", style="bold")
        case "confirm":
            lease = middle(view.selected or "", max(8, page.width - 32), page.signs).rstrip()
            return Text(f"revoke {lease}? y ends its request, n not", style="bold red")
        case "browse" if view.trouble:
            return Text(view.trouble, style="bold red")
        case "browse" if view.note:
            return Text(view.note, style="bold")
        case "browse":
            return Text("q quit  f fleet  t tenant  up/down select  r revoke  Esc all", style="dim")
