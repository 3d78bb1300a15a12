"""The line over replicas: races between a grant and whoever leaves, fair shares, and those who died."""

from __future__ import annotations

import asyncio
import random
import time
from itertools import permutations
from typing import TYPE_CHECKING

import pytest

from services.permits.model import Held
from tests.permits.line import ask, gates, in_line, started
from tests.permits.scene import KEYS, TIMES, Seen, a_store, demand
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from services.permits import Permit


@pytest.mark.timeout(240)
async def test_three_hundred_times_release_and_cancel_race_and_the_next_starts_every_time(
    redis_url: str, seen: Seen
) -> None:
    """One place, three waiters on three replicas; the first leaves within 5 ms of its grant."""
    dice = random.Random(7)
    slowest_s = 0.0
    async with gates(redis_url, 3) as replicas:
        for number in range(300):
            running = await replicas[number % 3].take(demand())
            tasks = []
            for n in range(3):
                tasks.append(ask(replicas[(number + n) % 3]))
                await in_line(seen, n + 1)
            apart_s = dice.uniform(-0.005, 0.005)
            began_s = time.monotonic()
            if apart_s < 0:
                tasks[0].cancel()
                await asyncio.sleep(-apart_s)
                running.close()
            else:
                running.close()
                await asyncio.sleep(apart_s)
                tasks[0].cancel()
            await asyncio.gather(tasks[0], return_exceptions=True)
            if not tasks[0].cancelled():
                # The grant was there first: it is a permit like any other.
                tasks[0].result().close()
            second = await started(tasks[1])
            slowest_s = max(slowest_s, time.monotonic() - began_s)
            second.close()
            (await started(tasks[2])).close()
            await wait_until(seen.nothing_left, f"round {number}: all places are back")
    assert slowest_s < 1.0


async def test_thirty_leave_and_the_one_who_joined_last_starts(redis_url: str, seen: Seen) -> None:
    async with gates(redis_url, 3) as replicas:
        running = await replicas[0].take(demand())
        leaving = [ask(replicas[n % 3]) for n in range(30)]
        await in_line(seen, 30)
        for task in leaving:
            task.cancel()
        stays = ask(replicas[1], "other")
        await wait_until(lambda: len(seen.client.hkeys(KEYS.waiting)) >= 1, "it joined")
        running.close()
        permit = await started(stays)
        assert seen.client.hget(KEYS.meta, "grant") in {str(n) for n in range(2, 33)}
        permit.close()
        await asyncio.gather(*leaving, return_exceptions=True)


# --- fair, over replicas


async def _run_out(
    running: list[Permit], tasks: dict[str, list[asyncio.Task[Permit]]], grants: int
) -> dict[str, int]:
    """End the oldest permit again and again; return how many of each tenant were granted."""
    granted = dict.fromkeys(tasks, 0)
    for _ in range(grants):
        running.pop(0).close()
        everybody = [task for mine in tasks.values() for task in mine]
        done, _ = await asyncio.wait(everybody, return_when=asyncio.FIRST_COMPLETED, timeout=2)
        assert len(done) == 1
        (task,) = done
        for tenant, mine in tasks.items():
            if task in mine:
                mine.remove(task)
                granted[tenant] += 1
        running.append(task.result())
    return granted


@pytest.mark.timeout(120)
async def test_weights_hold_over_three_replicas_with_all_of_one_tenants_traffic_on_one(
    redis_url: str, seen: Seen
) -> None:
    """400 grants; A has three times B's weight, joined later, and never leaves its one replica."""
    async with gates(redis_url, 3, total=8, **{"weight:a": 3}) as replicas:
        running = [await replicas[n % 3].take(demand("b")) for n in range(8)]
        tasks: dict[str, list[asyncio.Task[Permit]]] = {"a": [], "b": []}
        for n in range(120):
            tasks["b"].append(ask(replicas[n % 3], "b"))
        for _ in range(320):
            tasks["a"].append(ask(replicas[0], "a"))
        await in_line(seen, 440)
        granted = await _run_out(running, tasks, 400)
        assert abs(granted["a"] / 400 - 0.75) <= 0.05, granted
        for task in (*tasks["a"], *tasks["b"]):
            task.cancel()
        await asyncio.gather(*tasks["a"], *tasks["b"], return_exceptions=True)
        for permit in running:
            permit.close()


async def test_a_late_tenant_starts_within_the_next_two_releases(redis_url: str, seen: Seen) -> None:
    """A has 4 running and 36 in line; B asks for one. Until then A used everything."""
    async with gates(redis_url, 2, total=4) as (g1, g2):
        running = [await g1.take(demand("a")) for _ in range(4)]
        backlog = [ask(g1, "a") for _ in range(36)]
        await in_line(seen, 36)
        tasks = {"a": backlog, "b": []}
        assert await _run_out(running, tasks, 8) == {"a": 8, "b": 0}
        assert len(seen.live()) == 4
        tasks["b"] = [ask(g2, "b")]
        await in_line(seen, 29)
        assert (await _run_out(running, tasks, 2))["b"] == 1
        for task in backlog:
            task.cancel()
        await asyncio.gather(*backlog, return_exceptions=True)
        for permit in running:
            permit.close()


# --- those who died


async def test_a_place_of_a_dead_gateways_lease_goes_to_a_waiter_on_another_replica(
    redis_url: str, seen: Seen
) -> None:
    """No reaper runs here: the living replica's own tick finds it, a tick after the ttl at the latest."""
    async with gates(redis_url, 1) as (gate,):
        # A lease of a process that no longer ticks, as renewed by its very last tick.
        dead = await _lease_of_a_dead_process(redis_url)
        task = ask(gate)
        await in_line(seen, 1)
        began_s = time.monotonic()
        permit = await started(task, (TIMES.ttl_ms + TIMES.tick_ms) / 1000 + 0.5)
        assert time.monotonic() - began_s > 1.0
        assert dead not in seen.live()
        permit.close()


async def _lease_of_a_dead_process(url: str) -> str:
    async with a_store(url) as store:
        lease = "dead~d1~1"
        await store.acquire(demand(), lease=lease, holder="dead~d1")
        held = Held(lease, "r", "acme", "cold", "e1", "decode", 1, cold=True)
        await store.tick("f", holder="dead~d1", leases=[held], news=frozenset())
        return lease


# --- several places at once


@pytest.mark.parametrize("order", list(permutations(("total", "cold", "tenant:acme"))))
async def test_one_that_needs_three_places_starts_with_the_last_of_them(
    redis_url: str, seen: Seen, order: tuple[str, ...]
) -> None:
    """Total, cold and tenant, made free one by one in all six orders."""
    async with gates(redis_url, 2, **dict.fromkeys(order, 1)) as (g1, g2), a_store(redis_url) as store:
        running = await g1.take(demand())
        task = ask(g2)
        await in_line(seen, 1)
        for pool in order:
            assert not task.done()
            began_s = time.monotonic()
            await store.set_limits("f", {pool: 2}, who="test")
        permit = await started(task)
        assert time.monotonic() - began_s < 1.0
        running.close()
        permit.close()
