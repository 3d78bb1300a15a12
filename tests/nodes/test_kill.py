"""A replica dies without a word: its places come back by themselves, and nobody else notices."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from services.permits.scripts import LUA_DIR
from tests.nodes.places import (
    META,
    SLOW,
    Ends,
    Eye,
    admits_exactly,
    looking_at,
    nothing_runs,
    reclaimed_events,
)
from tests.support.client import Call, chat_body
from tests.support.config_file import LEASE
from tests.support.processes import ROOT
from tests.support.redis_server import cli_binary
from tests.support.rig import Rig, rig
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from tests.support.redis_server import RedisServer
    from tests.support.scripted_engine import ScriptedEngine

pytestmark = pytest.mark.timeout(120)

TTL_S: Final = LEASE["ttl_ms"] / 1000
REAPER_S: Final = 0.5
GRACE_S: Final = 0.5
# How far the millisecond figures of two readings may be apart.
READING_S: Final = 0.01
ENGINE_NOTICES_S: Final = 0.5
KILLS: Final = 2


def tenure_leases(config: Path) -> list[dict[str, Any]]:
    """Return what `tenure leases --json` prints."""
    command = [sys.executable, "-m", "services.cli", "leases", "--json", "--config", str(config)]
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=30)
    leases: list[dict[str, Any]] = json.loads(printed.stdout)["leases"]
    return leases


def redis_cli_leases(server: RedisServer) -> set[str]:
    """Return the leases that an engineer with nothing but redis-cli sees."""
    script = LUA_DIR / "inspect.lua"
    client = cli_binary()
    if client is None:
        lines = server.cli("EVAL", script.read_text(), 1, META)
    else:
        command = [client, "-s", str(server.socket_path), "--eval", str(script), META]
        printed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10)
        lines = [line for line in printed.stdout.splitlines() if line]
    return {dict(word.split("=", 1) for word in line.split())["lease"] for line in lines}


async def test_a_killed_replicas_places_come_back_within_one_lease_and_nobody_else_notices(
    redis_server: RedisServer, redis_url: str, engine: ScriptedEngine, tmp_path: Path
) -> None:
    """The pool stays full while the leases last, then everything is as if the replica had never been."""
    engine.answer = SLOW
    took_s, reported, victims = [], [], []
    async with rig(tmp_path, redis_url, engines=[{"url": engine.url, "name": "e1"}], reapers=2) as replicas:
        async with looking_at(replicas.configs[0]) as eye:
            for number in range(KILLS):
                if number:
                    await replicas.restart_gateway(0)
                held, survivor = await _fill(replicas)
                with survivor:
                    await _shows(replicas, redis_server, [*held, survivor])
                    took_s.append(await _kill(replicas, eye, engine, held))
                    await _shows(replicas, redis_server, [survivor])
                    victims += [call.headers["tenure-lease"] for call in held]
                    await _gets_the_places(replicas, engine, 3)
                    assert await survivor.next_token() is not None
                    assert survivor.ended is None
                await nothing_runs(eye, engine)
        await admits_exactly(4, replicas, engine, by=slice(1, 3))

        def reports() -> list[dict[str, Any]]:
            lines = [line for reaper in replicas.reapers for line in reaper.json_lines()]
            return [line for line in lines if line.get("event") == "reclaimed"]

        await wait_until(lambda: len(reports()) >= len(victims), "all are reported")
        reported = reports()
    # Each once, by one of the two reapers, with who, whose and how old; and the same in the event stream.
    assert sorted(line["lease"] for line in reported) == sorted(victims)
    for line in reported:
        assert (line["fleet"], line["tenant"], line["class"], line["engine"]) == (
            "demo",
            "acme",
            "cold",
            "e1",
        )
        assert line["lease"].startswith(line["holder"])
        assert line["holder"].startswith("g1~")
        assert line["age_ms"] >= TTL_S * 1000 / 2
    assert sorted(event["lease"] for event in reclaimed_events(redis_server)) == sorted(victims)
    assert engine.max_open <= 4
    sys.stdout.write(f"places were back after {', '.join(f'{seconds:.2f} s' for seconds in took_s)}\n")


async def _fill(replicas: Rig) -> tuple[list[Call], Call]:
    """Start three streams on the first replica and one on the second."""
    first, second, _ = replicas.urls
    calls = [
        await Call.start(url, key=replicas.key(), body=chat_body()) for url in (first, first, first, second)
    ]
    for call in calls:
        assert await call.first_token() is not None
    return calls[:3], calls[3]


async def _shows(replicas: Rig, redis_server: RedisServer, calls: list[Call]) -> None:
    """All views show the same leases as the clients were told."""
    told = {call.headers["tenure-lease"] for call in calls}
    shown = tenure_leases(replicas.configs[0])
    assert {row["lease"] for row in shown} == told
    assert {row["request_id"] for row in shown} == {call.headers["x-request-id"] for call in calls}
    for row in shown:
        assert (row["tenant"], row["engine"], row["class"], row["fleet"]) == ("acme", "e1", "cold", "demo")
        assert row["age_ms"] > 0
        assert 0 < row["expires_in_ms"] <= TTL_S * 1000
    assert redis_cli_leases(redis_server) == told


async def _kill(replicas: Rig, eye: Eye, engine: ScriptedEngine, held: list[Call]) -> float:
    """Kill the first replica and return how many seconds later its places were back."""
    ids = {call.headers["x-request-id"] for call in held}
    leases = {call.headers["tenure-lease"] for call in held}
    left_s = min(row.expires_in_ms for row in await eye.leases() if row.lease in leases) / 1000
    before_s = time.monotonic()
    replicas.gateways[0].kill9()
    killed_s = time.monotonic()

    at_engine = [seen for seen in engine.requests if seen.header("x-request-id") in ids]
    assert len(at_engine) == 3
    await wait_until(lambda: engine.open == 1, "the engine lost the three")
    for seen in at_engine:
        assert seen.closed_by == "client"
        assert seen.closed_at is not None
        assert seen.closed_at - before_s < ENGINE_NOTICES_S
    for call in held:
        await call.rest()
        assert call.ended in {"cut", "reset"}
        call.close()

    await eye.see(1, "the places of the dead are back", TTL_S + REAPER_S + GRACE_S)
    back_s = time.monotonic()
    # Renewed for the last time after we read them, so not before that; and at the latest after one lease.
    assert back_s - before_s > left_s - READING_S
    assert back_s - killed_s < TTL_S + REAPER_S + GRACE_S
    return back_s - killed_s


async def _gets_the_places(replicas: Rig, engine: ScriptedEngine, count: int) -> None:
    """The survivors take exactly `count` places at once."""
    ends = Ends(replicas.gateways[1:])
    calls = [await ends.call(replicas.urls[1 + number % 2]) for number in range(count + 1)]
    assert sorted([await call.head() for call in calls]) == [200] * count + [429]
    await wait_until(lambda: engine.open == count + 1, "they are at the engine")
    for call in calls:
        call.reset()
    await wait_until(lambda: engine.open == 1, "they are gone again")
