"""What happens to one holder leaves the others alone: a neighbour that is refused, restarted, or dead."""

from __future__ import annotations

import asyncio
import time
from contextlib import ExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Final

import pytest

from tests.nodes.places import LONG, SLOW, Ends, Eye, admits_exactly, looking_at, nothing_runs
from tests.support.answers import Stream
from tests.support.burst import burst
from tests.support.client import fetch
from tests.support.config_file import LEASE
from tests.support.rig import Rig, rig
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.support.redis_server import RedisServer
    from tests.support.scripted_engine import ScriptedEngine

pytestmark = pytest.mark.timeout(120)

TTL_S: Final = LEASE["ttl_ms"] / 1000
REAPER_S: Final = 0.5
GRACE_S: Final = 0.5


async def test_with_one_place_the_first_is_admitted_and_those_refused_free_nothing(
    redis_url: str, engine: ScriptedEngine, tmp_path: Path
) -> None:
    """Ending a refused request must give back nothing: the place is somebody else's."""
    engine.answer = LONG
    one = {"total": 1, "cold": 1}
    async with (
        rig(tmp_path, redis_url, engines=[engine.url], fleet=one) as replicas,
        looking_at(replicas.configs[0]) as eye,
    ):
        ends = Ends(replicas.gateways)
        with await ends.call(replicas.urls[0]) as holder:
            assert await holder.first_token() is not None
            for refused in (100, 20):
                with await burst(refused, replicas.urls, key=replicas.key()) as together:
                    assert dict(together.statuses) == {429: refused}
                assert await eye.live() == 1
            engine.finish_all()
            assert (await holder.rest()).endswith(b"data: [DONE]\n\n")
        assert engine.max_open == 1
        await nothing_runs(eye, engine)
        with await ends.call(replicas.urls[1]) as following:
            assert await following.head() == 200
        await nothing_runs(eye, engine)
        await admits_exactly(1, replicas, engine)


@asynccontextmanager
async def always(eye: Eye, live: int) -> AsyncIterator[None]:
    """While the block runs, exactly `live` leases are live whenever one looks."""
    seen: set[int] = set()

    async def look() -> None:
        while True:
            seen.add(await eye.live())
            await asyncio.sleep(0.01)

    looking = asyncio.create_task(look())
    try:
        yield
    finally:
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)
    assert seen == {live}


async def test_a_replica_that_is_restarted_again_and_again_wipes_nothing_of_the_others(
    redis_url: str, engine: ScriptedEngine, tmp_path: Path
) -> None:
    """Whoever cleans up at its start, in a store that it shares, gives away places that are taken."""
    engine.answer = SLOW
    # Restarts take long on a busy machine, and nothing else may end the streams.
    budgets = {"stall_ms": 120_000, "total_ms": 120_000}
    async with (
        rig(tmp_path, redis_url, engines=[engine.url], gateways=2, budgets=budgets) as replicas,
        looking_at(replicas.configs[0]) as eye,
    ):
        ends = Ends(replicas.gateways[1:])
        with ExitStack() as opened:
            calls = [opened.enter_context(await ends.call(replicas.urls[1])) for _ in range(4)]
            for call in calls:
                assert await call.first_token() is not None
            async with always(eye, 4):
                for number in range(5):
                    if number % 2:
                        replicas.gateways[0].kill9()
                    again = await replicas.restart_gateway(0)
                    with await burst(4, replicas.urls, key=replicas.key()) as more:
                        assert dict(more.statuses) == {429: 4}
                    metrics = (await fetch(again.url, "/metrics")).body.decode()
                    assert 'tenure_pool_in_use{fleet="demo",pool="total"} 4.0' in metrics
            for call in calls:
                assert await call.next_token() is not None
        await nothing_runs(eye, engine)
        assert engine.max_open == 4
        assert {line["reason"] for line in await ends.reach(4)} == {"client_disconnect"}
        await admits_exactly(4, replicas, engine)


async def test_an_orphan_of_a_busy_tenant_comes_back_as_soon_as_one_of_a_quiet_one(
    redis_server: RedisServer, redis_url: str, engine: ScriptedEngine, tmp_path: Path
) -> None:
    """If traffic renewed whole pools, a dead holder's place would be lost for as long as anybody calls."""
    quota = 3
    async with (
        rig(tmp_path, redis_url, engines=[engine.url], reapers=1, tenants={"acme": quota}) as replicas,
        looking_at(replicas.configs[0]) as eye,
    ):
        keys = set(redis_server.cli("KEYS", "*"))
        engine.answer = LONG
        with await Ends([]).call(replicas.urls[0]) as orphan:
            assert await orphan.first_token() is not None

            async def renewed() -> bool:
                return (await eye.leases())[0].expires_in_ms > LEASE["provisional_ms"]

            await wait_until(renewed, "its first, shorter lease was renewed")
            engine.answer = Stream(tokens=2, gap_s=0.01)
            async with _busy(replicas.urls[1:]) as served:
                replicas.gateways[0].kill9()
                killed_s = time.monotonic()
                await wait_until(
                    lambda: _third_place(replicas, eye, quota),
                    "the orphan's place can be taken",
                    TTL_S + REAPER_S + GRACE_S,
                )
                back_s = time.monotonic() - killed_s
                assert back_s > TTL_S - 2 * LEASE["tick_ms"] / 1000
            # There was traffic all the while.
            assert len(served) > 20
        await nothing_runs(eye, engine)
        # Each of our keys goes with what it is about; what is left was there before.
        history = {"tenure:{demo}:events", "tenure:{demo}:ends", "tenure:{demo}:reported"}
        await wait_until(
            lambda: set(redis_server.cli("KEYS", "*")) <= keys | history, "nothing of the traffic is left"
        )
        await admits_exactly(quota, replicas, engine, by=slice(1, 3))


@asynccontextmanager
async def _busy(urls: list[str]) -> AsyncIterator[list[str]]:
    """Keep one request under way at each of the replicas; yields the requests that were served."""
    served: list[str] = []

    async def client(url: str) -> None:
        while True:
            with await Ends([]).call(url) as call:
                if await call.head() == 200:
                    await call.rest()
                    served.append(call.headers["x-request-id"])

    clients = [asyncio.create_task(client(url)) for url in urls]
    try:
        yield served
    finally:
        for task in clients:
            task.cancel()
        for end in await asyncio.gather(*clients, return_exceptions=True):
            if isinstance(end, Exception):
                raise end


async def _third_place(replicas: Rig, eye: Eye, quota: int) -> bool:
    """Whether somebody gets a place while the two busy ones and the orphan would fill the quota."""
    orphans = sum(row.holder.startswith("g1~") for row in await eye.leases())
    if orphans:
        assert orphans == 1
        return False
    with await burst(quota, replicas.urls[1:], key=replicas.key()) as together:
        # The two others come and go, and each may hold a place just now.
        return together.statuses[200] >= 1
