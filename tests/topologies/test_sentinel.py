"""Sentinels promote a replica: no stream is cut, admissions go on, and what runs is counted there."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import pytest

from services.permits.connect import connect
from services.permits.probe import probe
from services.permits.store import Store
from tests.nodes.places import Eye, looking_at
from tests.permits.scene import a_gate, begin, demand
from tests.support.config_file import write_config
from tests.support.rig import Rig, begin_without_learning, rig
from tests.support.sentinels import SERVICE, Sentinels
from tests.support.waiting import wait_until
from tests.topologies.held import (
    BUDGETS,
    RUNNING,
    admits,
    all_run_on,
    counted_at_engine,
    doctor,
    open_streams,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from tests.support.scripted_engine import ScriptedEngine

pytestmark = pytest.mark.timeout(240)

HELD: Final = 100
ROOM: Final = 2
# From the promotion to the first admission; an election on a busy machine may take longer than this.
ADMITS_S: Final = 5
PROMOTION_S: Final = 60


@pytest.fixture
def sentinels() -> Iterator[Sentinels]:
    with Sentinels(replicas=2) as started:
        yield started


@pytest.fixture
async def replicas(sentinels: Sentinels, engine: ScriptedEngine, tmp_path: Path) -> AsyncIterator[Rig]:
    """Two gateways and a reaper that know nothing but the Sentinels."""
    engine.answer = RUNNING
    # Closed, so that nobody but a Redis admits: each of two replicas could find room in its own share.
    limits = {"total": HELD + ROOM, "cold": HELD + ROOM, "redis_loss": "closed"}
    engines = [{"url": engine.url, "slots": HELD + ROOM}]
    async with rig(
        tmp_path, sentinels.url, engines=engines, gateways=2, reapers=1, fleet=limits, budgets=BUDGETS
    ) as made:
        yield made


async def _is_as_before(rig: Rig, eye: Eye, engine: ScriptedEngine) -> None:
    """Every place is counted, at the engine and in Redis, and exactly the free ones can be had."""
    await eye.see(HELD, "what runs is counted by the new primary", 10)
    await counted_at_engine(engine, HELD)
    more = await open_streams(rig, ROOM)
    assert await eye.live() == HELD + ROOM
    assert not await admits(rig, 0)
    assert not await admits(rig, 1)
    for call in more:
        call.close()
    await eye.see(HELD, "the others went back", 10)
    assert engine.max_open <= HELD + ROOM


async def test_a_primary_that_dies_under_a_hundred_streams_cuts_none_of_them(
    sentinels: Sentinels, replicas: Rig, engine: ScriptedEngine
) -> None:
    """The Sentinels promote a replica, and it counts all that ran before its predecessor died."""
    calls = await open_streams(replicas, HELD)
    async with looking_at(replicas.configs[0]) as eye:
        await eye.see(HELD, "all of them hold a place")
        dead = sentinels.primary()
        dead.stop()
        await wait_until(
            lambda: sentinels.primary_port() not in (0, dead.port), "a replica is promoted", PROMOTION_S
        )
        promoted_s = time.monotonic()
        await wait_until(lambda: admits(replicas, 0), "the first replica admits again", ADMITS_S)
        await wait_until(lambda: admits(replicas, 1), "the second replica admits again", ADMITS_S)
        print(f"both admitted {time.monotonic() - promoted_s:.2f} s after the promotion")  # noqa: T201
        await _is_as_before(replicas, eye, engine)
        await all_run_on(calls)
        for call in calls:
            call.close()
        await eye.see(0, "every place goes back", 10)


async def test_a_primary_that_steps_down_is_left(
    sentinels: Sentinels, replicas: Rig, engine: ScriptedEngine
) -> None:
    """A planned failover: the old primary lives on as a replica, and answers READONLY to whoever stays."""
    calls = await open_streams(replicas, HELD)
    async with looking_at(replicas.configs[0]) as eye:
        await eye.see(HELD, "all of them hold a place")
        old = sentinels.primary_port()
        sentinels.ask(0, "SENTINEL", "FAILOVER", SERVICE)
        await wait_until(lambda: sentinels.primary_port() not in (0, old), "another took over", PROMOTION_S)
        await wait_until(lambda: admits(replicas, 0), "admissions go on", ADMITS_S)
        await wait_until(lambda: admits(replicas, 1), "admissions go on", ADMITS_S)
        await _is_as_before(replicas, eye, engine)
        await all_run_on(calls)
        # It follows its successor, so whatever somebody wrote to it alone would be gone by now.
        await wait_until(sentinels.in_step, "the old primary follows", PROMOTION_S)
        for call in calls:
            call.close()
        await eye.see(0, "every place goes back", 10)


async def test_sentinels_and_servers_may_have_passwords_of_their_own() -> None:
    with Sentinels(password="servers", sentinel_password="watch") as started:
        client = connect(started.url)
        try:
            await probe(client)
            await Store(client).set_limits("f", {"total": 1, "cold": 1}, who="test", learning_ms=0)
        finally:
            await client.aclose()
        async with a_gate(started.url) as gate, gate.hold(demand()):
            assert started.primary().cli("ZCARD", "tenure:{f}:pool:total") == 1


async def test_one_sentinel_of_three_is_enough() -> None:
    """Those that are away are passed over; the first that answers is asked first from then on."""
    with Sentinels() as started:
        await begin(started.url)
        for number in (0, 1):
            started.stop_sentinel(number)
        async with a_gate(started.url) as gate, gate.hold(demand()):
            assert gate.ready() == (True, "ready")


async def test_the_doctor_says_what_the_sentinels_see(tmp_path: Path, engine: ScriptedEngine) -> None:
    with Sentinels() as started:
        config = write_config(tmp_path, started.url, [engine.url])
        await begin_without_learning(config)
        healthy = await doctor(config)
        assert healthy["redis.sentinels"]["level"] == "ok"
        assert (
            f"primary 127.0.0.1:{started.primary_port()}, 1 replicas" in healthy["redis.sentinels"]["detail"]
        )
        assert not [finding for finding in healthy.values() if finding["level"] == "problem"]

        started.stop_sentinel(0)
        hurt = await doctor(config)
        assert hurt[f"redis.sentinel.127.0.0.1:{started.ports[0]}"]["level"] == "problem"
        assert hurt["redis.reachable"]["level"] == "ok"

        elsewhere = started.url.replace(SERVICE, "other")
        wrong = await doctor(write_config(tmp_path, elsewhere, [engine.url], name="wrong.toml"))
        assert SERVICE in wrong[f"redis.sentinel.127.0.0.1:{started.ports[1]}"]["detail"]
        assert wrong["redis.reachable"]["level"] == "problem"
