"""What a request needed is free the moment it has ended, without the garbage collector."""

from __future__ import annotations

import gc
from typing import Any

import pytest
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from services.gateway.trip import Trip
from services.permits.permit import Permit
from tests.support.answers import Stream, failure
from tests.support.reply import Script
from tests.support.scripted_engine import ScriptedEngine
from tests.support.waiting import wait_until


def kept() -> list[object]:
    return [one for one in gc.get_objects() if isinstance(one, Trip | Permit | RequestResponseCycle)]


@pytest.mark.parametrize("answer", [Stream(tokens=2), failure(500), Stream(hold_after=1)])
async def test_nothing_of_a_request_is_left_to_the_garbage_collector(
    gateway: Any, engine: ScriptedEngine, answer: Script
) -> None:
    """A ring of objects per request keeps the memory of thousands, and costs a collection of all of it."""
    engine.answer = answer
    gc.collect()
    # What a failure of another test may still point to is not of these requests.
    before = kept()
    gc.disable()
    try:
        for number in range(1, 6):
            with await gateway.call() as call:
                await call.head()
                if isinstance(answer, Stream) and answer.hold_after:
                    call.reset()
                else:
                    await call.rest()
                await gateway.record(number)
        await gateway.is_idle()
        await wait_until(lambda: len(kept()) == len(before), "nothing is kept of them")
    finally:
        gc.enable()
