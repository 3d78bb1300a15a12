"""Leases are renewed as long as their work is read, by a thread that nothing in the event loop can starve."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import pytest

from services.permits import LeaseTimes, Permit, Refused
from services.permits.clock import monotonic
from services.permits.scripts import load
from tests.permits.scene import KEYS, LIMITS, TIMES, Heard, a_gate, a_store, demand, granted_of
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from services.permits import Gate
    from tests.permits.scene import Seen
    from tests.support.redis_server import RedisServer
    from tests.support.redis_shim import RedisShim


async def test_a_blocked_event_loop_delays_no_renewal(url: str, seen: Seen) -> None:
    """Blocked for 5 s with a ttl of 3 s: the lease lives on, and no tick is later than half a ttl."""
    heard = Heard()
    async with a_gate(url, listener=heard) as gate, gate.hold(demand()) as permit:
        ticks = len(heard.ticks)
        time.sleep(5)
        assert seen.live() == {permit.id}
        assert len(heard.ticks) - ticks >= 5
        assert max(heard.ticks) < TIMES.ttl_ms / 2000
        assert permit.deadline_s > monotonic()
        assert not heard.causes
        print(f"{len(heard.ticks) - ticks} ticks meanwhile, the latest {max(heard.ticks):.2f} s late")  # noqa: T201
    await wait_until(seen.nothing_left, "the permit went back")


async def test_ticks_come_in_their_time_with_jitter(url: str) -> None:
    heard = Heard()
    async with a_gate(url, listener=heard):
        await wait_until(lambda: len(heard.ticks) >= 4, "four ticks")
    assert heard.scripts["tick"] == len(heard.ticks)
    assert min(heard.ticks) >= 0


async def test_a_tick_that_an_outage_held_up_is_late_by_all_of_it(shim: RedisShim) -> None:
    """Also when somebody asked for it sooner: an operator must see for how long nothing was renewed."""
    heard = Heard()
    async with a_gate(shim.url, listener=heard) as gate:
        await wait_until(lambda: len(heard.ticks) > 1, "it ticks")
        shim.refuse()
        began_s = time.monotonic()
        await wait_until(lambda: False in heard.up, "the outage is noticed")
        await asyncio.sleep(2 * TIMES.tick_ms / 1000)
        shim.healthy()
        away_s = time.monotonic() - began_s
        await wait_until(lambda: gate.ready()[0], "it is over")
        await wait_until(lambda: max(heard.ticks) > away_s - TIMES.tick_ms / 1000, "the tick says so")


async def test_a_stream_that_is_not_read_loses_its_lease_in_a_healthy_process(url: str, seen: Seen) -> None:
    """The progress rule: renewed while it is read."""
    async with a_gate(url) as gate:
        hung, read = await gate.take(demand()), await gate.take(demand())
        await wait_until(lambda: read.deadline_s > monotonic() + 2.2, "both were renewed")
        hung.renewed_until_s = monotonic()
        seen.advance(TIMES.ttl_ms - 600)
        await wait_until(lambda: seen.live() == {read.id}, "the hung stream's lease ran out", 4)
        # It is read again: the work runs, so it must be counted again.
        hung.renewed_until_s = float("inf")
        await wait_until(lambda: seen.live() == {read.id, hung.id}, "it is counted again")
        hung.close()
        read.close()
    assert seen.nothing_left()


async def test_phases_reach_redis_with_the_next_tick(url: str) -> None:
    async with a_gate(url) as gate, a_store(url) as store, gate.hold(demand()) as permit:
        for phase in ("prefill", "decode", "draining"):
            permit.phase = phase

            async def shown(phase: str = phase) -> bool:
                return [row.phase for row in await store.inspect("f")] == [phase]

            await wait_until(shown, f"phase {phase} is shown")


async def test_a_phase_is_told_until_redis_has_heard_of_it_and_then_no_more(
    url: str, shim: RedisShim
) -> None:
    heard, tick, told = Heard(), load()["tick"].sha.encode(), list[bytes]()

    def tells(request: bytes) -> bool:
        """Whether the phase is one of a tick's arguments: news; elsewhere it is among the facts."""
        news = tick in request and b"$6\r\ndecode\r\n" in request
        told.extend([request] * news)
        return news

    async with a_gate(shim.url, listener=heard) as gate, a_store(url) as store, gate.hold(demand()) as permit:
        lost = shim.fail(tells)
        permit.phase = "decode"

        async def shown() -> bool:
            return [row.phase for row in await store.inspect("f")] == ["decode"]

        await wait_until(shown, "the phase is shown")
        assert lost.hits == 1
        shim.fail(tells, count=99)
        ticks = len(heard.ticks)
        await wait_until(lambda: len(heard.ticks) >= ticks + 2, "two more ticks")
        assert len(told) == 1


async def test_more_than_five_hundred_leases_are_renewed_in_several_calls(url: str, seen: Seen) -> None:
    heard = Heard()
    limits = {"total": 1200, "cold": 1200, "tenant_default": 1200}
    async with a_store(url) as store:
        await store.set_limits("f", limits, who="test")
    async with a_gate(url, listener=heard, limits=limits) as gate:
        permits = await asyncio.gather(*(gate.take(demand()) for _ in range(1100)))
        calls, ticks = heard.scripts["tick"], len(heard.ticks)
        await wait_until(lambda: len(heard.ticks) >= ticks + 3, "three ticks")
        assert heard.scripts["tick"] - calls >= 3 * (len(heard.ticks) - ticks) - 3
        seen.advance(TIMES.provisional_ms)
        assert len(seen.live()) == 1100
        for permit in permits:
            permit.close()
        await wait_until(seen.nothing_left, "all went back")


async def test_a_gate_that_stops_is_no_longer_counted(url: str, seen: Seen) -> None:
    async with a_gate(url) as gate:
        assert seen.client.zrange(KEYS.gateways, 0, -1) == [gate.holder]
    assert seen.client.zrange(KEYS.gateways, 0, -1) == []


async def test_readiness_and_the_view_say_what_the_tick_said(url: str, seen: Seen) -> None:
    async with a_gate(url) as gate:
        assert gate.ready() == (True, "ready")
        view = gate.view("f")
        assert view is not None
        assert (view.epoch, view.gateways, view.limits) == (seen.client.hget(KEYS.meta, "epoch"), 1, LIMITS)
        assert gate.view("unknown") is None
        counts = await gate.count("f", ["acme"], ["e1"])
        assert (counts.total, counts.gateways, counts.limits["total"]) == (0, 1, 4)


# --- data loss


async def test_after_a_flush_nothing_is_granted_before_all_that_runs_is_counted(url: str, seen: Seen) -> None:
    """FLUSHALL with every place taken: counts, limits and the rest are back within one tick."""
    heard = Heard()
    async with a_store(url) as store:
        # An admin changed it: what the gateway saw must come back, not what its file says.
        await store.set_limits("f", {"total": 3, "tenant:acme": 3}, who="ann")
    async with a_gate(url, listener=heard) as gate:
        permits = [await gate.take(demand()) for _ in range(3)]
        seen.client.flushall()
        began_s = monotonic()
        grants: list[Permit] = []
        refusals: list[Refused] = []
        while seen.live() != {permit.id for permit in permits}:
            try:
                grants.append(await gate.take(demand()))
            except Refused as refused:
                refusals.append(refused)
            await asyncio.sleep(0.002)
        assert monotonic() - began_s < TIMES.tick_ms / 1000
        assert grants == []
        assert {refused.code for refused in refusals} <= {"recovering"}
        assert all(0 < refused.wait_ms <= TIMES.learning_ms for refused in refusals)
        await wait_until(lambda: _knows_the_epoch(gate, seen) and gate.ready()[0], "the window ended")
        assert seen.limits() == {"total": "3", "cold": "4", "tenant_default": "4", "tenant:acme": "3"}
        assert heard.causes == {"lost_epoch": 3}
        assert await granted_of(gate, 2) == 0
        permits.pop().close()
        await wait_until(lambda: len(seen.live()) == 2, "one place is free")
        assert await granted_of(gate, 2) == 1
        for permit in permits:
            permit.close()
    assert seen.nothing_left()


async def test_a_restarted_empty_redis_is_told_what_runs(
    redis_server: RedisServer, url: str, seen: Seen
) -> None:
    async with a_gate(url) as gate, gate.hold(demand()) as permit:
        await asyncio.to_thread(redis_server.restart)
        await wait_until(lambda: seen.live() == {permit.id}, "the lease is back")
        await wait_until(lambda: _knows_the_epoch(gate, seen) and gate.ready()[0], "ready again")
        assert await granted_of(gate, 5) == 3
    assert seen.nothing_left()


def _knows_the_epoch(gate: Gate, seen: Seen) -> bool:
    view = gate.view("f")
    return view is not None and view.epoch == seen.client.hget(KEYS.meta, "epoch")


async def test_limits_that_were_deleted_come_back_from_memory(url: str, seen: Seen) -> None:
    async with a_store(url) as store:
        await store.set_limits("f", {"total": 2}, who="ann")
    async with a_gate(url) as gate:
        seen.client.delete(KEYS.limits)
        await wait_until(lambda: seen.limits().get("total") == "2", "the limits are back")
        assert await granted_of(gate, 3) == 2


async def test_a_restart_with_an_older_file_does_not_bring_an_old_limit_back(url: str, seen: Seen) -> None:
    async with a_store(url) as store:
        await store.set_limits("f", {"total": 6, "tenant:acme": 6}, who="ann")
    async with a_gate(url, limits={**LIMITS, "tenant:acme": 3}):
        assert (seen.limits()["total"], seen.limits()["tenant:acme"]) == ("6", "6")


async def test_a_redis_that_fell_back_to_an_older_state_is_told_at_once(url: str, seen: Seen) -> None:
    """A failover to a lagging replica: its grant number is lower than one that was seen."""
    slow = LeaseTimes(ttl_ms=60_000, tick_ms=10_000, provisional_ms=21_000, learning_ms=10_000)
    heard = Heard()
    async with a_gate(url, times=slow, listener=heard) as gate:
        permits = [await gate.take(demand()) for _ in range(3)]
        gate._ticker.tick_soon("f")  # noqa: SLF001  (or wait ten seconds for it)
        await wait_until(lambda: (view := gate.view("f")) and view.grant == 3, "the tick saw three grants")
        lost = permits[2].id
        for key in (KEYS.total, KEYS.cold, KEYS.pool("tenant:acme"), KEYS.pool("engine:e1")):
            seen.client.zrem(key, lost)
        seen.client.delete(KEYS.lease(lost))
        seen.client.hset(KEYS.meta, "grant", 1)
        permits.append(await gate.take(demand()))
        await wait_until(lambda: lost in seen.live(), "the lost lease was asserted again", 2)
        await wait_until(lambda: heard.causes == {"lost_write": 1}, "and the reason was told")
        for permit in permits:
            permit.close()


@pytest.mark.parametrize(
    "key", [KEYS.total, KEYS.cold, KEYS.pool("tenant:acme"), KEYS.pool("engine:e1"), KEYS.meta, KEYS.gateways]
)
async def test_any_key_that_is_deleted_is_true_again_within_a_tick(url: str, seen: Seen, key: str) -> None:
    async with a_gate(url) as gate, gate.hold(demand()) as permit:
        whole = seen.places()
        seen.client.delete(key)
        await wait_until(lambda: seen.places() == whole and seen.client.exists(key), "all is there again", 2)
        assert seen.live() == {permit.id}


# --- lost leases


async def test_stop_ends_a_stream_by_its_deadline_and_nothing_of_it_comes_back(
    shim: RedisShim, seen: Seen
) -> None:
    heard = Heard()
    async with a_gate(shim.url, lost_lease="stop", listener=heard) as gate:
        permit = await gate.take(demand())
        lost: list[tuple[str, float]] = []

        def end(cause: str) -> None:
            lost.append((cause, monotonic()))
            permit.close()

        permit.on_cut = end
        await wait_until(lambda: permit.deadline_s > monotonic() + 2.2, "it was renewed")
        shim.blackhole()
        await wait_until(lambda: lost, "the holder was told", 6)
        cause, at_s = lost[0]
        assert cause == "lease_lost"
        # At the last look before it; how soon the loop hears of that is the machine's business.
        assert -TIMES.tick_ms / 4000 <= at_s - permit.deadline_s < TIMES.tick_ms / 1000
        assert gate.live() == 0
        # Meanwhile its place ran out and somebody else may have it.
        seen.advance(TIMES.ttl_ms)
        shim.healthy()
        await wait_until(lambda: permit.state == "released" and seen.nothing_left(), "nothing of it is left")
        ticks = len(heard.ticks)
        await wait_until(lambda: len(heard.ticks) > ticks + 2, "more ticks")
        assert seen.nothing_left()
        assert len(lost) == 1


async def test_a_lost_lease_whose_owner_has_not_closed_is_not_renewed(shim: RedisShim, seen: Seen) -> None:
    async with a_gate(shim.url, lost_lease="stop") as gate:
        permit = await gate.take(demand())
        permit.renewed_until_s = 0
        await wait_until(lambda: permit.state == "lost", "its deadline passed", 6)
        seen.advance(TIMES.ttl_ms)
        await wait_until(seen.nothing_left, "its lease ran out")
        permit.close()
        await wait_until(lambda: permit.state == "released", "closing it is no error")


async def test_run_on_is_counted_as_over_commit_and_shuts_admission_until_it_drained(
    shim: RedisShim, url: str, seen: Seen
) -> None:
    heard = Heard()
    async with a_store(url) as store:
        await store.set_limits("f", {"total": 1}, who="test")
    async with a_gate(shim.url, listener=heard) as cut_off, a_gate(url, "g2") as other:
        late = await cut_off.take(demand())
        shim.blackhole()
        seen.advance(TIMES.ttl_ms + TIMES.tick_ms)
        heir = await other.take(demand())
        await wait_until(lambda: monotonic() > late.deadline_s, "it could not renew for one ttl", 6)
        assert late.state == "held"
        shim.healthy()
        await wait_until(lambda: seen.live() == {late.id, heir.id}, "both are counted", 4)
        await wait_until(lambda: heard.causes == {"reaped_late": 1}, "and the reason was told")
        assert (await other.count("f")).over_commit == 1
        assert await granted_of(other, 1) == 0
        heir.close()
        await wait_until(lambda: seen.live() == {late.id}, "one went back")
        assert await granted_of(other, 1) == 0
        late.close()
        await wait_until(seen.nothing_left, "both went back")
        assert await granted_of(other, 2) == 1


# --- memory


async def test_at_maxmemory_reports_of_engines_stop_neither_renewals_nor_releases(
    spare_redis: Callable[..., RedisServer],
) -> None:
    """Evidence is only advice: it may be lost, and must not stand in the way of the rest."""
    server = spare_redis("--maxmemory-policy", "noeviction")
    heard = Heard()
    async with a_gate(server.url, listener=heard) as gate:
        await wait_until(lambda: gate.ready()[0], "the learning window ended")
        first, second = await gate.take(demand()), await gate.take(demand())
        server.cli("CONFIG", "SET", "maxmemory", "1")
        for n in range(20):
            gate.witness(first, {f"p{n}": True})
        second.close()
        await wait_until(lambda: second.state == "released", "the release went through")
        ticks = len(heard.ticks)
        await wait_until(lambda: len(heard.ticks) >= ticks + 2, "ticks go on", 3)
        first.close()
        await wait_until(lambda: first.state == "released", "the release went through")
        assert all(heard.up[-3:]), "nobody took Redis for away"
