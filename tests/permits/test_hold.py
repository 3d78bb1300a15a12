"""A permit goes back on every way out, once, and never costs more than the pool has."""

from __future__ import annotations

import asyncio
import random
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import pytest

from services.permits import Refused
from tests.permits.scene import LIMITS, Heard, a_gate, a_store, demand, granted_of
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from tests.permits.scene import Seen
    from tests.support.redis_shim import RedisShim


async def test_a_permit_is_held_for_the_block_and_goes_back_with_it(url: str, seen: Seen) -> None:
    async with a_gate(url) as gate:
        async with gate.hold(demand()) as permit:
            assert seen.live() == {permit.id}
            assert (permit.class_, permit.engine, permit.state) == ("cold", "e1", "held")
            assert permit.id.startswith(f"{gate.holder}~")
        await wait_until(lambda: permit.state == "released", "the release was acknowledged")
        assert seen.nothing_left()


async def test_an_exception_in_the_block_gives_it_back(url: str, seen: Seen) -> None:
    async with a_gate(url) as gate:
        with pytest.raises(ZeroDivisionError):
            async with gate.hold(demand()):
                raise ZeroDivisionError
        await wait_until(seen.nothing_left, "the permit went back")


async def test_whoever_takes_over_the_stack_owns_the_permit(url: str, seen: Seen) -> None:
    async with a_gate(url) as gate:
        async with AsyncExitStack() as held:
            permit = await held.enter_async_context(gate.hold(demand()))
            owned = held.pop_all()
        assert seen.live() == {permit.id}
        await owned.aclose()
        await wait_until(seen.nothing_left, "the permit went back")


async def test_a_task_cancelled_in_the_block_gives_it_back(url: str, seen: Seen) -> None:
    async with a_gate(url) as gate:
        inside = asyncio.Event()

        async def work() -> None:
            async with gate.hold(demand()):
                inside.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(work())
        await inside.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await wait_until(seen.nothing_left, "the permit went back")


async def test_closing_twice_gives_it_back_once_and_says_so_once(url: str, seen: Seen) -> None:
    async with a_gate(url) as gate:
        permit = await gate.take(demand())
        released: list[float] = []
        permit.on_released = released.append
        permit.close()
        permit.close()
        await wait_until(lambda: released, "the release was acknowledged")
        permit.close()
        assert await granted_of(gate, 5) == 4
        assert len(released) == 1


@pytest.mark.parametrize(
    ("limits", "code", "pool"),
    [
        ({"total": 0}, "total_pool_full", "total"),
        ({"cold": 0}, "cold_pool_full", "cold"),
        ({"tenant:acme": 0}, "tenant_quota", "tenant:acme"),
        ({"engine:e1": 0}, "total_pool_full", "engine:e1"),
    ],
)
async def test_a_refusal_names_the_pool_and_its_figures(
    url: str, limits: dict[str, int], code: str, pool: str
) -> None:
    heard = Heard()
    async with a_store(url) as store:
        await store.set_limits("f", limits, who="test")
    async with a_gate(url, listener=heard) as gate:
        with pytest.raises(Refused) as refused:
            await gate.take(demand())
        assert (refused.value.code, refused.value.pool) == (code, pool)
        assert (refused.value.in_use, refused.value.limit) == (0, 0)
        assert heard.outcomes == {code: 1}
        assert gate.live() == 0


@pytest.mark.parametrize("turns", range(6))
async def test_a_caller_cancelled_just_as_it_is_granted_leaks_nothing(
    url: str, seen: Seen, turns: int
) -> None:
    """The answer is there and the caller has not seen it yet: the worst moment to go."""

    class Cancels(Heard):
        task: asyncio.Task[None]

        def admission(self, fleet: str, outcome: str) -> None:
            super().admission(fleet, outcome)
            after(turns)

    def after(left: int) -> None:
        if left:
            asyncio.get_running_loop().call_soon(after, left - 1)
        else:
            listener.task.cancel()

    async def work() -> None:
        async with gate.hold(demand()):
            await asyncio.Event().wait()

    listener = Cancels()
    async with a_gate(url, listener=listener) as gate:
        listener.task = asyncio.create_task(work())
        with pytest.raises(asyncio.CancelledError):
            await listener.task
        assert listener.outcomes == {"granted": 1}
        await wait_until(seen.nothing_left, "the permit went back")
        assert gate.live() == 0


async def test_callers_cancelled_at_any_moment_leave_exactly_the_whole_pool(url: str, seen: Seen) -> None:
    """Two hundred rounds: cancelled before the call, during it, as it answers, and in the block."""
    async with a_gate(url) as gate:

        async def work() -> None:
            async with gate.hold(demand()):
                await asyncio.sleep(0.002)

        for round_ in range(200):
            rng = random.Random(round_)
            tasks = [asyncio.create_task(work()) for _ in range(3)]
            for task in tasks:
                for _ in range(rng.randrange(12)):
                    await asyncio.sleep(0)
                if rng.random() < 0.5:
                    await asyncio.sleep(rng.random() * 0.003)
                task.cancel()
            ends = await asyncio.gather(*tasks, return_exceptions=True)
            assert {type(end) for end in ends} <= {asyncio.CancelledError, type(None), Refused}
        await wait_until(seen.nothing_left, "everything went back")
        assert gate.live() == 0
        assert await granted_of(gate, LIMITS["total"] + 1) == LIMITS["total"]


async def test_a_cancelled_caller_gets_away_at_once_and_its_grant_goes_back_later(
    shim: RedisShim, seen: Seen
) -> None:
    async with a_gate(shim.url) as gate:
        shim.delay(300)
        task = asyncio.create_task(gate.take(demand()))
        await asyncio.sleep(0)
        began_s = asyncio.get_running_loop().time()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert asyncio.get_running_loop().time() - began_s < 0.2
        shim.healthy()
        await wait_until(lambda: gate.live() == 0 and seen.nothing_left(), "the grant went back")


async def test_a_gate_that_closes_gives_back_what_is_still_closing(url: str, seen: Seen) -> None:
    async with a_gate(url) as gate:
        for _ in range(4):
            (await gate.take(demand())).close()
    assert seen.nothing_left()


async def test_a_gate_that_closes_waits_for_the_grants_of_callers_who_left(
    shim: RedisShim, seen: Seen
) -> None:
    async with a_gate(shim.url) as gate:
        lost = shim.drop_replies(lambda request: b"acme" in request, harm="hang")
        task = asyncio.create_task(gate.take(demand()))
        await wait_until(lambda: lost.hits, "the acquire is on its way")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert seen.nothing_left()


async def test_a_downgrade_gives_the_cold_place_and_keeps_the_rest(url: str, seen: Seen) -> None:
    async with a_gate(url) as gate, gate.hold(demand()) as permit:
        permit.downgrade()
        permit.downgrade()
        await wait_until(lambda: not seen.live("cold"), "the cold place went back")
        ticks = seen.client.hget("tenure:{f}:meta", "clock")
        await wait_until(
            lambda: int(seen.client.hget("tenure:{f}:meta", "clock")) > int(ticks) + 600, "a tick passed"
        )
        assert seen.live("cold") == set()
        assert seen.live() == {permit.id}


async def test_a_permit_moves_to_an_engine_with_room(url: str, seen: Seen) -> None:
    async with a_gate(url) as gate, gate.hold(demand(engines=("e1",))) as permit:
        assert await gate.move(permit, ["e2"]) is True
        assert permit.engine == "e2"
        assert (seen.live("engine:e1"), seen.live("engine:e2")) == (set(), {permit.id})
        async with a_store(url) as store:
            await store.set_limits("f", {"engine:e3": 0}, who="test")
        assert await gate.move(permit, ["e3"]) is False
        assert permit.engine == "e2"
    await wait_until(seen.nothing_left, "every place went back")


async def test_the_engines_evidence_makes_the_next_request_warm(url: str) -> None:
    async with a_gate(url) as gate:
        async with gate.hold(demand(prefixes=("p",))) as permit:
            assert permit.class_ == "cold"
            gate.witness(permit, {"p": True})

        async def warm() -> bool:
            async with gate.hold(demand(prefixes=("p",))) as permit:
                return permit.class_ == "warm"

        await wait_until(warm, "the evidence arrived")
