"""How many compute at once, and in which order the others follow."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from tests.engine.conftest import StartEngine
    from tests.support.client import Call


async def test_no_more_requests_compute_than_there_are_slots(start_engine: StartEngine) -> None:
    """Seen from outside: thirty answers of 40 ms cannot be had from three slots in less than 400 ms."""
    engine = await start_engine(slots=3, token_ms=10, prefill_ms=0, tokens=5)
    since_s = time.monotonic()
    prompts = [{"prompt": f"number {number}"} for number in range(30)]
    await asyncio.gather(*(engine.ask("/v1/completions", **prompt) for prompt in prompts))
    assert time.monotonic() - since_s >= 0.4
    state = await engine.state()
    assert (state["max_running"], state["completed"]) == (3, 30)
    assert state["max_open"] > 3, "the others were waiting, and are counted as open"


async def test_those_who_wait_are_served_in_order(start_engine: StartEngine) -> None:
    engine = await start_engine(slots=1, token_ms=1, prefill_ms=0, tokens=2000)
    first = await engine.start()
    await first.first_token()
    served: list[str] = []

    async def one(name: str) -> None:
        await engine.ask("/v1/completions", prompt=name, max_tokens=3)
        served.append(name)

    async with asyncio.TaskGroup() as group:
        for number, name in enumerate(("a", "b", "c", "d"), start=1):
            group.create_task(one(name))
            await wait_until(lambda: engine.room.queued == number, f"{name} waits")  # noqa: B023 - waited for here
        first.reset()
    assert served == ["a", "b", "c", "d"]


async def test_a_request_waits_for_pages_though_a_slot_is_free(start_engine: StartEngine) -> None:
    engine = await start_engine(slots=4, pages=4, page_tokens=16, token_ms=5, prefill_ms=0)
    big = await engine.start(max_tokens=50)
    await big.first_token()
    waiting = asyncio.create_task(engine.ask("/v1/completions", prompt="small", max_tokens=20))
    await wait_until(lambda: engine.room.queued == 1, "the second waits for pages")
    assert engine.room.running == 1
    big.reset()
    assert (await waiting)["usage"]["completion_tokens"] == 20


async def test_the_slot_is_free_before_the_client_reads_the_end(start_engine: StartEngine) -> None:
    """Who has read [DONE] and asks again must not find its own last request still open."""
    engine = await start_engine(slots=1, token_ms=0, prefill_ms=0, tokens=3)
    for _ in range(50):
        assert (await body_of(await engine.start())).endswith(b"data: [DONE]\n\n")
    state = await engine.state()
    assert (state["max_open"], state["completed"]) == (1, 50)


async def body_of(call: Call) -> bytes:
    try:
        assert await call.head(30) == 200
        return await call.rest(30)
    finally:
        call.close()


async def test_five_hundred_streams_run_at_once(start_engine: StartEngine) -> None:
    engine = await start_engine(slots=500, token_ms=40, prefill_ms=0, tokens=25)
    calls = [await engine.start(f"number {number}") for number in range(500)]
    bodies = await asyncio.gather(*(body_of(call) for call in calls))
    assert sum(body.count(b'"content":"') for body in bodies) == 500 * 25
    assert (await engine.state())["completed"] == 500
