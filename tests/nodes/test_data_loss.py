"""Redis loses its data or its scripts under live streams: no limit is broken, nobody repairs anything."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import pytest

from tests.nodes.places import (
    GATEWAYS,
    LIMITS,
    SLOW,
    TOTAL,
    Ends,
    Eye,
    admits_exactly,
    each_ended_once,
    looking_at,
    nothing_runs,
)
from tests.support.answers import Stream
from tests.support.client import Call, fetch
from tests.support.config_file import LEASE
from tests.support.rig import Rig, rig
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.support.redis_server import RedisServer
    from tests.support.scripted_engine import ScriptedEngine

pytestmark = pytest.mark.timeout(120)

LIMIT: Final = 6
TICK_S: Final = LEASE["tick_ms"] / 1000
LEARNING_S: Final = LEASE["learning_ms"] / 1000
REPLICAS: Final = 3


@dataclass
class Knocks:
    """Requests that somebody keeps sending to every replica: how each was answered."""

    codes: Counter[tuple[int, str | None]] = field(default_factory=Counter)
    admitted: list[float] = field(default_factory=list)


@contextlib.asynccontextmanager
async def knocking(ends: Ends, urls: list[str]) -> AsyncIterator[Knocks]:
    """Ask every replica for a place, again and again, and let go of what is got."""
    knocks = Knocks()

    async def knock(url: str) -> None:
        while True:
            with await ends.call(url) as call:
                status = await call.head()
                if status == 200:
                    knocks.admitted.append(time.monotonic())
                knocks.codes[status, None if status == 200 else await call.error_code()] += 1

    tasks = [asyncio.create_task(knock(url)) for url in urls]
    try:
        yield knocks
    finally:
        for task in tasks:
            task.cancel()
        for end in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(end, Exception):
                raise end


async def _full(replicas: Rig, ends: Ends, opened: ExitStack) -> list[Call]:
    """Take every place, two on each replica."""
    calls = [opened.enter_context(await ends.call(url)) for url in replicas.urls * 2]
    for call in calls:
        assert await call.first_token() is not None
    return calls


async def _remembered(redis_server: RedisServer) -> None:
    """Return when each replica has ticked since now, and so has seen the limits in force."""
    # Twice: a tick that was under way may have read the limits before it.
    for _ in range(2):
        await wait_until(lambda: len(_sessions(redis_server)) == REPLICAS, "all have a session")
        before = _sessions(redis_server)

        def all_ticked(before: dict[str, float] = before) -> bool:
            now = _sessions(redis_server)
            return all(now[holder] > score for holder, score in before.items())

        await wait_until(all_ticked, "all tick")


def _sessions(redis_server: RedisServer) -> dict[str, float]:
    return dict(redis_server.cli("ZRANGE", GATEWAYS, 0, -1, "WITHSCORES"))


@pytest.mark.parametrize("quiet", [True, False], ids=["quiet", "under_requests"])
async def test_a_flushed_redis_is_true_again_within_one_tick_and_lets_nobody_in_before(
    redis_server: RedisServer, redis_url: str, engine: ScriptedEngine, tmp_path: Path, quiet: bool
) -> None:
    """All places are taken by work that runs; an empty Redis must not give them out a second time."""
    engine.answer = SLOW
    fleet = {"total": 4, "cold": 4}
    tenants = {"acme": LIMIT, "other": 2}
    async with (
        rig(
            tmp_path, redis_url, engines=[{"url": engine.url, "name": "e1"}], fleet=fleet, tenants=tenants
        ) as replicas,
        looking_at(replicas.configs[0]) as eye,
    ):
        # Changed live, as an engineer would; the files say 4.
        redis_server.cli("HSET", LIMITS, "total", LIMIT, "cold", LIMIT, "tenant:other", 1)
        await _remembered(redis_server)
        limits = redis_server.cli("HGETALL", LIMITS)
        ends = Ends(replicas.gateways)
        with ExitStack() as opened:
            held = await _full(replicas, ends, opened)
            leases = {call.headers["tenure-lease"] for call in held}
            async with contextlib.AsyncExitStack() as more:
                knocks = Knocks() if quiet else await more.enter_async_context(knocking(ends, replicas.urls))
                true_s = await _flushed(redis_server, eye, leases)
                until_s = time.monotonic() + LEARNING_S + 3 * TICK_S
                await wait_until(lambda: time.monotonic() > until_s, "the window passes", 10)
            assert knocks.admitted == []
            # The key was valid throughout, and nobody was told anything but to come back.
            assert set(knocks.codes) <= {(429, "total_pool_full"), (429, "tenant_quota"), (503, "recovering")}
            assert quiet or knocks.codes[503, "recovering"] > 0
            assert redis_server.cli("HGETALL", LIMITS) == limits
            assert {row.lease for row in await eye.leases()} == leases
            for call in held:
                assert await call.next_token() is not None
        await nothing_runs(eye, engine)
        assert engine.max_open == LIMIT
        await admits_exactly(LIMIT, replicas, engine)
        await admits_exactly(1, replicas, engine, tenant="other")
    print(f"the counts were true again {true_s:.3f} s after FLUSHALL")  # noqa: T201


async def _flushed(redis_server: RedisServer, eye: Eye, leases: set[str]) -> float:
    """Flush, and return how many seconds later the counts are true again."""
    redis_server.cli("FLUSHALL")
    flushed_s = time.monotonic()

    async def whole() -> bool:
        # Each replica says at its next tick what it runs: the session and all its leases in one call.
        ticked, counted = redis_server.cli(
            "EVAL", "return {redis.call('ZCARD', KEYS[1]), redis.call('ZCARD', KEYS[2])}", 2, GATEWAYS, TOTAL
        )
        assert counted == len(leases) * ticked // REPLICAS
        return bool(ticked == REPLICAS)

    await wait_until(whole, "every replica has ticked", 2 * TICK_S)
    true_s = time.monotonic() - flushed_s
    assert {row.lease for row in await eye.leases()} == leases
    return true_s


async def test_data_that_is_lost_again_and_again_costs_no_key_and_no_limit(
    redis_server: RedisServer, redis_url: str, engine: ScriptedEngine, tmp_path: Path
) -> None:
    """A loss may come between any two commands of a replica, also while it writes back what it remembers."""
    engine.answer = SLOW
    async with (
        rig(tmp_path, redis_url, engines=[{"url": engine.url, "name": "e1"}]) as replicas,
        looking_at(replicas.configs[0]) as eye,
    ):
        redis_server.cli("HSET", LIMITS, "total", LIMIT, "cold", LIMIT)
        await _remembered(redis_server)
        limits = redis_server.cli("HGETALL", LIMITS)
        ends = Ends(replicas.gateways)
        with ExitStack() as opened:
            held = await _full(replicas, ends, opened)
            async with knocking(ends, replicas.urls) as knocks:
                for _ in range(150):
                    redis_server.cli("FLUSHALL")
                    await asyncio.sleep(random.uniform(0, 0.05))
                await _remembered(redis_server)
            assert knocks.admitted == []
            assert set(knocks.codes) <= {(429, "total_pool_full"), (503, "recovering")}
            assert {row.lease for row in await eye.leases()} == {
                call.headers["tenure-lease"] for call in held
            }
            assert redis_server.cli("HGETALL", LIMITS) == limits
        await nothing_runs(eye, engine)
        for replica in replicas.gateways:
            await replica.ready()
        assert engine.max_open == LIMIT
        await admits_exactly(LIMIT, replicas, engine)


async def test_scripts_that_are_flushed_all_the_time_fail_no_request(
    redis_server: RedisServer, redis_url: str, engine: ScriptedEngine, tmp_path: Path
) -> None:
    """A failover or a restart empties the script cache; acquire, tick and release go on in the same call."""
    engine.answer = Stream(tokens=2)
    fleet = {"total": 60, "cold": 60}
    async with (
        rig(tmp_path, redis_url, engines=[{"url": engine.url, "name": "e1"}], fleet=fleet) as replicas,
        looking_at(replicas.configs[0]) as eye,
    ):
        ends, until_s = Ends(replicas.gateways), time.monotonic() + 10
        served = 0

        async def client(url: str) -> None:
            nonlocal served
            while time.monotonic() < until_s:
                with await ends.call(url) as call:
                    assert await call.head() == 200, await call.rest()
                    assert (await call.rest()).endswith(b"data: [DONE]\n\n")
                served += 1

        async def flushes() -> None:
            while time.monotonic() < until_s:
                redis_server.cli("SCRIPT", "FLUSH")
                await asyncio.sleep(0.2)

        await asyncio.gather(flushes(), *(client(url) for url in replicas.urls * 3))
        await nothing_runs(eye, engine)
        lines = await ends.reach(served)
        each_ended_once(lines)
        assert {line["reason"] for line in lines} == {"completed"}
        assert served > 200
        await admits_exactly(60, replicas, engine)
        for url in replicas.urls:
            metrics = (await fetch(url, "/metrics")).body.decode()
            assert "tenure_redis_up 1.0" in metrics
            assert "tenure_reasserted_total{" not in metrics


async def test_a_redis_that_comes_back_empty_learns_what_runs_before_it_admits(
    redis_server: RedisServer, redis_url: str, engine: ScriptedEngine, tmp_path: Path
) -> None:
    """The machine of Redis is lost under live streams: they run on, and are counted where they ran."""
    engine.answer = SLOW
    fleet = {"total": LIMIT, "cold": LIMIT}
    async with (
        rig(tmp_path, redis_url, engines=[{"url": engine.url, "name": "e1"}], fleet=fleet) as replicas,
        looking_at(replicas.configs[0]) as eye,
    ):
        await _remembered(redis_server)
        ends = Ends(replicas.gateways)
        with ExitStack() as opened:
            held = await _full(replicas, ends, opened)
            leases = {call.headers["tenure-lease"] for call in held}
            async with knocking(ends, replicas.urls) as knocks:
                redis_server.stop()
                seen = sum(knocks.codes.values())
                await wait_until(lambda: sum(knocks.codes.values()) > seen + 30, "the outage is noticed", 10)
                redis_server.start()

                async def all_ticked() -> bool:
                    return int(redis_server.cli("ZCARD", GATEWAYS)) == REPLICAS

                await wait_until(all_ticked, "every replica has ticked")
                assert {row.lease for row in await eye.leases()} == leases
                for replica in replicas.gateways:
                    await replica.ready()
            assert knocks.admitted == []
            assert {status for status, _ in knocks.codes} <= {429, 503}
            for call in held:
                assert await call.next_token() is not None
        await nothing_runs(eye, engine)
        assert engine.max_open == LIMIT
        await admits_exactly(LIMIT, replicas, engine)
