"""What a request leaves behind in Redis: nothing, whoever asked, and also when its replica died over it."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

import pytest

from tests.nodes.places import LONG, Ends, looking_at, nothing_runs
from tests.support.answers import Stream
from tests.support.rig import Rig, rig
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.redis_server import RedisServer
    from tests.support.scripted_engine import ScriptedEngine

pytestmark = pytest.mark.timeout(120)

PER_ROUND: Final = 150
ROUNDS: Final = 2
AT_ONCE: Final = 10
# Bounded by themselves: the history forgets its oldest entries, the cursor is one number.
HISTORY: Final = {"tenure:{demo}:events", "tenure:{demo}:ends", "tenure:{demo}:reported"}


async def test_tenants_that_came_once_leave_no_key_behind_also_those_whose_replica_died(
    redis_server: RedisServer, redis_url: str, engine: ScriptedEngine, tmp_path: Path
) -> None:
    """A companion key per tenant or lease that nobody deletes fills Redis, slowly and for good."""
    tenants: dict[str, int | None] = {f"t{number}": 2 for number in range(ROUNDS * PER_ROUND)}
    fleet = {"total": 2 * PER_ROUND, "cold": 2 * PER_ROUND}
    engines = [{"url": engine.url, "name": "e1", "slots": 2 * PER_ROUND}]
    async with (
        rig(
            tmp_path, redis_url, engines=engines, gateways=2, reapers=1, fleet=fleet, tenants=tenants
        ) as replicas,
        looking_at(replicas.configs[0]) as eye,
    ):
        before = set(redis_server.cli("KEYS", "*"))
        used = []
        for number in range(ROUNDS):
            if number:
                await replicas.restart_gateway(1)
            await _round(replicas, engine, range(number * PER_ROUND, (number + 1) * PER_ROUND))
            await nothing_runs(eye, engine)
            await wait_until(
                lambda: set(redis_server.cli("KEYS", "*")) <= before | HISTORY, "only what was there is left"
            )
            used.append(int(redis_server.cli("INFO", "memory")["used_memory"]))
    assert used[-1] < 1.05 * used[0]


async def _round(replicas: Rig, engine: ScriptedEngine, tenants: range) -> None:
    """Each tenant asks once; a third of them are streaming when their replica is killed."""
    ends, turn = Ends([]), asyncio.Semaphore(AT_ONCE)
    alive, victim = replicas.urls

    async def whole(number: int) -> None:
        async with turn:
            with await ends.call(alive, f"t{number}") as call:
                assert await call.head() == 200
                await call.rest()

    engine.answer = LONG
    with ExitStack() as opened:
        for number in tenants[::3]:
            call = opened.enter_context(await ends.call(victim, f"t{number}"))
            assert await call.first_token() is not None
        engine.answer = Stream(tokens=1)
        await asyncio.gather(*(whole(number) for number in tenants if number % 3))
        replicas.gateways[1].kill9()
