"""Wall clocks that jump or stand still: leases are neither lost by it nor do they live for ever.

Each process has a wall clock of its own here, which the test steps while streams run.
"""

from __future__ import annotations

import time
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.nodes.places import Ends, Eye, looking_at, nothing_runs
from tests.support.answers import Stream
from tests.support.burst import burst
from tests.support.config_file import LEASE, key_of
from tests.support.edition import edition
from tests.support.redis_server import RedisServer, a_redis
from tests.support.rig import Rig, rig
from tests.support.skewed_clock import SkewedClock
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from tests.support.client import Call
    from tests.support.processes import Process
    from tests.support.scripted_engine import ScriptedEngine

pytestmark = pytest.mark.timeout(180)

HOUR_S: Final = 3600.0
DAY_S: Final = 86_400.0
TTL_S: Final = LEASE["ttl_ms"] / 1000
# A reaper's period, and what a busy machine takes to do it.
RECLAIMED_WITHIN_S: Final = TTL_S + 5
TOTAL: Final = 4
STREAM: Final = Stream(tokens=None, gap_s=0.05)
BUDGETS: Final = {"first_token_ms": 60_000, "idle_ms": 60_000, "stall_ms": 60_000, "total_ms": 120_000}
# The same scripts with the lease clock following the wall clock wherever it goes forward.
UNCLAMPED: Final = {"lua/includes/read_clock.lua": (r"math\.min\(([^\n]*), 2 \* tick_ms\)", r"\1")}


@pytest.fixture
def clock(tmp_path: Path) -> SkewedClock:
    return SkewedClock(tmp_path / "clock")


@pytest.fixture
def skewed_redis(clock: SkewedClock) -> Iterator[RedisServer]:
    """A Redis whose wall clock is the test's."""
    with a_redis(environment=clock.environment) as server:
        yield server


@asynccontextmanager
async def replicas_on(folder: Path, redis_url: str, engine: ScriptedEngine) -> AsyncIterator[Rig]:
    """No gateway yet, one reaper, and room for TOTAL streams that only a lease could end."""
    engine.answer = STREAM
    engines = [{"url": engine.url, "name": "e1"}]
    fleet = {"total": TOTAL, "cold": TOTAL}
    async with rig(
        folder, redis_url, engines=engines, gateways=0, reapers=1, fleet=fleet, budgets=BUDGETS
    ) as made:
        yield made


async def all_places(replicas: Rig, opened: ExitStack) -> list[Call]:
    """Take every place, in turn through the first two replicas; the streams end with `opened`."""
    ends = Ends(replicas.gateways)
    calls = [opened.enter_context(await ends.call(replicas.urls[n % 2])) for n in range(TOTAL)]
    for call in calls:
        assert await call.first_token() is not None
    return calls


async def nothing_changes(calls: list[Call], eye: Eye, engine: ScriptedEngine, last: Process) -> None:
    """For longer than a lease: all streams go on, each with its lease, and nobody else is admitted."""
    until_s = time.monotonic() + 1.5 * TTL_S

    async def is_over() -> bool:
        with await burst(1, [last.url], key=key_of("acme")) as newcomer:
            assert dict(newcomer.statuses) == {429: 1}
        for call in calls:
            assert await call.next_token() is not None
        assert await eye.live() == TOTAL
        return time.monotonic() >= until_s

    await wait_until(is_over, "time passes", 60)
    assert await eye.lapsed() == 0
    assert engine.max_open == TOTAL


async def the_dead_go(replicas: Rig, eye: Eye, engine: ScriptedEngine) -> None:
    """Kill the second replica: its two places come back on time, and no more than those."""
    replicas.gateways[1].kill9()
    killed_s = time.monotonic()
    await eye.see(TOTAL - 2, "the dead replica's leases end", RECLAIMED_WITHIN_S)
    print(f"the places of the dead were back after {time.monotonic() - killed_s:.2f} s")  # noqa: T201
    with await burst(3, replicas.urls[2:], key=replicas.key()) as newcomers:
        assert dict(newcomers.statuses) == {200: 2, 429: 1}
    assert engine.max_open <= TOTAL


@pytest.mark.parametrize("steps_s", [(HOUR_S,), (-HOUR_S,), (HOUR_S, 0.0)], ids=["forward", "back", "there"])
async def test_a_step_of_the_wall_clock_of_redis_neither_ends_a_lease_nor_keeps_one(
    tmp_path: Path,
    skewed_redis: RedisServer,
    clock: SkewedClock,
    engine: ScriptedEngine,
    steps_s: tuple[float, ...],
) -> None:
    async with replicas_on(tmp_path, skewed_redis.url, engine) as replicas:
        for _ in range(3):
            await replicas.add_gateway()
        async with looking_at(replicas.configs[0]) as eye:
            with ExitStack() as opened:
                calls = await all_places(replicas, opened)
                for step_s in steps_s:
                    clock.shift(step_s)
                    await nothing_changes(calls, eye, engine, replicas.gateways[2])
                await the_dead_go(replicas, eye, engine)
            await nothing_runs(eye, engine)


async def test_without_the_clamp_a_step_forward_admits_a_second_crowd(
    tmp_path: Path, skewed_redis: RedisServer, clock: SkewedClock, engine: ScriptedEngine
) -> None:
    """The control arm: a lease clock that follows the wall clock fails what the test above asserts."""
    root = edition(tmp_path / "unclamped", UNCLAMPED)
    async with replicas_on(tmp_path, skewed_redis.url, engine) as replicas:
        for _ in range(3):
            await replicas.add_gateway(root=root)
        with ExitStack() as opened:
            await all_places(replicas, opened)
            clock.shift(HOUR_S)
            with await burst(TOTAL, replicas.urls[2:], key=replicas.key()) as newcomers:
                assert newcomers.statuses[200] > 0
                assert engine.max_open > TOTAL
        async with looking_at(replicas.configs[0]) as eye:
            await nothing_runs(eye, engine)


async def test_gateways_whose_wall_clocks_are_days_apart_agree_about_every_lease(
    tmp_path: Path, redis_url: str, engine: ScriptedEngine
) -> None:
    """No clock of a gateway reaches Redis, nor decides when a request ends."""
    clocks = [SkewedClock(tmp_path / name) for name in ("early", "late")]
    for clock, skew_s in zip(clocks, (-10 * DAY_S, 10 * DAY_S), strict=True):
        clock.shift(skew_s)
    async with replicas_on(tmp_path, redis_url, engine) as replicas:
        for clock in clocks:
            await replicas.add_gateway(environment=clock.environment)
        await replicas.add_gateway()
        async with looking_at(replicas.configs[0]) as eye:
            with ExitStack() as opened:
                calls = await all_places(replicas, opened)
                await nothing_changes(calls, eye, engine, replicas.gateways[2])
                # Stepped while its streams run, across each other.
                clocks[0].shift(10 * DAY_S)
                clocks[1].shift(-10 * DAY_S)
                await nothing_changes(calls, eye, engine, replicas.gateways[2])
                await the_dead_go(replicas, eye, engine)
            await nothing_runs(eye, engine)


async def test_a_wall_clock_of_redis_that_stands_still_is_reported_and_costs_only_the_dead(
    tmp_path: Path, skewed_redis: RedisServer, clock: SkewedClock, engine: ScriptedEngine
) -> None:
    """Nothing can expire then. What is released is free at once all the same, and somebody is told."""
    async with replicas_on(tmp_path, skewed_redis.url, engine) as replicas:
        for _ in range(3):
            await replicas.add_gateway()
        async with looking_at(replicas.configs[0]) as eye:
            with ExitStack() as opened:
                calls = await all_places(replicas, opened)
                clock.freeze()
                frozen_s = time.monotonic()
                await nothing_changes(calls, eye, engine, replicas.gateways[2])
                calls[0].reset()
                await eye.see(TOTAL - 1, "a place that is given back is free")
                opened.enter_context(await burst(1, replicas.urls[2:], key=replicas.key()))
                await eye.see(TOTAL, "and taken again")
                replicas.gateways[1].kill9()
                await wait_until(lambda: alarms(replicas.gateways[0]), "the alarm", 30)
                print(f"the alarm came {time.monotonic() - frozen_s:.1f} s after the clock stopped")  # noqa: T201
                assert await eye.live() == TOTAL
                clock.shift(0.0)
                await eye.see(TOTAL - 2, "the dead replica's leases end", RECLAIMED_WITHIN_S)
                assert engine.max_open <= TOTAL
            await nothing_runs(eye, engine)


def alarms(gateway: Process) -> list[dict[str, Any]]:
    return [line for line in gateway.json_lines() if line["event"] == "lease_clock_off"]
