"""What `tenure up` says: where everything is and what to try, then one line per event."""

import json
import shlex
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from services.cli.embedded import Embedded
from services.cli.failure import without_secrets
from services.cli.place import Place, shown
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

    def __init__(self, *, as_json: bool, program: str) -> None:
        """Say nothing yet; `program` is how the user calls us."""
        self._as_json = as_json
        self._program = program

    def starting(self, plan: Plan) -> None:
        """Say what is being started; it takes a few seconds."""
        if not self._as_json:
            parts = ["redis"] if plan.embedded else []
            parts += [gateway.name for gateway in plan.gateways] + ["reaper"]
            parts += ["engine (simulated)"] if plan.engine else []
            print_line(f"Starting {', '.join(parts)} ...")

    def started(self, started: Started) -> None:
        """Say where everything is."""
        if self._as_json:
            print_json(_view(started))
            sys.stdout.flush()
            return
        for line in _lines(started, self._program):
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
        self.event("draining: live streams may finish; Ctrl-C again cuts them")

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
        "redis": {"url": without_secrets(started.settings.redis.url), "pid": pids.get("redis")},
        "key": plan.key or None,
        "model": plan.model,
        "config": str(started.place.config),
    }


def _lines(started: Started, program: str) -> list[str]:
    plan, place = started.plan, started.place
    lines = ["Tenure is up.", "", *_addresses(started), ""]
    lines += [f"  {'config':<12}{shown(place.config)}", f"  {'logs':<12}{shown(place.logs)}/"]
    if plan.key:
        lines.append(f"  {'demo key':<12}{plan.key}   (also in {shown(place.demo_key)})")
    lines += [f"  {'note':<12}{remark}" for remark in plan.remarks]
    lines += ["", "Stream through a gateway:", "", f"  {_curl(plan)}", "", "In a second terminal:", ""]
    # A shell takes what follows # for a comment, so whole lines can be pasted.
    lines += [f"  {command:<34}  # {what}" for command, what in _hints(started, program)]
    return [*lines, "", "Ctrl-C drains and stops everything.", ""]


def _addresses(started: Started) -> list[str]:
    plan = started.plan
    rows = [(gateway.name, gateway.url, "") for gateway in plan.gateways]
    rows.append(("reaper", plan.reaper.url, "/healthz /readyz /metrics"))
    if plan.engine:
        rows.append(("engine", plan.engine.url, "simulated"))
    if started.server:
        rows.append(("redis", started.server.url, started.server.binary))
    return [f"  {name:<12}{url:<30}pid {started.pids[name]:<9}{more}".rstrip() for name, url, more in rows]


def _curl(plan: Plan) -> str:
    key = plan.key or "$KEY"
    messages = [{"role": "user", "content": _PROMPT}]
    body = json.dumps({"model": plan.model, "stream": True, "messages": messages})
    url = f"{plan.gateways[0].url}/v1/chat/completions"
    return (
        f"curl -N {url} -H 'content-type: application/json'"
        f' -H "authorization: Bearer {key}" -d {shlex.quote(body)}'
    )


def _hints(started: Started, program: str) -> list[tuple[str, str]]:
    plan, place = started.plan, started.place
    # Another file that is found first would lead the second terminal to another Redis.
    found = find_config(None, {})
    same = found is not None and found.resolve() == place.config.resolve()
    config = "" if same else f" --config {shown(place.config)}"
    hints = [
        (f"{program} top{config}", "all of it, live"),
        (f"{program} leases{config}", "who holds what, since when, for how long"),
        (f"{program} fleets{config}", "what is in use, pool by pool"),
        (f"{program} doctor{config}", "what is wrong, and how to put it right"),
    ]
    fleet = next(iter(started.settings.fleets))
    if started.server and (redis_cli := shutil.which("redis-cli") or shutil.which("valkey-cli")):
        meta = shlex.quote(f"{started.settings.redis.prefix}:{{{fleet}}}:meta")
        script = shown(LUA_DIR / "inspect.lua")
        command = f"{Path(redis_cli).name} -p {started.server.port} --eval {script} {meta}"
        hints.append((command, "the leases, from Redis alone"))
    victim = plan.gateways[-1]
    kill = f"kill -9 {started.pids[victim.name]}"
    hints.append((kill, f"{victim.name} dies; its leases come back by themselves"))
    return hints
