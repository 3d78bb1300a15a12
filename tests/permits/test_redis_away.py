"""Redis refused or swallowed: quick answers, never more than the share, and back to normal by itself."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import pytest

from services.permits import Permit, Refused
from tests.permits.scene import Heard, a_gate, a_store, begin, demand, granted_of
from tests.support.redis_shim import RedisShim
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from services.permits import Gate
    from tests.permits.scene import Seen
    from tests.support.redis_server import RedisServer

# No caller waits longer for an answer, whatever Redis does.
ANSWER_S = 1.5

ways_to_be_away = pytest.mark.parametrize(
    "away", [RedisShim.refuse, RedisShim.blackhole], ids=["refused", "blackholed"]
)


async def answer(gate: Gate, **what: Any) -> tuple[Permit | Refused, float]:
    began_s = time.monotonic()
    try:
        permit: Permit | Refused = await gate.take(demand(**what))
    except Refused as refused:
        permit = refused
    return permit, time.monotonic() - began_s


@ways_to_be_away
async def test_closed_refuses_every_new_request_quickly_and_keeps_what_runs(
    shim: RedisShim, seen: Seen, away: Callable[[RedisShim], None]
) -> None:
    async with a_gate(shim.url, redis_loss="closed") as gate, gate.hold(demand()) as running:
        away(shim)
        answers = await asyncio.gather(*(answer(gate) for _ in range(30)))
        answers += [await answer(gate) for _ in range(10)]
        assert {getattr(refused, "code", "granted") for refused, _ in answers} == {"admission_unavailable"}
        assert max(seconds for _, seconds in answers) < ANSWER_S
        assert running.state == "held"
        assert gate.ready() == (False, "redis unavailable")
        shim.healthy()
        began_s = time.monotonic()
        await wait_until(lambda: gate.ready()[0], "the gate is ready again")
        assert time.monotonic() - began_s < 3
        assert await granted_of(gate, 5) == 3
    assert seen.nothing_left()


@ways_to_be_away
async def test_share_admits_this_gateways_part_of_every_pool_and_no_more(
    shim: RedisShim, url: str, seen: Seen, away: Callable[[RedisShim], None]
) -> None:
    """Two gateways, nine places: four for each while neither can ask; what already runs is included."""
    async with a_store(url) as store:
        await store.set_limits("f", {"total": 9, "cold": 9, "tenant_default": 9, "tenant:few": 3}, who="test")
    async with a_gate(url, "g2"), a_gate(shim.url) as gate, gate.hold(demand()) as running:
        await wait_until(lambda: _gateways(gate) == 2, "each knows of the other")
        away(shim)
        answers = await asyncio.gather(*(answer(gate, tenant="few") for _ in range(3)))
        answers += await asyncio.gather(*(answer(gate) for _ in range(6)))
        assert max(seconds for _, seconds in answers) < ANSWER_S
        permits = [permit for permit, _ in answers if isinstance(permit, Permit)]
        refused = [refused for refused, _ in answers if isinstance(refused, Refused)]
        assert sorted(permit.tenant for permit in permits) == ["acme", "acme", "few"]
        assert {(each.code, each.pool, each.limit) for each in refused} == {
            ("tenant_quota", "tenant:few", 1),
            ("total_pool_full", "total", 4),
        }
        assert {permit.class_ for permit in permits} == {"cold"}
        shim.healthy()
        await wait_until(lambda: len(seen.live()) == 4, "all that runs is counted")
        assert seen.live() == {running.id, *(permit.id for permit in permits)}
        for permit in permits:
            permit.close()
    assert seen.nothing_left()


async def _until_live(seen: Seen, count: int) -> None:
    await wait_until(lambda: len(seen.live()) == count, f"{count} are live")


def _gateways(gate: Gate) -> int:
    view = gate.view("f")
    return view.gateways if view else 0


async def test_shares_beside_one_that_holds_everything_exceed_by_themselves_and_by_no_more(
    redis_server: RedisServer, url: str, seen: Seen
) -> None:
    """The bound of an outage: who held more than its share keeps it, and each of the others has its own."""
    async with a_gate(url, "g1") as first, a_gate(url, "g2") as second:
        await wait_until(lambda: _gateways(first) == _gateways(second) == 2, "each knows of the other")
        held = [await first.take(demand()) for _ in range(4)]
        redis_server.pause()
        answers = await asyncio.gather(*(answer(second) for _ in range(6)), answer(first))
        permits = [permit for permit, _ in answers if isinstance(permit, Permit)]
        assert len(permits) == 2
        redis_server.resume()
        await wait_until(lambda: len(seen.live()) == 6, "all that runs is counted")
        # Admission stays shut until the excess has drained, one by one.
        for left in (5, 4):
            assert isinstance((await answer(second))[0], Refused)
            held.pop().close()
            await _until_live(seen, left)
        assert isinstance((await answer(second))[0], Refused)
        held.pop().close()
        await _until_live(seen, 3)
        permits.append(await second.take(demand()))
        for permit in (*held, *permits):
            permit.close()
    assert seen.nothing_left()


async def test_what_was_admitted_by_share_ends_while_redis_is_still_away(shim: RedisShim, seen: Seen) -> None:
    async with a_gate(shim.url) as gate:
        shim.refuse()
        for _ in range(10):
            permit, _seconds = await answer(gate)
            assert isinstance(permit, Permit)
            permit.close()
        assert gate.live() == 0
        shim.healthy()
        await wait_until(lambda: gate.ready()[0], "the gate is ready again")
    assert seen.nothing_left()


async def test_a_burst_at_the_moment_redis_vanishes_is_answered_in_time(shim: RedisShim, seen: Seen) -> None:
    """Nobody knows yet that Redis is away, and everybody asks: no queue of time-outs may build up."""
    async with a_gate(shim.url, redis_loss="closed") as gate:
        shim.blackhole()
        answers = await asyncio.gather(*(answer(gate) for _ in range(200)))
        assert {getattr(refused, "code", "granted") for refused, _ in answers} == {"admission_unavailable"}
        assert max(seconds for _, seconds in answers) < ANSWER_S
        shim.healthy()
        await wait_until(lambda: gate.ready()[0], "the gate is ready again")
        assert await granted_of(gate, 5) == 4


async def test_a_redis_that_is_away_at_the_start_is_waited_for(
    redis_server: RedisServer, redis_url: str, seen: Seen
) -> None:
    """A gateway may start before its Redis; it refuses until it was told what runs."""
    await begin(redis_url)
    with RedisShim(redis_server.port) as shim:
        shim.refuse()
        async with a_gate(shim.url) as gate:
            refused, seconds = await answer(gate)
            assert isinstance(refused, Refused)
            assert (refused.code, seconds < ANSWER_S) == ("admission_unavailable", True)
            shim.healthy()
            await wait_until(lambda: gate.ready()[0], "the gate is ready")
            assert await granted_of(gate, 5) == 4


async def test_opening_a_gate_may_be_cancelled_and_leaves_no_thread(
    redis_server: RedisServer, redis_url: str
) -> None:
    import threading  # noqa: PLC0415

    before = set(threading.enumerate())
    with RedisShim(redis_server.port) as shim:
        shim.blackhole()

        async def open_it() -> None:
            async with a_gate(shim.url):
                pass

        task = asyncio.create_task(open_it())
        await wait_until(lambda: shim.accepted, "the ticker tries")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        names = [t.name for t in set(threading.enumerate()) - before if t.name == "tenure-ticker"]
        assert names == []


async def test_a_short_break_costs_nobody_an_answer(shim: RedisShim) -> None:
    heard = Heard()
    async with a_gate(shim.url, listener=heard, redis_loss="closed") as gate:
        for _ in range(20):
            shim.reset()
            async with gate.hold(demand()):
                pass
        assert heard.outcomes == {"granted": 20}


async def test_the_patience_for_a_break_begins_with_that_break(shim: RedisShim, seen: Seen) -> None:
    """An earlier outage that no request saw must not use up what the next request may wait."""
    async with a_gate(shim.url, redis_loss="closed") as gate:
        for _ in range(2):
            shim.refuse()
            await wait_until(lambda: not gate.ready()[0], "the gate noticed")
            asking = asyncio.create_task(gate.take(demand()))
            await asyncio.sleep(0)
            shim.healthy()
            (await asking).close()
            shim.refuse()
            await wait_until(lambda: not gate.ready()[0], "the gate noticed")
            shim.healthy()
            await wait_until(lambda: gate.ready()[0], "the gate is ready again")
    assert seen.nothing_left()
