"""How long a cold request keeps its cold place: until its first token or until its end, as the fleet says."""

from __future__ import annotations

from contextlib import ExitStack, asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from tests.nodes.places import LONG, Ends, Eye, looking_at, nothing_runs
from tests.support.answers import Stream
from tests.support.burst import burst
from tests.support.rig import Rig, rig
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.support.client import Call
    from tests.support.scripted_engine import ScriptedEngine

pytestmark = pytest.mark.timeout(90)

TOTAL, COLD = 4, 2
# Its role is no token: such a stream is still in its prefill.
IN_PREFILL = Stream(hold_after=0)


@asynccontextmanager
async def two_replicas(
    folder: Path, redis_url: str, engine: ScriptedEngine, cold_until: str
) -> AsyncIterator[tuple[Rig, Eye]]:
    async with (
        rig(
            folder,
            redis_url,
            engines=[engine.url],
            gateways=2,
            fleet={"total": TOTAL, "cold": COLD, "cold_until": cold_until},
        ) as replicas,
        looking_at(replicas.configs[0]) as eye,
    ):
        yield replicas, eye


async def cold_in_use(eye: Eye, count: int, why: str) -> None:
    async def reached() -> bool:
        return (await eye.counts()).cold == count

    await wait_until(reached, why)


async def begun(replicas: Rig, opened: ExitStack, count: int) -> list[Call]:
    """Start streams on both replicas in turn and read their first tokens."""
    calls = [
        opened.enter_context(await Ends([]).call(url))
        for url in (replicas.urls[number % 2] for number in range(count))
    ]
    for call in calls:
        assert await call.first_token() is not None, call.status
    return calls


async def admits_cold(replicas: Rig, engine: ScriptedEngine, count: int, code: str) -> None:
    """Of five more requests that come at once exactly `count` are admitted, the others refused by `code`."""
    engine.answer = IN_PREFILL
    with await burst(5, replicas.urls, key=replicas.key()) as together:
        assert dict(together.statuses) == ({200: count, 429: 5 - count} if count else {429: 5})
        assert set(together.codes) == {code}


async def test_until_the_first_token_more_run_than_are_cold_at_once(
    redis_url: str, engine: ScriptedEngine, tmp_path: Path
) -> None:
    """Only the start is charged; a stream that ends after its first token frees nobody's cold place."""
    async with two_replicas(tmp_path, redis_url, engine, "first_token") as (replicas, eye):
        with ExitStack() as opened:
            calls = []
            for _ in range(TOTAL // COLD):
                engine.answer = LONG
                calls += await begun(replicas, opened, COLD)
                await cold_in_use(eye, 0, "the cold places went back")
            assert engine.open == TOTAL
            await admits_cold(replicas, engine, 0, "total_pool_full")
            for call in calls[1:]:
                call.reset()
            await eye.see(1, "three have left")
            engine.answer = IN_PREFILL
            for url in replicas.urls:
                assert await opened.enter_context(await Ends([]).call(url)).head() == 200
            await cold_in_use(eye, COLD, "as many as may are in their prefill")
            calls[0].reset()
            await eye.see(COLD, "the last that was past its own has left")
            await admits_cold(replicas, engine, 0, "cold_pool_full")
            assert (await eye.counts()).cold == COLD
        await nothing_runs(eye, engine)
        await admits_cold(replicas, engine, COLD, "cold_pool_full")
        await nothing_runs(eye, engine)
        assert engine.max_open == TOTAL


async def test_until_the_end_no_more_run_than_are_cold_at_once(
    redis_url: str, engine: ScriptedEngine, tmp_path: Path
) -> None:
    """A first token frees nothing; the end frees exactly one."""
    async with two_replicas(tmp_path, redis_url, engine, "end") as (replicas, eye):
        with ExitStack() as opened:
            engine.answer = LONG
            calls = await begun(replicas, opened, COLD)
            assert (await eye.counts()).cold == COLD
            await admits_cold(replicas, engine, 0, "cold_pool_full")
            calls.pop().reset()
            await cold_in_use(eye, COLD - 1, "one has left")
            await admits_cold(replicas, engine, 1, "cold_pool_full")
            await nothing_runs(eye, engine, but=1)
        await nothing_runs(eye, engine)
        assert engine.max_open == COLD
