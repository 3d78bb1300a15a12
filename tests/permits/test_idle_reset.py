"""A connection that is reset while nobody uses it costs no call, on whichever event loop."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
import uvloop

from services.permits.connect import connect
from services.permits.store import Store
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.redis_shim import RedisShim

IDLE_RESETS = 5


@pytest.mark.parametrize("loop", [uvloop.new_event_loop, asyncio.new_event_loop], ids=["uvloop", "asyncio"])
def test_the_next_call_after_an_idle_reset_goes_over_a_new_connection(
    shim: RedisShim, loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    """The loop itself closes the transport and then refuses a write, and not with an OSError."""

    async def calls() -> None:
        client = connect(shim.url)
        store = Store(client)
        try:
            for _ in range(IDLE_RESETS):
                await store.fleets()
                assert (await store.count("demo")).total == 0
                await asyncio.to_thread(shim.reset)
                await wait_until(lambda: shim.open == 0, "the shim has let go")
                # What the kernel has delivered the loop hears of in its next turns.
                for _ in range(5):
                    await asyncio.sleep(0)
        finally:
            await client.aclose()

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(calls())
