"""A client that stops reading stops the engine; little is held in between."""

import asyncio
import resource
from typing import Any

from tests.support.answers import Flood, Whole
from tests.support.scripted_engine import ScriptedEngine
from tests.support.waiting import wait_until

MIB = 1 << 20


async def settled(engine: ScriptedEngine) -> int:
    """Return how much the engine could write once it can write no more."""
    taken = -1
    while engine.requests[0].bytes_accepted != taken:
        taken = engine.requests[0].bytes_accepted
        await asyncio.sleep(0.2)  # standing still can only be seen over time
    return taken


async def test_a_client_that_does_not_read_stops_the_engine(gateway: Any, engine: ScriptedEngine) -> None:
    engine.answer = Flood()
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    call = await gateway.call(receive_buffer=4096)
    await call.head()
    await wait_until(lambda: engine.requests, "the engine writes")
    assert await settled(engine) < MIB
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib < 8 * 1024
    # Still healthy: not stalled out yet, and the lease is renewed.
    assert gateway.app.gate.live() == 1
    call.reset()
    await gateway.is_idle()
    await wait_until(lambda: engine.open == 0, "the engine was let go")


async def test_a_slow_client_gets_everything(gateway: Any, engine: ScriptedEngine) -> None:
    body = bytes(range(256)) * (4 * MIB // 256)
    engine.answer = Whole(body=body, headers=(("content-type", "application/octet-stream"),))
    call = await gateway.call(receive_buffer=4096)
    await call.head()
    assert await settled(engine) < len(body)
    assert await call.rest() == body
    call.close()
    assert (await gateway.record())["reason"] == "completed"
