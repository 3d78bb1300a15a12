"""Releases leave the process at once, and share a call when many end together."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
import uvloop

from services.permits import flusher
from tests.permits.scene import KEYS, Heard, a_gate, demand
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from tests.permits.scene import Seen
    from tests.support.redis_shim import RedisShim

MANY = {"total": 200, "cold": 200, "tenant_default": 200}


async def test_a_release_that_comes_alone_waits_for_no_other(
    url: str, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flusher, "GATHER_S", 60.0)
    async with a_gate(url) as gate:
        async with gate.hold(demand()):
            assert len(seen.live()) == 1
        await wait_until(lambda: not seen.live(), "the first one went at once")
        async with gate.hold(demand()) as second:
            pass
        await asyncio.sleep(0.1)  # far longer than a call takes
        assert seen.live() == {second.id}, "the next one waits for others"
    assert seen.nothing_left(), "until the gate closes"


async def test_releases_that_end_together_share_calls(url: str, seen: Seen) -> None:
    heard = Heard()
    seen.client.hset(KEYS.limits, mapping=MANY)
    async with a_gate(url, listener=heard) as gate:
        permits = await asyncio.gather(*(gate.take(demand()) for _ in range(100)))
        for permit in permits:
            permit.close()
            await asyncio.sleep(0)
        await wait_until(lambda: not seen.live(), "all went back")
        assert heard.scripts["release"] <= 20
        assert {permit.state for permit in permits} == {"released"}


def test_what_ends_just_before_the_gate_closes_is_left_to_the_ticker(shim: RedisShim, seen: Seen) -> None:
    """The flusher's connection is closed soon. On the gateway's loop, whose turns have their own order."""

    async def close_while_a_call_is_under_way() -> list[object]:
        async with a_gate(shim.url) as gate:
            first, second = [await gate.take(demand()) for _ in range(2)]
            shim.delay(60)
            first.close()
            await asyncio.sleep(0.02)  # its call is on its way
            second.close()
            await gate.last_answers()
            return [flusher._flushing for flusher in gate._flushers]  # noqa: SLF001

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(close_while_a_call_is_under_way()) == [None]
    assert seen.nothing_left()
