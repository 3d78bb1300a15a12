"""Administration takes turns: a few calls at a time, in order, and nobody waits for ever."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from services.gateway import desk as desk_module
from services.gateway.desk import AT_ONCE_MAX, Desk
from services.permits.connect import connect
from services.permits.errors import Unavailable
from services.permits.store import Store
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from services.permits.admin import Admin


@pytest.fixture
async def desk(redis_url: str) -> AsyncIterator[Desk]:
    client = connect(redis_url, max_connections=AT_ONCE_MAX)
    yield Desk(Store(client))
    await client.aclose()


class Slow:
    """A call that ends when it is told to."""

    def __init__(self) -> None:
        self.may_end = asyncio.Event()
        self.running = self.ended = 0

    async def call(self, _: Admin) -> str:
        self.running += 1
        await self.may_end.wait()
        self.running -= 1
        self.ended += 1
        return "done"


async def test_no_more_than_a_few_calls_run_at_a_time_and_all_get_their_turn(desk: Desk) -> None:
    slow = Slow()
    asked = [asyncio.create_task(desk.ask(slow.call)) for _ in range(20)]
    await wait_until(lambda: slow.running == AT_ONCE_MAX, "some run")
    slow.may_end.set()
    assert await asyncio.gather(*asked) == ["done"] * 20


async def test_whose_turn_does_not_come_is_told_so(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Slow()
    asked = [asyncio.create_task(desk.ask(slow.call)) for _ in range(AT_ONCE_MAX)]
    await wait_until(lambda: slow.running == AT_ONCE_MAX, "all turns are taken")
    monkeypatch.setattr(desk_module, "TURN_S", 0.05)
    with pytest.raises(Unavailable):
        await desk.ask(slow.call)
    slow.may_end.set()
    await asyncio.gather(*asked)
    assert await desk.ask(lambda admin: admin.fleets()) == []


async def test_an_asker_that_is_cancelled_ends_neither_its_call_nor_its_successors(desk: Desk) -> None:
    slow = Slow()
    for _ in range(3 * AT_ONCE_MAX):
        asked = asyncio.create_task(desk.ask(slow.call))
        before = slow.running
        await wait_until(lambda before=before: slow.running > before, "it runs")  # type: ignore[misc]
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
    slow.may_end.set()
    await wait_until(lambda: slow.ended == 3 * AT_ONCE_MAX, "every call went on to its end")
