"""A replica on a machine of its own loses its way to Redis; its clients and its engine still reach it.

The first replica is in a network namespace with one cable to Redis and another one to everything else. The
limit is that of the fleet: the others go on asking for places all the while.
"""

from __future__ import annotations

import time
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.nodes.places import (
    Ends,
    Eye,
    admits_exactly,
    looking_at,
    nothing_runs,
    passes,
    started,
    third_gets,
)
from tests.support import processes
from tests.support.answers import Stream
from tests.support.client import fetch
from tests.support.config_file import LEASE, write_config
from tests.support.islands import Island, islanded
from tests.support.redis_server import RedisServer, a_redis
from tests.support.rig import Rig, rig
from tests.support.scripted_engine import ScriptedEngine
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from tests.support.client import Call

pytestmark = pytest.mark.timeout(120)

TTL_S: Final = LEASE["ttl_ms"] / 1000
TICK_S: Final = LEASE["tick_ms"] / 1000
TOTAL: Final = 4
# What the island runs; the other place is taken elsewhere.
OWN: Final = 3
# Nothing but the lease ends a stream here.
BUDGETS: Final = {"first_token_ms": 60_000, "idle_ms": 60_000, "stall_ms": 60_000, "total_ms": 120_000}
BACK_S: Final = 3.0

ways_to_be_cut_off = pytest.mark.parametrize(
    "cut",
    [Island.pull_the_cable, Island.lose_what_is_asked, Island.lose_what_is_answered],
    ids=["both_ways", "nothing_arrives_there", "nothing_comes_back"],
)


@pytest.fixture
def island() -> Iterator[Island]:
    with islanded() as made:
        yield made


@pytest.fixture
def redis_of_two_nets(island: Island) -> Iterator[RedisServer]:
    """A Redis that the island reaches by the one cable, and everybody else without any."""
    with a_redis("--bind", "127.0.0.1", island.redis_side, "--protected-mode", "no") as server:
        yield server


@pytest.fixture
def engine(island: Island) -> Iterator[ScriptedEngine]:
    """An engine that all replicas reach, the island's by its other cable."""
    with ScriptedEngine(host=island.hub_side) as scripted:
        scripted.answer = Stream(tokens=None, gap_s=0.05)
        yield scripted


@asynccontextmanager
async def replicas_of(
    folder: Path, island: Island, redis: RedisServer, engine: ScriptedEngine, lost_lease: str
) -> AsyncIterator[Rig]:
    """Three replicas and a reaper, the first replica on the island."""
    how: dict[str, Any] = {
        "engines": [{"url": engine.url, "name": "e1"}],
        # Nobody admits without Redis: what is too many then comes from the lease alone.
        "fleet": {"total": TOTAL, "cold": TOTAL, "lost_lease": lost_lease, "redis_loss": "closed"},
        "budgets": BUDGETS,
    }
    async with rig(folder, redis.url, gateways=0, reapers=1, **how) as made:
        there = f"redis://{island.redis_side}:{redis.port}/0"
        config = write_config(folder, there, how.pop("engines"), name="island.toml", **how)
        first = processes.gateway(folder, config, host=island.address, before=island.before)
        made.gateways.append(first)
        await first.ready()
        for _ in range(2):
            await made.add_gateway()
        yield made


@asynccontextmanager
async def full(
    folder: Path, island: Island, redis: RedisServer, engine: ScriptedEngine, lost_lease: str
) -> AsyncIterator[tuple[Rig, Eye, Ends, ExitStack, list[Call], list[Call]]]:
    """Every place is taken, OWN of them by the island; yields its ends, and the calls there and elsewhere."""
    async with (
        replicas_of(folder, island, redis, engine, lost_lease) as replicas,
        looking_at(replicas.configs[0]) as eye,
    ):
        ends = Ends(replicas.gateways[:1])
        with ExitStack() as opened:
            own = await started(ends, replicas.urls[0], OWN, opened)
            others = await started(Ends([]), replicas.urls[1], TOTAL - OWN, opened)
            await eye.all_tick(len(replicas.gateways))
            yield replicas, eye, ends, opened, own, others
        await nothing_runs(eye, engine)
        await admits_exactly(TOTAL, replicas, engine)


async def take_what_is_free(replicas: Rig, opened: ExitStack, calls: list[Call]) -> None:
    """Ask both other replicas once; who is admitted stays."""
    for url in replicas.urls[1:]:
        call = opened.enter_context(await Ends([]).call(url))
        if await call.head() == 200:
            calls.append(call)
        else:
            assert call.status == 429


async def refused_there(replicas: Rig) -> None:
    """Who asks the island gets an answer, and no place."""
    with await Ends([]).call(replicas.urls[0]) as asked:
        assert await asked.head() == 503
        assert await asked.error_code() == "admission_unavailable"


@ways_to_be_cut_off
async def test_under_stop_a_replica_without_redis_ends_its_streams_before_others_get_their_places(
    *,
    tmp_path: Path,
    island: Island,
    redis_of_two_nets: RedisServer,
    engine: ScriptedEngine,
    cut: Callable[[Island], None],
) -> None:
    """The engine never sees one more than the limit, and no stream ends sooner than it must."""
    async with full(tmp_path, island, redis_of_two_nets, engine, "stop") as (
        replicas,
        eye,
        ends,
        opened,
        own,
        others,
    ):
        cut(island)
        cut_s = time.monotonic()
        ended_s: list[float] = []

        async def others_have_all() -> bool:
            if not ended_s and engine.open <= TOTAL - OWN:
                ended_s.append(time.monotonic() - cut_s)
            await take_what_is_free(replicas, opened, others)
            return len(others) == TOTAL

        await wait_until(others_have_all, "the others get the island's places", 2 * TTL_S)
        free_s = time.monotonic() - cut_s
        for call in own:
            assert b'"code":"admission_unavailable"' in await call.rest()
            assert call.ended == "clean"
        await refused_there(replicas)
        await passes(2 * TTL_S - (time.monotonic() - cut_s))
        island.heal()
        healed_s = time.monotonic()
        await replicas.gateways[0].ready(within_s=BACK_S)
        back_s = time.monotonic() - healed_s
        lines = await ends.reach(OWN)
        assert {line["reason"] for line in lines} == {"lease_lost"}
        lost = {line["lease"] for line in lines}
        assert lost == {call.headers["tenure-lease"] for call in own}
        # Nothing that was asked before the cut is asked after it.
        assert await eye.reasserted() == set()
        assert {row.lease for row in await eye.leases()} == {call.headers["tenure-lease"] for call in others}
        await third_gets(replicas, 0)
        assert engine.max_open == TOTAL
        shown = f"the others had the places after {free_s:.2f} s; ready {back_s:.2f} s after the cure"
        print(f"streams ended {ended_s}; {shown}")  # noqa: T201


@ways_to_be_cut_off
async def test_under_run_on_the_excess_is_what_the_replica_ran_and_shuts_admission_until_it_drained(
    *,
    tmp_path: Path,
    island: Island,
    redis_of_two_nets: RedisServer,
    engine: ScriptedEngine,
    cut: Callable[[Island], None],
) -> None:
    """No stream is cut; others get the places once the leases have run out, and it all shows."""
    async with full(tmp_path, island, redis_of_two_nets, engine, "run_on") as (
        replicas,
        eye,
        _,
        opened,
        own,
        others,
    ):
        cut(island)
        cut_s = time.monotonic()

        async def others_have_all() -> bool:
            await take_what_is_free(replicas, opened, others)
            return len(others) == TOTAL

        await wait_until(others_have_all, "the others get the island's places", 2 * TTL_S)
        free_s = time.monotonic() - cut_s
        assert free_s > TTL_S - 2 * TICK_S
        await refused_there(replicas)
        await passes(2 * TTL_S - (time.monotonic() - cut_s))
        assert engine.open == engine.max_open == TOTAL + OWN
        for call in (*own, *others):
            assert await call.next_token() is not None
        island.heal()
        healed_s = time.monotonic()
        await eye.see(TOTAL + OWN, "what the island runs is counted again", BACK_S)
        counted_s = time.monotonic() - healed_s
        assert (await eye.counts()).over_commit == OWN
        metrics = (await fetch(replicas.urls[2], "/metrics")).body.decode()
        assert f'tenure_over_commit{{fleet="demo"}} {OWN}.0' in metrics
        assert await eye.reasserted() == {call.headers["tenure-lease"] for call in own}
        await replicas.gateways[0].ready(within_s=BACK_S)
        for still in range(TOTAL + OWN - 1, TOTAL - 1, -1):
            await third_gets(replicas, 0)
            own.pop().reset()
            await eye.see(still, "one of the excess has ended")
        await third_gets(replicas, 0)
        others.pop().reset()
        await eye.see(TOTAL - 1, "one place is free")
        await third_gets(replicas, 1)
        assert engine.max_open == TOTAL + OWN
        print(f"granted to others after {free_s:.2f} s, counted again {counted_s:.2f} s after the cure")  # noqa: T201
