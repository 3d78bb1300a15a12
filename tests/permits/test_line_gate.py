"""The line as a process meets it: waiting, being woken, giving up, and what is left behind each time."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import pytest
import redis

from services.permits import Refused
from tests.lua.fleet import RawFleet
from tests.permits.line import LIMITS, PATIENT_MS, ask, gates, in_line, started, waiting
from tests.permits.scene import KEYS, TIMES, Heard, Seen, a_gate, a_store, begin, demand
from tests.support.redis_shim import RedisShim
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from services.permits import Permit
    from tests.support.redis_server import RedisServer

# --- being woken


async def test_a_waiter_on_another_replica_starts_when_the_place_is_free(redis_url: str, seen: Seen) -> None:
    async with gates(redis_url, 2) as (g1, g2):
        running = await g1.take(demand())
        task = ask(g2)
        await in_line(seen, 1)
        began_s = time.monotonic()
        running.close()
        permit = await started(task)
        assert time.monotonic() - began_s < 0.5, "by the message, not by the tick"
        assert (permit.engine, permit.class_) == ("e1", "cold")
        permit.close()


async def test_a_permit_that_was_waited_for_is_renewed_and_given_back_like_any(
    redis_url: str, seen: Seen
) -> None:
    async with gates(redis_url, 1) as (gate,):
        running = await gate.take(demand())
        task = ask(gate)
        await in_line(seen, 1)
        running.close()
        permit = await started(task)
        first = seen.client.zscore(KEYS.total, permit.id)
        await wait_until(
            lambda: seen.client.zscore(KEYS.total, permit.id) >= first + TIMES.tick_ms, "it is renewed"
        )
        permit.close()
        await wait_until(seen.nothing_left, "and given back")


async def test_waiters_start_in_the_order_in_which_they_came_whichever_replica_has_them(
    redis_url: str, seen: Seen
) -> None:
    async with gates(redis_url, 3) as replicas:
        running = await replicas[0].take(demand())
        tasks = []
        for n in range(12):
            tasks.append(ask(replicas[n % 3]))
            await in_line(seen, n + 1)
        for n, task in enumerate(tasks):
            running.close()
            running = await started(task)
            assert not any(later.done() for later in tasks[n + 1 :])
        running.close()


async def test_a_lost_wake_up_costs_one_tick(redis_url: str, redis_server: RedisServer, seen: Seen) -> None:
    """Nobody listens when the message is published: the subscriptions are gone at that moment."""
    async with gates(redis_url, 2) as (g1, g2):
        for _ in range(5):
            running = await g1.take(demand())
            task = ask(g2)
            await in_line(seen, 1)
            redis_server.cli("CLIENT", "KILL", "TYPE", "pubsub")
            began_s = time.monotonic()
            # Released by hand and at once: before anybody can have subscribed again.
            _release_now(redis_server, running)
            permit = await started(task, 2 * TIMES.tick_ms / 1000)
            waited_s = time.monotonic() - began_s
            assert waited_s <= TIMES.tick_ms / 1000 + 0.3
            print(f"started {waited_s:.2f} s after its place was free")  # noqa: T201
            running.close()
            permit.close()
            await wait_until(seen.nothing_left, "all places are back")


def _release_now(server: RedisServer, permit: Permit) -> None:
    """Run the release script without the gate's outbox."""
    with redis.Redis(unix_socket_path=str(server.socket_path), decode_responses=True) as client:
        fleet = RawFleet(client, times=TIMES)
        assert fleet.release(permit.id, tenant=permit.tenant, engine=permit.engine)[3] == 1


async def test_a_replica_that_never_hears_any_message_is_served_by_its_ticks(
    redis_url: str, redis_server: RedisServer, seen: Seen
) -> None:
    """Somebody forbade it to subscribe, say; the line still moves, a tick later each time."""
    redis_server.cli("ACL", "SETUSER", "deaf", "on", "nopass", "~*", "&*", "+@all")
    deaf_url = redis_url.replace("redis://", "redis://deaf:x@")
    try:
        await begin(redis_url, LIMITS)
        async with a_gate(redis_url, "g1", limits=LIMITS) as g1, a_gate(deaf_url, "g2", limits=LIMITS) as g2:
            redis_server.cli("ACL", "SETUSER", "deaf", "resetchannels")
            running = await g1.take(demand())
            task = ask(g2)
            await in_line(seen, 1)
            running.close()
            permit = await started(task, TIMES.tick_ms / 1000 + 0.5)
            permit.close()
    finally:
        redis_server.cli("ACL", "DELUSER", "deaf")


async def test_an_answer_that_was_lost_is_asked_for_again_and_keeps_the_place_in_line(
    redis_server: RedisServer, redis_url: str, seen: Seen
) -> None:
    with RedisShim(redis_server.port) as shim:
        async with gates(shim.url, 1) as (gate,):
            running = await gate.take(demand())
            fault = shim.drop_replies(lambda asked: str(PATIENT_MS).encode() in asked)
            task = ask(gate)
            await wait_until(lambda: fault.hits == 1, "the answer is lost")
            await in_line(seen, 1)
            running.close()
            permit = await started(task, 5)
            permit.close()
            await wait_until(seen.nothing_left, "nothing else was granted")


async def test_a_line_that_redis_lost_forms_again_and_loses_nobody(
    redis_url: str, redis_server: RedisServer, seen: Seen
) -> None:
    async with gates(redis_url, 2) as replicas:
        running = await replicas[0].take(demand())
        tasks = [ask(gate) for gate in replicas for _ in range(3)]
        await in_line(seen, 6)
        redis_server.cli("FLUSHALL")
        await in_line(seen, 6)  # after the learning window, through which they waited too
        permit = running
        for _ in range(6):
            permit.close()
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED, timeout=5)
            assert len(done) == 1
            (first,) = done
            tasks.remove(first)
            permit = first.result()
        permit.close()


# --- giving up


async def test_one_whose_patience_ends_is_refused_on_time_and_leaves_no_trace(
    redis_url: str, seen: Seen
) -> None:
    async with gates(redis_url, 1) as (gate,):
        running = await gate.take(demand())
        began_s = time.monotonic()
        with pytest.raises(Refused) as refused:
            await gate.take(demand(patience_ms=300))
        assert 0.29 <= time.monotonic() - began_s < 0.6
        assert (refused.value.code, refused.value.pool) == ("queue_timeout", "line")
        await in_line(seen, 0)
        assert seen.live() == {running.id}
        running.close()


async def test_one_without_patience_never_waits(redis_url: str, seen: Seen) -> None:
    async with gates(redis_url, 1) as (gate,):
        running = await gate.take(demand())
        with pytest.raises(Refused) as refused:
            await gate.take(demand())
        assert refused.value.code == "total_pool_full"
        assert waiting(seen) == 0
        running.close()


async def test_the_surplus_over_a_full_line_is_refused_with_figures(redis_url: str, seen: Seen) -> None:
    async with gates(redis_url, 1, line_max=5) as (gate,):
        running = await gate.take(demand())
        tasks = []
        for n in range(5):
            tasks.append(ask(gate))
            await in_line(seen, n + 1)
        with pytest.raises(Refused) as refused:
            await gate.take(demand(patience_ms=PATIENT_MS))
        no = refused.value
        assert (no.code, no.pool, no.in_use, no.limit, no.waiting) == ("line_full", "line", 5, 5, 5)
        for task in tasks:
            running.close()
            running = await started(task)
        running.close()


async def test_one_that_is_ended_from_afar_while_it_waits_is_told(redis_url: str, seen: Seen) -> None:
    async with gates(redis_url, 2) as (g1, g2):
        running = await g1.take(demand())
        task = asyncio.create_task(g2.take(demand(patience_ms=PATIENT_MS, tail="abc")))
        await in_line(seen, 1)
        began_s = time.monotonic()
        async with a_store(redis_url) as store:
            lease = await store.revoke("f", request_id="abc", tenant="acme", reason="user_stop", who="t")
        assert lease == f"{g2.holder}~abc"
        with pytest.raises(Refused, match="user_stop"):
            await task
        assert time.monotonic() - began_s < 1
        assert waiting(seen) == 0
        running.close()


async def test_a_gate_that_closes_takes_its_waiters_out_of_the_line(redis_url: str, seen: Seen) -> None:
    async with gates(redis_url, 1) as (g1,):
        running = await g1.take(demand())
        async with a_gate(redis_url, "g2", limits=LIMITS) as g2:
            tasks = [ask(g2) for _ in range(3)]
            await in_line(seen, 3)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        assert waiting(seen) == 0
        running.close()


async def test_what_a_listener_hears_says_who_waited(redis_url: str, seen: Seen) -> None:
    await begin(redis_url, LIMITS)
    heard = Heard()
    async with a_gate(redis_url, limits=LIMITS, listener=heard) as gate:
        running = await gate.take(demand())
        task = ask(gate)
        await in_line(seen, 1)
        with pytest.raises(Refused):
            await gate.take(demand(patience_ms=50))
        running.close()
        (await started(task)).close()
    assert heard.outcomes == {"granted": 1, "queued": 1, "queue_timeout": 1}
