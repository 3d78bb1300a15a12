"""The line over three real replicas: fair between tenants, quick, and empty when all who waited are gone."""

from __future__ import annotations

import asyncio
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final

import pytest
import pytest_asyncio

from tests.nodes.places import LIMITS, LONG, looking_at, nothing_runs
from tests.support.client import Call, chat_body
from tests.support.config_file import FLEET, key_of
from tests.support.rig import Rig, rig
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.support.redis_server import RedisServer
    from tests.support.reply import Seen
    from tests.support.scripted_engine import ScriptedEngine

pytestmark = [
    pytest.mark.xdist_group("nodes_line"),
    pytest.mark.usefixtures("leaves_nothing"),
    pytest.mark.timeout(120),
]

WAITING: Final = f"tenure:{{{FLEET}}}:line:waiting"
ROOMY: Final = {"total": 4, "cold": 4, "tenant_default": 100, "line_max": 500, "line_max_per_tenant": 500}
TTL_S: Final = 3.0
REAPER_S: Final = 0.5


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def replicas(
    lasting_redis: RedisServer, lasting_engine: ScriptedEngine, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Rig]:
    engine = {"url": lasting_engine.url, "name": "e1", "slots": 1000}
    async with rig(
        tmp_path_factory.mktemp("line"),
        lasting_redis.url,
        engines=[engine],
        gateways=3,
        reapers=1,
        fleet=ROOMY,
        tenants={"a": None, "b": None},
        budgets={"queue_ms": 60_000, "idle_ms": 60_000, "total_ms": 120_000},
    ) as started:
        yield started


@pytest.fixture
def engine(replicas: Rig, lasting_engine: ScriptedEngine, lasting_redis: RedisServer) -> ScriptedEngine:
    """The engine, whose streams stay until the test ends them, with the limits of this module's start."""
    lasting_engine.reset()
    lasting_engine.answer, lasting_engine.choose = LONG, None
    lasting_redis.cli("HSET", LIMITS, *(word for pair in ROOMY.items() for word in pair), "weight:a", 1)
    return lasting_engine


async def ask(url: str, tenant: str, prompt: str = "hello", **fields: Any) -> Call:
    body = chat_body(prompt=prompt, **fields)
    return await Call.start(url, key=key_of(tenant), body=body)


def tenant_of(seen: Seen) -> str:
    """Return the tenant that the test wrote into its prompt."""
    return str(seen.json()["messages"][0]["content"])[:1]


async def reached(engine: ScriptedEngine, count: int) -> None:
    await wait_until(lambda: len(engine.requests) == count, f"{count} have reached the engine")


async def in_line(redis: RedisServer, count: int) -> None:
    await wait_until(lambda: redis.cli("HLEN", WAITING) == count, f"{count} in line", timeout_s=15)


async def test_a_late_tenant_starts_within_the_next_two_releases(
    replicas: Rig, engine: ScriptedEngine, lasting_redis: RedisServer
) -> None:
    """A has 4 running and 36 in line; until B comes it has everything that becomes free."""
    with ExitStack() as stack:
        for n in range(40):
            stack.enter_context(await ask(replicas.urls[n % 3], "a", "a"))
        await wait_until(lambda: engine.held == 4, "four of A run")
        await in_line(lasting_redis, 36)
        for n in range(4):
            engine.finish(1)
            await reached(engine, 5 + n)
        stack.enter_context(await ask(replicas.urls[2], "b", "b"))
        await in_line(lasting_redis, 33)
        began_s = time.monotonic()
        for n in range(2):
            await wait_until(lambda: engine.held == 4, "four run")
            engine.finish(1)
            await reached(engine, 9 + n)
        place = [tenant_of(seen) for seen in engine.requests[8:10]].index("b") + 1
        print(f"behind 36 of a flood, started with release {place} after it came")  # noqa: T201
        assert time.monotonic() - began_s < 2
        assert engine.max_open == 4
    await _all_gone(replicas, engine, lasting_redis)


async def test_weights_hold_with_all_of_one_tenants_traffic_on_one_replica(
    replicas: Rig, engine: ScriptedEngine, lasting_redis: RedisServer
) -> None:
    """100 grants over HTTP; 400 are counted gate by gate in tests/permits."""
    lasting_redis.cli("HSET", LIMITS, "weight:a", 3, "total", 8, "cold", 8)
    with ExitStack() as stack:
        for n in range(60):
            stack.enter_context(await ask(replicas.urls[n % 3], "b", "b"))
        await wait_until(lambda: engine.held == 8, "eight of B run")
        for _ in range(100):
            stack.enter_context(await ask(replicas.urls[0], "a", "a"))
        await in_line(lasting_redis, 152)
        for n in range(100):
            await wait_until(lambda: engine.held == 8, "eight run")
            engine.finish(1)
            await reached(engine, 9 + n)
        granted = [tenant_of(seen) for seen in engine.requests[8:108]]
        # The first eight grants put right what B had before A came.
        assert abs(granted[8:].count("a") / 92 - 0.75) <= 0.05, granted
    await _all_gone(replicas, engine, lasting_redis)


async def test_thirty_leave_one_joins_and_the_engine_sees_only_that_one(
    replicas: Rig, engine: ScriptedEngine, lasting_redis: RedisServer
) -> None:
    lasting_redis.cli("HSET", LIMITS, "total", 1)
    with await ask(replicas.urls[0], "a", "running"):
        await wait_until(lambda: engine.held == 1, "one runs")
        leaving = [await ask(replicas.urls[n % 3], "a", "leaves") for n in range(30)]
        await in_line(lasting_redis, 30)
        for n, call in enumerate(leaving):
            call.reset() if n % 2 else call.close()
        with await ask(replicas.urls[1], "a", "stays") as stays:
            engine.finish(1)
            began_s = time.monotonic()
            assert await stays.head(1.0) == 200
            assert time.monotonic() - began_s < 1.0
            assert int(stays.headers["tenure-queue-ms"]) > 0
            prompts = [str(seen.json()["messages"][0]["content"]) for seen in engine.requests]
            assert prompts == ["running", "stays"]
    await _all_gone(replicas, engine, lasting_redis)


async def test_nobody_overtakes_those_of_its_own_tenant_while_newcomers_keep_coming(
    replicas: Rig, engine: ScriptedEngine, lasting_redis: RedisServer
) -> None:
    """With every place that comes free somebody new asks, each time on another replica."""
    lasting_redis.cli("HSET", LIMITS, "total", 1)
    waiting, rounds = 10, 30
    with ExitStack() as stack:
        for n in range(1 + waiting):
            stack.enter_context(await ask(replicas.urls[n % 3], "a", str(n)))
            await (reached(engine, 1) if n == 0 else in_line(lasting_redis, n))
        for n in range(rounds):
            await wait_until(lambda: engine.held == 1, "one runs")
            newcomer = await ask(replicas.urls[n % 3], "a", str(1 + waiting + n))
            stack.enter_context(newcomer)
            # It may find the place just free, and must leave it to those in line all the same.
            engine.finish(1)
            await reached(engine, 2 + n)
            await in_line(lasting_redis, waiting)
        prompts = [int(seen.json()["messages"][0]["content"]) for seen in engine.requests]
        assert prompts == list(range(1 + rounds))
        assert engine.max_open == 1
    await _all_gone(replicas, engine, lasting_redis)


async def test_one_who_waits_alone_for_long_starts_as_soon_as_a_place_is_free(
    replicas: Rig, engine: ScriptedEngine, lasting_redis: RedisServer
) -> None:
    """Its tenant does nothing else meanwhile: no clean-up of what seems idle may take it along."""
    lasting_redis.cli("HSET", LIMITS, "total", 1)
    with await ask(replicas.urls[0], "a"):
        await wait_until(lambda: engine.held == 1, "one runs")
        with await ask(replicas.urls[1], "b") as waits:
            await in_line(lasting_redis, 1)
            async with looking_at(replicas.configs[0]) as eye:
                until = (await eye.counts()).clock + 3 * TTL_S * 1000

                async def is_over() -> bool:
                    return (await eye.counts()).clock >= until

                await wait_until(is_over, "three leases' time passes", 20)
            engine.finish(1)
            assert await waits.head(1.0) == 200
    await _all_gone(replicas, engine, lasting_redis)


async def test_a_place_of_a_killed_gateway_goes_to_a_waiter_on_another_replica(
    replicas: Rig, engine: ScriptedEngine, lasting_redis: RedisServer
) -> None:
    """Within its lease's ttl and the reaper's period, from the moment it died."""
    lasting_redis.cli("HSET", LIMITS, "total", 1)
    with await ask(replicas.urls[0], "a") as running:
        await wait_until(lambda: engine.held == 1, "one runs on the first replica")
        await running.head()
        with await ask(replicas.urls[1], "b") as waits:
            await in_line(lasting_redis, 1)
            began_s = time.monotonic()
            replicas.gateways[0].kill9()
            assert await waits.head(10) == 200
            # As many seconds again as one tick, for a machine that is busy with other tests.
            waited_s = time.monotonic() - began_s
            assert waited_s < TTL_S + REAPER_S + 0.5
            print(f"the waiter started {waited_s:.2f} s after the holder was killed")  # noqa: T201
    await replicas.restart_gateway(0)
    await _all_gone(replicas, engine, lasting_redis)


async def test_sigterm_sends_those_in_line_away_within_a_second(
    replicas: Rig, engine: ScriptedEngine, lasting_redis: RedisServer
) -> None:
    """They can go to another replica; the place in line means nothing to a process that stops."""
    lasting_redis.cli("HSET", LIMITS, "total", 1)
    with await ask(replicas.urls[1], "a"):
        await wait_until(lambda: engine.held == 1, "one runs elsewhere")
        waiting = [await ask(replicas.urls[2], "a") for _ in range(20)]
        await in_line(lasting_redis, 20)
        replicas.gateways[2].sigterm()
        began_s = time.monotonic()
        statuses = await asyncio.gather(*(call.head() for call in waiting))
        assert time.monotonic() - began_s < 1.0
        assert set(statuses) == {503}
        assert {await call.error_code() for call in waiting} == {"draining"}
        assert all(1 <= int(call.headers["retry-after"]) <= 60 for call in waiting)
        for call in waiting:
            call.close()
        await in_line(lasting_redis, 0)
        await replicas.gateways[2].wait()
    await replicas.restart_gateway(2)
    await _all_gone(replicas, engine, lasting_redis)


async def _all_gone(replicas: Rig, engine: ScriptedEngine, redis: RedisServer) -> None:
    """Every client has left: nobody stands in line, nothing runs."""
    await in_line(redis, 0)
    async with looking_at(replicas.configs[0]) as eye:
        await nothing_runs(eye, engine)
