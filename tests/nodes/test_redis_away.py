"""Redis is away, refused or swallowed by the network: quick answers, a bounded share, and back by itself."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

import pytest

from tests.nodes.places import SLOW, Ends, admits_exactly, all_left, looking_at, nothing_runs
from tests.support.config_file import LEASE
from tests.support.redis_shim import RedisShim
from tests.support.rig import Rig, rig
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.client import Call
    from tests.support.redis_server import RedisServer
    from tests.support.scripted_engine import ScriptedEngine

pytestmark = pytest.mark.timeout(120)

TOTAL: Final = 6
REPLICAS: Final = 2
ANSWER_S: Final = 1.5
BACK_S: Final = 3.0
TTL_S: Final = LEASE["ttl_ms"] / 1000
# Nothing but the outage could end a stream here.
PATIENT: Final = {"idle_ms": 60_000, "stall_ms": 60_000, "total_ms": 120_000}


@pytest.mark.parametrize("away", [RedisShim.refuse, RedisShim.blackhole], ids=["refused", "blackholed"])
@pytest.mark.parametrize("policy", ["closed", "share"])
async def test_with_redis_away_nobody_waits_for_an_answer_and_the_limit_holds(
    *,
    redis_server: RedisServer,
    redis_url: str,
    engine: ScriptedEngine,
    tmp_path: Path,
    away: Callable[[RedisShim], None],
    policy: str,
) -> None:
    """Not a quota, not a bare error, not a hang; and what runs goes on for longer than its lease."""
    engine.answer = SLOW
    fleet = {"total": TOTAL, "cold": TOTAL, "redis_loss": policy}
    with RedisShim(redis_server.port) as shim:
        async with (
            rig(
                tmp_path, shim.url, engines=[engine.url], gateways=REPLICAS, fleet=fleet, budgets=PATIENT
            ) as replicas,
            looking_at(replicas.configs[0], redis_url) as eye,
        ):
            with ExitStack() as opened:
                ends = Ends(replicas.gateways)
                held = [opened.enter_context(await ends.call(url)) for url in replicas.urls]
                for call in held:
                    assert await call.first_token() is not None
                await eye.all_tick(REPLICAS)
                away(shim)
                began_s = time.monotonic()
                codes, admitted = await _knock(replicas, ends, opened)
                # The share of each replica is the half of all places, what it runs included.
                assert len(admitted) == (0 if policy == "closed" else TOTAL - len(held))
                full = {(503, "admission_unavailable")} if policy == "closed" else {(429, "total_pool_full")}
                assert set(codes) - {(200, None)} == full, codes
                assert len(engine.requests) == engine.max_open == len(held) + len(admitted)
                for url in replicas.urls:
                    await _shows_itself_unready(url, ends)
                await wait_until(
                    lambda: time.monotonic() > began_s + 1.5 * TTL_S, "a lease's time passes", 10
                )
                for call in (*held, *admitted):
                    assert await call.next_token() is not None
                    assert call.ended is None
                shim.healthy()
                for replica in replicas.gateways:
                    await replica.ready(within_s=BACK_S)
                await eye.see(len(held) + len(admitted), "all that runs is counted")
            await nothing_runs(eye, engine)
            await all_left(ends, len(held) + len(admitted))
            await admits_exactly(TOTAL, replicas, engine)


async def test_what_one_replica_ran_above_its_share_is_the_most_that_an_outage_adds(
    redis_server: RedisServer, redis_url: str, engine: ScriptedEngine, tmp_path: Path
) -> None:
    """The other one cannot know of it; afterwards the excess is seen, and shuts admission until gone."""
    engine.answer = SLOW
    fleet = {"total": TOTAL, "cold": TOTAL}
    with RedisShim(redis_server.port) as shim:
        async with (
            rig(
                tmp_path, shim.url, engines=[engine.url], gateways=REPLICAS, fleet=fleet, budgets=PATIENT
            ) as replicas,
            looking_at(replicas.configs[0], redis_url) as eye,
        ):
            with ExitStack() as opened:
                ends = Ends(replicas.gateways)
                held = [opened.enter_context(await ends.call(replicas.urls[0])) for _ in range(TOTAL)]
                for call in held:
                    assert await call.first_token() is not None
                await eye.all_tick(REPLICAS)
                shim.refuse()
                _, admitted = await _knock(replicas, ends, opened)
                share = TOTAL // REPLICAS
                assert len(admitted) == share
                assert engine.open == engine.max_open == TOTAL + share
                shim.healthy()
                for replica in replicas.gateways:
                    await replica.ready(within_s=BACK_S)
                await eye.see(TOTAL + share, "all that runs is counted")
                assert (await eye.counts()).over_commit == share
                for call in held[: share + 1]:
                    with await ends.call(replicas.urls[1]) as asked:
                        assert await asked.head() == 429
                    before = await eye.live()
                    call.reset()
                    await eye.see(before - 1, "one of the excess has ended")
                with await ends.call(replicas.urls[1]) as asked:
                    assert await asked.head() == 200
            await nothing_runs(eye, engine)
            await admits_exactly(TOTAL, replicas, engine)


async def _knock(
    replicas: Rig, ends: Ends, opened: ExitStack
) -> tuple[Counter[tuple[int, str | None]], list[Call]]:
    """Ask forty times, some at once and some one by one; return the answers and the calls let in."""
    codes: Counter[tuple[int, str | None]] = Counter()
    admitted: list[Call] = []

    async def knock(url: str) -> None:
        call = opened.enter_context(await ends.call(url))
        status = await call.head()
        assert call.head_at - call.sent_at < ANSWER_S
        codes[status, None if status == 200 else await call.error_code()] += 1
        if status == 200:
            admitted.append(call)
        else:
            assert 1 <= int(call.headers["retry-after"]) <= 60

    await asyncio.gather(*(knock(url) for url in replicas.urls * 10))
    for url in replicas.urls * 10:
        await knock(url)
    return codes, admitted


async def _shows_itself_unready(url: str, ends: Ends) -> None:
    with await ends.call(url, method="GET", path="/readyz") as call:
        assert await call.head() == 503
    with await ends.call(url, method="GET", path="/healthz") as call:
        assert await call.head() == 200
