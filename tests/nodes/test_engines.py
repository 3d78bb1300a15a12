"""Several engines of one fleet: the least loaded first, never more than its slots, and one may be dead."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from tests.nodes.places import LONG, Ends, each_ended_once, looking_at
from tests.support.answers import Stream, failure
from tests.support.burst import burst
from tests.support.client import Call
from tests.support.rig import Rig, rig
from tests.support.scripted_engine import ScriptedEngine
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from tests.nodes.places import Eye

pytestmark = pytest.mark.timeout(90)


@pytest.fixture
def other() -> Iterator[ScriptedEngine]:
    """The fleet's second engine."""
    with ScriptedEngine() as scripted:
        yield scripted


@asynccontextmanager
async def two_engines(
    folder: Path, redis_url: str, slots: dict[str, tuple[ScriptedEngine, int]], **fleet: Any
) -> AsyncIterator[tuple[Rig, Eye]]:
    """Two replicas in front of engines with so many slots each."""
    engines = [{"name": name, "url": engine.url, "slots": count} for name, (engine, count) in slots.items()]
    async with (
        rig(folder, redis_url, engines=engines, gateways=2, fleet=fleet) as replicas,
        looking_at(replicas.configs[0]) as eye,
    ):
        yield replicas, eye


async def all_gone(eye: Eye, *engines: ScriptedEngine) -> None:
    await eye.see(0, "every place is free")
    await wait_until(lambda: not any(engine.open for engine in engines), "nothing is open at the engines")
    assert not any((await eye.counts(engines=["e1", "e2"])).engines.values())


async def test_each_request_goes_to_the_engine_with_the_fewest_permits_whichever_replica_asks(
    redis_url: str, engine: ScriptedEngine, other: ScriptedEngine, tmp_path: Path
) -> None:
    """Two replicas that each balanced by themselves would both favour the same engine."""
    engine.answer = other.answer = LONG
    slots = {"e1": (engine, 10), "e2": (other, 10)}
    async with two_engines(tmp_path, redis_url, slots, total=20, cold=20) as (replicas, eye):
        with ExitStack() as opened:
            calls: list[Call] = []
            for number in range(12):
                # Always two in a row by the same replica: its own round robin would not balance.
                url = replicas.urls[number // 2 % 2]
                call = opened.enter_context(await Ends([]).call(url))
                assert await call.first_token() is not None
                calls.append(call)
                assert abs(engine.open - other.open) <= 1
            assert (engine.open, other.open) == (6, 6)
            assert (await eye.counts(engines=["e1", "e2"])).engines == {"e1": 6, "e2": 6}
            # The places of one engine come back: the next ones go there and nowhere else.
            rows = {row.lease: row.engine for row in await eye.leases()}
            for call in [call for call in calls if rows[call.headers["tenure-lease"]] == "e2"][:4]:
                call.reset()
            await eye.see(8, "four have left")
            await wait_until(lambda: other.open == 2, "they left the second engine")
            for url in replicas.urls * 2:
                call = opened.enter_context(await Ends([]).call(url))
                assert await call.first_token() is not None
            assert (engine.open, other.open) == (6, 6)
        await all_gone(eye, engine, other)


async def test_no_engine_gets_more_than_its_slots_in_a_burst(
    redis_url: str, engine: ScriptedEngine, other: ScriptedEngine, tmp_path: Path
) -> None:
    """The total would allow more; the engine's own limit holds at every instant, over all replicas."""
    engine.answer = other.answer = LONG
    slots = {"e1": (engine, 2), "e2": (other, 3)}
    async with two_engines(tmp_path, redis_url, slots, total=100, cold=100) as (replicas, eye):
        for number in range(10):
            with await burst(60, replicas.urls, key=replicas.key()) as together:
                assert dict(together.statuses) == {200: 5, 429: 55}
                assert set(together.codes) == {"total_pool_full"}
                await wait_until(lambda: (engine.open, other.open) == (2, 3), "both are full")
                if number % 2:
                    await wait_until(lambda: (engine.held, other.held) == (2, 3), "all have begun")
                    engine.finish_all()
                    other.finish_all()
                    await together.drain()
            await all_gone(eye, engine, other)
        assert (engine.max_open, other.max_open) == (2, 3)


async def test_a_dead_engine_is_passed_over_with_the_same_permit(
    redis_url: str, engine: ScriptedEngine, other: ScriptedEngine, tmp_path: Path
) -> None:
    """A second attempt that took a second permit would halve the fleet just when it is weak."""
    engine.refuse()
    other.answer = LONG
    slots = {"e1": (engine, 10), "e2": (other, 10)}
    async with two_engines(tmp_path, redis_url, slots, total=1, cold=1) as (replicas, eye):
        ends, grants, rounds = Ends(replicas.gateways), await eye.grants(), 100
        for number in range(rounds):
            # The only place of the fleet: a request that needed two could not be served.
            with await ends.call(replicas.urls[number % 2]) as call:
                assert await call.head() == 200
                counts = await eye.counts("acme", engines=["e1", "e2"])
                assert (counts.total, counts.cold, counts.tenants) == (1, 1, {"acme": 1})
                assert counts.engines == {"e1": 0, "e2": 1}
                (row,) = await eye.leases()
                assert (row.lease, row.engine) == (call.headers["tenure-lease"], "e2")
                await wait_until(lambda: other.held == 1, "the engine has begun")
                other.finish_all()
                assert (await call.rest()).endswith(b"data: [DONE]\n\n")
            await all_gone(eye, other)
        lines = await ends.reach(rounds)
        each_ended_once(lines)
        assert {(line["reason"], line["engine"]) for line in lines} == {("completed", "e2")}
        assert await eye.grants() - grants == rounds
        assert other.max_open == 1

        # Back again, it gets its share.
        engine.listen()
        engine.answer = other.answer = Stream(tokens=1)

        async def is_used() -> bool:
            with await ends.call(replicas.urls[0]) as call:
                assert await call.head() == 200
                await call.rest()
            await all_gone(eye, engine, other)
            return bool(engine.requests)

        await wait_until(is_used, "the engine that came back is used", 40)


async def test_an_engine_that_says_503_is_believed_and_nobody_pays_twice(
    redis_url: str, engine: ScriptedEngine, other: ScriptedEngine, tmp_path: Path
) -> None:
    """Its answer is passed on as it is; whatever is done about it, one request holds one permit."""
    engine.answer = failure(503, retry_after="3")
    other.answer = Stream()
    slots = {"e1": (engine, 10), "e2": (other, 10)}
    async with two_engines(tmp_path, redis_url, slots, total=8, cold=8) as (replicas, eye):
        ends, grants, rounds = Ends(replicas.gateways), await eye.grants(), 100

        async def once(url: str) -> int:
            with await ends.call(url) as call:
                status = await call.head()
                if status == 503:
                    assert call.headers["retry-after"] == "3"
                    assert "tenure-refused" not in call.headers
                await call.rest()
                return status

        for _ in range(rounds // 4):
            assert set(await asyncio.gather(*(once(url) for url in replicas.urls * 2))) <= {200, 503}
        lines = await ends.reach(rounds)
        each_ended_once(lines)
        assert {line["reason"] for line in lines} == {"completed"}
        assert await eye.grants() - grants == rounds
        assert len(engine.requests) + len(other.requests) == rounds
        await all_gone(eye, engine, other)
