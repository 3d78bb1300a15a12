"""A client that leaves stops its work, wherever that is, and everything it held is free again."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

import pytest

from tests.support.client import Call, chat_body
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from tests.engine.conftest import Engine, StartEngine

LONG = " ".join(f"word{number}" for number in range(400))


def leave(call: Call, manner: str) -> None:
    {"reset": call.reset, "close": call.close, "half-close": call.half_close}[manner]()


@pytest.mark.parametrize("manner", ["reset", "close", "half-close"])
@pytest.mark.parametrize("stream", [True, False])
async def test_leaving_during_the_prefill_stops_it_between_two_chunks(
    start_engine: StartEngine, manner: str, stream: bool
) -> None:
    engine = await start_engine(prefill_ms=5)
    call = await engine.start(LONG, stream=stream)
    await wait_until(lambda: engine.room.cache.pages_in_use > 1, "the prefill has begun")
    leave(call, manner)
    await engine.idle(within_s=1)  # the whole prefill would take two seconds
    call.close()
    state = await engine.state()
    assert (state["cancelled"], state["completed"], state["generated_tokens"]) == (1, 0, 0)
    assert state["pages_cached"] < 20, "a prompt of about 400 tokens has 25 pages"


async def test_the_pages_computed_before_leaving_serve_the_next_who_asks(start_engine: StartEngine) -> None:
    engine = await start_engine(prefill_ms=1, tokens=1)
    call = await engine.start(LONG)
    await wait_until(lambda: engine.room.cache.pages_in_use > 2, "some pages are computed")
    call.reset()
    await engine.idle()
    answer = await engine.ask("/v1/chat/completions", messages=[{"role": "user", "content": LONG}])
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] >= 16


@pytest.mark.parametrize("manner", ["reset", "close", "half-close"])
async def test_leaving_during_decode_stops_at_the_next_token(start_engine: StartEngine, manner: str) -> None:
    engine = await start_engine(token_ms=20, tokens=1000)
    call = await engine.start()
    await call.first_token()
    leave(call, manner)
    await engine.idle(within_s=1)
    call.close()
    state = await engine.state()
    assert state["cancelled"] == 1
    assert state["generated_tokens"] < 30
    assert await engine.metric("tenure_engine_cancel_seconds_count") == 1
    assert await engine.metric('tenure_engine_cancel_seconds_bucket{le="0.1"}') == 1


async def test_leaving_the_queue_gives_the_place_to_nobody_else_and_costs_nothing(
    start_engine: StartEngine,
) -> None:
    engine = await start_engine(slots=1, token_ms=5, tokens=1000)
    running = await engine.start()
    await running.first_token()
    waiting = await engine.start("wait")
    behind = await engine.start("behind", max_tokens=2)
    await wait_until(lambda: engine.room.queued == 2, "two wait")
    waiting.reset()
    await wait_until(lambda: engine.room.queued == 1, "the one that left is out of the line")
    assert engine.room.running == 1
    running.reset()
    assert await behind.first_token()
    await behind.rest()
    behind.close()
    await engine.idle()
    state = await engine.state()
    assert (state["cancelled"], state["completed"], state["max_running"]) == (2, 1, 1)


async def test_a_client_that_stops_reading_stops_its_own_generation(start_engine: StartEngine) -> None:
    """Back-pressure reaches the loop that generates; leaving then still frees everything."""
    engine = await start_engine(token_ms=0, prefill_ms=0, tokens=100_000)
    call = await Call.start(engine.url, receive_buffer=4096, body=chat_body())
    await call.first_token()
    generated = -1

    async def stands_still() -> bool:
        nonlocal generated
        before, generated = generated, engine.room.generated_tokens
        return before == generated

    await wait_until(stands_still, "the generation stands still", 15)
    assert generated < 100_000
    assert engine.room.running == 1
    call.reset()
    await engine.idle()


async def one_who_leaves(engine: Engine, luck: random.Random) -> None:
    """Send one of a few prompts, read a random part of the answer, leave in a random manner."""
    prompt = " ".join(["shared"] * 20 * luck.randrange(4) + [f"own{luck.randrange(5)}"] * luck.randrange(60))
    call = await engine.start(prompt, stream=luck.random() < 0.8, max_tokens=luck.choice([1, 5, 40]))
    try:
        if luck.random() < 0.8 and await call.head() == 200:
            for _ in range(luck.randrange(6)):
                await call.next_event()
        leave(call, luck.choice(["reset", "close", "half-close"]))
        if luck.random() < 0.3 and call.sock.fileno() >= 0:
            await call.rest()
    finally:
        call.reset()


async def test_two_hundred_random_departures_leak_no_page_and_no_slot(start_engine: StartEngine) -> None:
    """Slots and pages are scarce, so that leaving meets every state: waiting, prefill, decode, the end."""
    engine = await start_engine(slots=4, token_ms=1, prefill_ms=0.1, pages=24, page_tokens=8)
    luck = random.Random(20260)
    crowd = asyncio.Semaphore(16)

    async def one() -> None:
        async with crowd:
            await one_who_leaves(engine, luck)

    await asyncio.gather(*(one() for _ in range(200)))
    await engine.idle()
    state = await engine.state()
    assert state["cancelled"] > 50
    assert state["completed"] > 0
    assert state["failed"] == state["stopped"] == 0
    assert state["max_running"] == 4
    await four_run_and_a_fifth_waits(engine)


async def four_run_and_a_fifth_waits(engine: Engine) -> None:
    calls = [await engine.start(max_tokens=40) for _ in range(5)]
    await wait_until(lambda: (engine.room.running, engine.room.queued) == (4, 1), "four run, one waits")
    ends = await asyncio.gather(*(body_of(call) for call in calls))
    assert all(end.endswith(b"data: [DONE]\n\n") for end in ends)


async def body_of(call: Call) -> bytes:
    try:
        assert await call.head() == 200
        return await call.rest()
    finally:
        call.close()
