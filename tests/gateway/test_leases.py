"""What a stream does when its lease is lost, and what a restless client does to the count."""

import asyncio
import random
import time
from typing import Any

import pytest

from services.permits import Demand
from services.permits.acquirer import CALL_S, VERDICT_S, _verdict
from tests.support.answers import Stream
from tests.support.client import Call
from tests.support.redis_server import RedisServer
from tests.support.scripted_engine import ScriptedEngine
from tests.support.waiting import wait_until

SHORT_LEASE = {"ttl_ms": 1200, "tick_ms": 200, "provisional_ms": 1400, "learning_ms": 500}


async def test_a_lost_lease_ends_the_stream_where_the_policy_says_so(
    open_gateway: Any, engine: ScriptedEngine, redis_server: RedisServer
) -> None:
    """The engine is let go by the moment the place could be given to somebody else."""
    gateway = await open_gateway(fleet={"lost_lease": "stop"}, lease=SHORT_LEASE)
    engine.answer = Stream(tokens=None, gap_s=0.05)
    call = await gateway.call()
    await call.first_token()
    redis_server.pause()
    body = await call.rest()
    assert b'"code":"admission_unavailable"' in body
    assert b"[DONE]" not in body
    assert call.ended == "clean"
    call.close()
    await wait_until(lambda: engine.open == 0, "the engine was let go")
    redis_server.resume()
    assert (await gateway.record())["reason"] == "lease_lost"
    await gateway.is_idle()


async def test_a_stream_runs_on_through_an_outage_by_default(
    open_gateway: Any, engine: ScriptedEngine, redis_server: RedisServer
) -> None:
    gateway = await open_gateway(lease=SHORT_LEASE)
    engine.answer = Stream(tokens=3, hold_after=1)
    call = await gateway.call()
    await call.first_token()
    redis_server.pause()
    await asyncio.sleep(1.6)  # longer than a lease: the outage must have outlived it
    redis_server.resume()
    engine.finish_all()
    assert (await call.rest()).endswith(b"data: [DONE]\n\n")
    call.close()
    assert (await gateway.record())["reason"] == "completed"
    await gateway.is_idle()


async def test_an_end_during_an_outage_costs_the_client_nothing_and_is_logged_at_the_end(
    open_gateway: Any, engine: ScriptedEngine, redis_server: RedisServer
) -> None:
    """Giving back is never waited for."""
    gateway = await open_gateway(lease=SHORT_LEASE)
    engine.answer = Stream(tokens=3, hold_after=1)
    call = await gateway.call()
    await call.first_token()
    redis_server.pause()
    engine.finish_all()
    async with asyncio.timeout(0.5):
        await call.rest()
    assert call.ended == "clean"
    call.close()
    assert gateway.records() == []
    redis_server.resume()
    line = await gateway.record()
    assert line["released_at"] >= line["last_token_at"]
    await gateway.is_idle()


async def test_an_event_loop_that_was_busy_takes_no_answer_of_redis_for_late(
    open_gateway: Any, engine: ScriptedEngine
) -> None:
    """The answer lay there unread; taken for an outage, it would be decided without Redis."""
    del engine
    gateway = await open_gateway(fleet={"redis_loss": "closed"})
    gate, engines = gateway.app.gate, ("e1",)
    for number in range(4):
        demand = Demand(fleet="demo", tenant="acme", request_id=f"r{number}", engines=engines)
        asking = asyncio.create_task(gate.take(demand))
        for _ in range(number):
            await asyncio.sleep(0)  # before it is sent, and after
        for _ in range(4):
            time.sleep(1.2 * CALL_S)  # what parsing a large prompt does, and then the next one
            await asyncio.sleep(0)
        (await asking).close()
    assert gate.ready() == (True, "ready")
    await gateway.is_idle()


async def test_a_redis_that_came_back_while_the_loop_was_busy_is_back(gateway: Any) -> None:
    """The end of the wait is the first thing that the loop sees; that Redis is up lies there too."""
    lane = next(iter(gateway.app.gate._ticker.lanes.values()))  # noqa: SLF001  (what it hears from its thread)
    lane.up.clear()
    waiting = asyncio.create_task(_verdict(lane))
    await asyncio.sleep(0)
    asyncio.get_running_loop().call_soon_threadsafe(lane.up.set)
    time.sleep(1.2 * VERDICT_S)
    await asyncio.wait([waiting])
    assert waiting.exception() is None


@pytest.mark.parametrize("seed", range(4))
async def test_clients_that_leave_at_any_moment_leave_nothing_behind(
    open_gateway: Any, engine: ScriptedEngine, seed: int
) -> None:
    """Before the permit, before the headers, in the stream: whenever it is, once and completely."""
    moments = random.Random(seed)
    gateway = await open_gateway(fleet={"total": 8, "cold": 8})
    engine.answer = Stream(tokens=5, first_gap_s=0.005, gap_s=0.002)

    async def one() -> None:
        call = await gateway.call()
        try:
            async with asyncio.timeout(moments.uniform(0, 0.04)):
                await call.head()
                await call.rest()
        except TimeoutError:
            pass
        (call.reset if moments.random() < 0.7 else call.close)()

    for _ in range(10):
        await asyncio.gather(*(one() for _ in range(8)))
    await wait_until(lambda: len(gateway.records()) == 80, "every request is in the log")
    await gateway.is_idle()
    await wait_until(lambda: engine.open == 0, "nothing is open at the engine")
    assert engine.max_open <= 8
    admitted = [line for line in gateway.records() if line["lease"]]
    assert all(line["reason"] in ("completed", "client_disconnect") for line in admitted)
    assert all(line["released_at"] for line in admitted)
    await exactly(8, gateway, engine)


async def exactly(limit: int, gateway: Any, engine: ScriptedEngine) -> None:
    """Start one more than the limit at once: fewer admitted would be a leak, more a double release."""
    engine.answer = Stream(hold_after=1)
    calls: list[Call] = [await gateway.call() for _ in range(limit + 1)]
    assert sorted([await call.head() for call in calls]) == [200] * limit + [429]
    for call in calls:
        call.reset()
    await gateway.is_idle()
