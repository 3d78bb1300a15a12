"""`tenure limits`: a fleet's limits as they are in force and as the file has them, shown or set."""

from collections.abc import Mapping, Sequence
from typing import Any

from services.cli.failure import WrongUsage
from services.cli.reach import administer
from services.cli.shown import print_json, print_rows
from services.permits.admin_model import FleetState
from services.settings.schema import Settings
from services.settings.seed import seed_limits

_PLAIN = ("total", "cold", "tenant_default", "line_max", "line_max_per_tenant")


async def limits(settings: Settings, fleet: str, words: Sequence[str], *, as_json: bool) -> None:
    """Set what `words` say, all or nothing, then show every limit."""
    changes = assignments(words, "total=8")
    async with administer(settings) as admin:
        state = await (admin.set_limits(fleet, changes) if changes else admin.fleet(fleet))
    live, file = _live(state), _file(settings, fleet)
    both = {
        name: {"live": value, **({"file": file.get(name)} if file else {})} for name, value in live.items()
    }
    if as_json:
        print_json({"fleet": fleet, "limits": both})
        return
    columns = ("limit", "live", "file", "note") if file else ("limit", "live")
    print_rows(columns, [_row(name, pair, name in changes) for name, pair in both.items()], empty="")


def assignments(words: Sequence[str], example: str) -> dict[str, str]:
    """Read `NAME=VALUE` words; raises WrongUsage for anything else, and for a name that comes twice."""
    found: dict[str, str] = {}
    for word in words:
        name, sign, value = word.partition("=")
        if not (name and sign):
            raise WrongUsage(f"{word[:80]!a} must be NAME=VALUE, like {example}")
        if name in found:
            raise WrongUsage(f"{name[:80]} is given twice")
        found[name] = value
    return found


def _live(state: FleetState) -> dict[str, int | str | None]:
    """Return the limits in force: numbers, and the kinds of pools that are only watched."""
    limits = state.counts.limits
    engines = sorted(name for name in limits if name.startswith("engine:"))
    return {**{name: limits.get(name) for name in (*_PLAIN, *engines)}, "shadow": " ".join(state.shadow)}


def _file(settings: Settings, fleet: str) -> Mapping[str, int | str]:
    """Return the file's limits, empty when it does not name the fleet."""
    return {**seed_limits(settings, fleet), "shadow": ""} if fleet in settings.fleets else {}


def _row(name: str, pair: Mapping[str, Any], changed: bool) -> dict[str, Any]:
    differs = "file" in pair and pair["live"] != pair["file"]
    note = "set now" if changed else "differs from the file; the live value holds" if differs else ""
    return {"limit": name, "note": note, **{where: _text(value) for where, value in pair.items()}}


def _text(value: int | str | None) -> int | str:
    return "-" if value is None or value == "" else value
