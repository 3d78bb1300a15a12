"""The reaper as a process: it reclaims by itself, survives its Redis, and ends when it is told."""

import asyncio
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from services.permits.store import Store
from tests.reaper.conftest import Orphan
from tests.support import processes
from tests.support.config_file import FLEET, write_config
from tests.support.processes import Process
from tests.support.redis_server import RedisServer
from tests.support.waiting import wait_until


@pytest.fixture
async def reaper(tmp_path: Path, config: Path, store: Store) -> AsyncIterator[Process]:
    process = processes.reaper(tmp_path, config)
    await process.ready()
    yield process
    await process.end()


def reclaimed(*reapers: Process) -> list[dict[str, Any]]:
    return [line for one in reapers for line in one.json_lines() if line["event"] == "reclaimed"]


async def metric(reaper: Process, name: str) -> float:
    async with httpx.AsyncClient() as client:
        text = (await client.get(f"{reaper.url}/metrics")).text
    return next(float(line.split()[-1]) for line in text.splitlines() if line.startswith(name))


async def test_the_places_of_a_dead_holder_come_back_without_any_request(
    reaper: Process, orphan: Orphan, store: Store
) -> None:
    """Nobody calls the fleet for a while; the reaper alone makes its lease clock run."""
    await orphan("L1")
    await wait_until(lambda: reclaimed(reaper), "the reaper reports the lease")
    (line,) = reclaimed(reaper)
    assert (line["lease"], line["holder"]) == ("L1", "dead~nonce")
    assert (await store.count(FLEET)).total == 0
    assert await metric(reaper, 'tenure_reclaimed_total{fleet="demo"}') == 1
    assert await metric(reaper, 'tenure_drift{fleet="demo"}') == 0
    assert await metric(reaper, "tenure_redis_up") == 1
    assert await metric(reaper, "tenure_reaper_pass_seconds_count") >= 1
    assert await metric(reaper, 'tenure_script_seconds_count{verb="reap"}') >= 1
    assert await metric(reaper, "tenure_reaper_last_pass_age_seconds") < 5


async def test_two_reapers_report_every_lease_once(
    reaper: Process, tmp_path: Path, config: Path, orphan: Orphan
) -> None:
    """Any number may run: an alert that counts the log lines counts each crash once."""
    other = processes.reaper(tmp_path, config, name="other")
    try:
        await other.ready()
        leases = {await orphan(f"L{number}") for number in range(60)}
        await wait_until(lambda: len(reclaimed(reaper, other)) >= len(leases), "all leases are reported")
        passes_s = await metric(reaper, "tenure_reaper_pass_seconds_count")

        async def three_more_passes() -> bool:
            return await metric(reaper, "tenure_reaper_pass_seconds_count") > passes_s + 2

        await wait_until(three_more_passes, "further passes")
        assert sorted(line["lease"] for line in reclaimed(reaper, other)) == sorted(leases)
    finally:
        await other.end()


async def test_a_redis_that_restarts_is_survived_and_said_once(
    reaper: Process, redis_server: RedisServer, store: Store
) -> None:
    """An outage of any length must not end the process or fill the disk."""
    redis_server.stop()

    async def not_ready() -> bool:
        async with httpx.AsyncClient() as client:
            return (await client.get(f"{reaper.url}/readyz")).status_code == 503

    await wait_until(not_ready, "the reaper is not ready any more", 10)
    assert await metric(reaper, "tenure_redis_up") == 0
    await reaper.ready("/healthz")
    redis_server.start()
    await reaper.ready()
    events = [line["event"] for line in reaper.json_lines()]
    assert events.count("pass failed, trying on") == 1
    assert events.count("recovered") == 1


async def test_a_redis_that_hangs_is_survived(reaper: Process, redis_server: RedisServer) -> None:
    redis_server.pause()

    async def down() -> bool:
        return await metric(reaper, "tenure_redis_up") == 0

    await wait_until(down, "the reaper notices", 10)
    redis_server.resume()
    await reaper.ready()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_it_with_exit_code_0(reaper: Process, number: signal.Signals) -> None:
    reaper.signal(number)
    assert await reaper.wait(5) == 0
    assert reaper.json_lines()[-1]["event"] == "stopped"


async def test_signals_that_go_on_until_it_is_gone_do_not_spoil_a_clean_end(reaper: Process) -> None:
    while reaper.alive:
        reaper.signal(signal.SIGTERM)
        await asyncio.sleep(0)
    assert await reaper.wait(5) == 0


async def test_a_signal_ends_it_also_while_redis_hangs(reaper: Process, redis_server: RedisServer) -> None:
    redis_server.pause()
    reaper.signal(signal.SIGTERM)
    assert await reaper.wait(5) == 0


async def test_a_redis_that_evicts_is_refused_in_one_line(
    tmp_path: Path, spare_redis: Callable[..., RedisServer]
) -> None:
    """It would throw leases away; better not to start."""
    config = write_config(tmp_path, spare_redis("--maxmemory-policy", "allkeys-lru").url, ["http://h"])
    process = processes.reaper(tmp_path, config)
    assert await process.wait(20) == 1
    (line,) = process.log_text().splitlines()
    assert "allkeys-lru" in line
    assert "noeviction" in line


async def test_a_redis_that_is_away_at_the_start_is_waited_for(
    tmp_path: Path, spare_redis: Callable[..., RedisServer]
) -> None:
    """Processes of a fleet start in any order."""
    server = spare_redis()
    server.stop()
    process = processes.reaper(tmp_path, write_config(tmp_path, server.url, ["http://h"]))
    await process.ready("/healthz")
    server.start()
    await process.ready()
    await process.end()


async def test_a_taken_health_port_is_one_line_that_names_the_option(
    reaper: Process, tmp_path: Path, config: Path
) -> None:
    other = processes.reaper(tmp_path, config, name="other", port=int(reaper.url.rpartition(":")[2]))
    assert await other.wait(20) == 1
    (line,) = other.log_text().splitlines()
    assert "--port" in line
    assert "in use" in line
