"""What `tenure up` says: where everything is and what to try, then one line per event."""

import json
import shlex
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from services.cli.embedded import Embedded
from services.cli.place import Place
from services.cli.plan import Plan
from services.cli.shown import print_json, print_line
from services.permits.scripts import LUA_DIR
from services.settings.load import find_config
from services.settings.schema import Settings

_PROMPT = "Tell me about leases."


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """Everything that runs. `pids` are by the name of the process; `server` is the embedded Redis, if any."""

    plan: Plan
    place: Place
    settings: Settings
    server: Embedded | None
    pids: Mapping[str, int]


class Report:
    """Speaks for one `tenure up`: results on stdout, everything else on stderr when that is JSON."""

    def __init__(self, *, as_json: bool) -> None:
        """Say nothing yet."""
        self._as_json = as_json

    def started(self, started: Started) -> None:
        """Say where everything is."""
        if self._as_json:
            print_json(_view(started))
            sys.stdout.flush()
            return
        for line in _lines(started):
            print_line(line)

    def event(self, text: str) -> None:
        """Say what happened just now."""
        line = f"{datetime.now(UTC).astimezone():%H:%M:%S} {text}"
        if self._as_json:
            sys.stderr.write(line + "\n")
        else:
            print_line(line)

    def stopping(self) -> None:
        """Say that the gateways drain."""
        self.event("draining: live streams may finish; Ctrl-C again to cut them")

    def stopped(self) -> None:
        """Say that nothing is left."""
        self.event("stopped")


def _view(started: Started) -> dict[str, Any]:
    plan, pids = started.plan, started.pids
    return {
        "gateways": [
            {"name": gateway.name.split()[-1], "url": gateway.url, "pid": pids[gateway.name]}
            for gateway in plan.gateways
        ],
        "reaper": {"url": plan.reaper.url, "pid": pids["reaper"]},
        "engine": {"url": plan.engine.url, "pid": pids["engine"]} if plan.engine else None,
        "redis": {"url": started.settings.redis.url, "pid": pids.get("redis")},
        "key": plan.key or None,
        "model": plan.model,
        "config": str(started.place.config),
    }


def _lines(started: Started) -> list[str]:
    plan, place, pids = started.plan, started.place, started.pids
    addresses = [(gateway.name, gateway.url, pids[gateway.name]) for gateway in plan.gateways]
    addresses.append(("reaper", f"{plan.reaper.url}/metrics", pids["reaper"]))
    if plan.engine:
        addresses.append(("engine", f"{plan.engine.url}  (simulated)", pids["engine"]))
    if started.server:
        addresses.append(("redis", f"{started.server.url}  ({started.server.binary})", pids["redis"]))
    lines = ["Tenure is up.", ""]
    lines += [f"  {name:<12}{url}  pid {pid}" for name, url, pid in addresses]
    lines += ["", f"  {'config':<12}{place.shown(place.config)}", f"  {'logs':<12}{place.shown(place.logs)}/"]
    if plan.key:
        lines.append(f"  {'demo key':<12}{plan.key}   (also in {place.shown(place.demo_key)})")
    lines += [f"  {'note':<12}{remark}" for remark in plan.remarks]
    lines += ["", "Stream through a gateway:", "", f"  {_curl(plan)}", "", "In a second terminal:", ""]
    lines += [f"  {command:<60}{what}" for command, what in _hints(started)]
    return [*lines, "", "Ctrl-C drains and stops everything."]


def _curl(plan: Plan) -> str:
    key = plan.key or "$KEY"
    messages = [{"role": "user", "content": _PROMPT}]
    body = json.dumps({"model": plan.model, "stream": True, "messages": messages})
    url = f"{plan.gateways[0].url}/v1/chat/completions"
    return (
        f"curl -N {url} -H 'content-type: application/json'"
        f' -H "authorization: Bearer {key}" -d {shlex.quote(body)}'
    )


def _hints(started: Started) -> list[tuple[str, str]]:
    plan, place = started.plan, started.place
    # Another file that is found first would lead the second terminal to another Redis.
    config = "" if find_config(None, {}) == place.config else f" --config {place.shown(place.config)}"
    hints = [
        (f"tenure leases{config}", "who holds what, since when, for how long"),
        (f"tenure fleets{config}", "what is in use, pool by pool"),
        (f"tenure doctor{config}", "what is wrong, and how to put it right"),
    ]
    fleet = next(iter(started.settings.fleets))
    if started.server and (redis_cli := shutil.which("redis-cli") or shutil.which("valkey-cli")):
        name = redis_cli.rsplit("/", 1)[-1]
        meta = shlex.quote(f"{started.settings.redis.prefix}:{{{fleet}}}:meta")
        script = place.shown(LUA_DIR / "inspect.lua")
        command = f"{name} -p {started.server.port} --eval {script} {meta}"
        hints.append((command, "the leases, from Redis alone"))
    victim = plan.gateways[-1]
    hints.append(
        (f"kill -9 {started.pids[victim.name]}", f"{victim.name} dies; its leases come back by themselves")
    )
    return hints
