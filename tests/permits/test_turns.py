"""So many at once, in order, and no turn is lost or made by whoever leaves."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.permits import Demand, Permit
from services.permits.acquirer import AT_ONCE_MAX
from services.permits.model import Answer
from services.permits.store import Store
from services.permits.turns import Turns
from tests.permits.scene import LIMITS, a_gate, demand


@asynccontextmanager
async def a_turn(turns: Turns) -> AsyncIterator[None]:
    """Take a turn as its users do."""
    if turns.free:
        turns.free -= 1
    else:
        await turns.come()
    try:
        yield
    finally:
        turns.end()


async def settle() -> None:
    """Let everything that is ready run."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_those_who_wait_come_in_their_order() -> None:
    turns, came = Turns(1), list[int]()

    async def come(number: int) -> None:
        async with a_turn(turns):
            came.append(number)
            await asyncio.sleep(0)

    await asyncio.wait_for(asyncio.gather(*(come(number) for number in range(5))), 5)
    assert came == [0, 1, 2, 3, 4]
    assert turns.free == 1


async def test_a_turn_that_came_together_with_a_cancellation_is_handed_on() -> None:
    turns = Turns(1)
    turns.free -= 1
    leaves, stays = (asyncio.create_task(turns.come()) for _ in range(2))
    await settle()
    turns.end()
    leaves.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaves
    await asyncio.wait_for(stays, 1)
    turns.end()
    assert turns.free == 1


@settings(deadline=None)
@given(
    most=st.integers(1, 3),
    steps=st.lists(st.tuples(st.sampled_from(["come", "end", "leave", "end and leave"]), st.integers(0, 7))),
)
async def test_never_more_than_so_many_and_none_is_lost(most: int, steps: list[tuple[str, int]]) -> None:
    turns = Turns(most)
    everyone: list[tuple[asyncio.Task[None], asyncio.Event]] = []
    running = peak = 0

    async def live(over: asyncio.Event) -> None:
        nonlocal running, peak
        async with a_turn(turns):
            running += 1
            peak = max(peak, running)
            try:
                await over.wait()
            finally:
                running -= 1

    for what, which in steps:
        if what == "come":
            over = asyncio.Event()
            everyone.append((asyncio.create_task(live(over)), over))
        elif everyone:
            task, over = everyone[which % len(everyone)]
            if "end" in what:
                over.set()
            if "leave" in what:
                (everyone[-1][0] if what == "end and leave" else task).cancel()
        await settle()
        alive = sum(not task.done() for task, _ in everyone)
        assert running == min(most, alive)
        assert turns.free == most - running
    for _, over in everyone:
        over.set()
    await asyncio.wait_for(asyncio.gather(*(task for task, _ in everyone), return_exceptions=True), 5)
    assert peak <= most
    assert turns.free == most


async def test_no_more_acquires_than_so_many_are_under_way(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asks = now = peak = 0
    ask = Store.acquire

    async def counted(self: Store, asked: Demand, **more: Any) -> Answer:
        nonlocal asks, now, peak
        asks, now = asks + 1, now + 1
        peak = max(peak, now)
        try:
            return await ask(self, asked, **more)
        finally:
            now -= 1

    monkeypatch.setattr(Store, "acquire", counted)
    async with a_gate(url) as gate:
        takes = [gate.take(demand()) for _ in range(3 * AT_ONCE_MAX)]
        answers = await asyncio.gather(*takes, return_exceptions=True)
        assert asks == 3 * AT_ONCE_MAX
        assert peak == AT_ONCE_MAX
        held = [answer for answer in answers if isinstance(answer, Permit)]
        assert len(held) == LIMITS["total"]
        for permit in held:
            permit.close()
