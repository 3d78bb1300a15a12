"""The line on Redis 7, Redis 8 and Valkey 8: who waits is granted by whoever frees a place, and is told."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

import pytest

from services.permits.errors import Refused, Unavailable
from services.permits.gate import open_gate
from services.permits.keys import FleetKeys
from services.permits.model import Demand, Gone, Granted, LeaseTimes, Queued
from services.permits.replies import wake_ups
from services.permits.scripts import load
from tests.docker.conftest import FLEET, TIMES
from tests.lua.fleet import RawFleet
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from services.permits.gate import Gate
    from services.permits.model import FleetPolicy
    from services.permits.permit import Permit
    from services.permits.store import Store
    from tests.docker.conftest import Server

# The limit is for a first pull.
pytestmark = pytest.mark.timeout(300)

KEYS: Final = FleetKeys("tenure", FLEET)
G1: Final = "g1~a1"
G2: Final = "g2~b2"
END: Final = "end"
PATIENT_MS: Final = 900_000
ONE_PLACE: Final = {"total": 1, "line_max": 100, "line_max_per_tenant": 100}
# So long between ticks that whoever starts within a test's patience was started by a message.
SELDOM: Final = LeaseTimes(ttl_ms=360_000, tick_ms=60_000, provisional_ms=150_000, learning_ms=1_000)


def demand(tenant: str = "acme", *, patience_ms: int = PATIENT_MS) -> Demand:
    return Demand(fleet=FLEET, tenant=tenant, request_id="r", engines=("e1",), patience_ms=patience_ms)


def gone(lease: str, tenant: str = "acme") -> Gone:
    return Gone(lease=lease, tenant=tenant, engine="e1")


class Ears:
    """Hears what scripts publish to each of two gateways."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._subscription = client.pubsub()
        channels = (KEYS.wake(G1), KEYS.wake(G2))
        self._subscription.ssubscribe(*channels)
        for _ in channels:
            assert self._next()["type"] == "ssubscribe"

    def heard(self) -> list[str]:
        """Return `gateway lease class engine` of every grant that was published since the last look."""
        # Comes after all that was published before.
        self._client.spublish(KEYS.wake(G1), END)
        found: list[str] = []
        while True:
            message = self._next()
            if message["data"] == END:
                return found
            gateway = message["channel"].rpartition(":")[2]
            for lease, news in wake_ups(message["data"]):
                assert isinstance(news, Granted)
                found.append(f"{gateway} {lease} {news.class_} {news.engine}")

    def _next(self) -> Any:
        message = self._subscription.get_message(timeout=5)
        assert message is not None, "the server says nothing"
        return message

    def close(self) -> None:
        self._subscription.close()


@pytest.fixture
async def ears(server: Server, store: Store) -> AsyncIterator[Ears]:
    """A fleet of one place with a line, two gateways that live, and what they are told."""
    await store.set_limits(FLEET, ONE_PLACE, who="test")
    for holder in (G1, G2):
        await store.tick(FLEET, holder=holder, leases=[], news=frozenset())
    ears = Ears(server.client)
    yield ears
    ears.close()


async def test_a_release_grants_its_place_to_the_waiter_and_tells_its_gateway_alone(
    server: Server, store: Store, ears: Ears
) -> None:
    assert isinstance(await store.acquire(demand(), lease=f"{G1}~1", holder=G1), Granted)
    for lease, holder in ((f"{G2}~2", G2), (f"{G1}~3", G1)):
        assert isinstance(await store.acquire(demand(), lease=lease, holder=holder), Queued)
    assert [row.lease for row in await store.line(FLEET)] == [f"{G2}~2", f"{G1}~3"]
    assert ears.heard() == []

    assert await store.release(FLEET, [gone(f"{G1}~1")]) == 1
    assert ears.heard() == [f"{G2} {G2}~2 cold e1"]
    assert [row.lease for row in await store.inspect(FLEET)] == [f"{G2}~2"]
    # The same id again: its own grant, nothing new. And the tick says so to a gateway that heard nothing.
    assert isinstance(await store.acquire(demand(), lease=f"{G2}~2", holder=G2), Granted)
    ticked = await store.tick(FLEET, holder=G2, leases=[], news=frozenset(), waiters=[f"{G2}~2"])
    assert list(ticked.granted) == [f"{G2}~2"]

    assert await store.release(FLEET, [gone(f"{G2}~2"), gone(f"{G1}~3")]) == 1
    assert (await store.count(FLEET, ["acme"], ["e1"])).total == 0
    assert server.client.keys("tenure:*:line:*") == []


async def test_next_is_the_tenant_that_holds_least_for_its_weight_and_a_full_one_blocks_nobody(
    store: Store, ears: Ears
) -> None:
    await store.set_limits(FLEET, {"total": 4, "cold": 100, "weight:big": 3, "tenant:full": 1}, who="test")
    for number, tenant in enumerate(("big", "big", "small", "full")):
        answer = await store.acquire(demand(tenant), lease=f"{G1}~{number}", holder=G1)
        assert isinstance(answer, Granted)
    for number, tenant in enumerate(("full", "small", "small", "big", "big", "late")):
        answer = await store.acquire(demand(tenant), lease=f"{G2}~{tenant}{number}", holder=G2)
        assert isinstance(answer, Queued)

    told = []
    for total in range(5, 10):
        await store.set_limits(FLEET, {"total": total}, who="test")
        told += ears.heard()
    # late 0/1; big 2/3; then 3/3 against 1/1: who came first; big 3/3 against 2/1; small.
    order = ("late5", "big3", "small1", "big4", "small2")
    assert told == [f"{G2} {G2}~{waiter} cold e1" for waiter in order]
    await store.set_limits(FLEET, {"total": 10}, who="test")
    assert ears.heard() == []
    await store.set_limits(FLEET, {"tenant:full": 2}, who="test")
    assert ears.heard() == [f"{G2} {G2}~full0 cold e1"]


async def test_a_server_out_of_memory_still_hands_a_place_on(
    server: Server, store: Store, ears: Ears
) -> None:
    """Nobody new joins the line then, but those in it must not wait for the operator to make room."""
    await store.acquire(demand(), lease=f"{G1}~1", holder=G1)
    assert isinstance(await store.acquire(demand(), lease=f"{G2}~2", holder=G2), Queued)
    server.client.config_set("maxmemory", 1)
    with pytest.raises(Unavailable, match="maxmemory"):
        await store.acquire(demand(), lease=f"{G2}~3", holder=G2)
    assert await store.release(FLEET, [gone(f"{G1}~1")]) == 1
    assert ears.heard() == [f"{G2} {G2}~2 cold e1"]


async def test_the_waiter_of_a_gateway_that_died_is_passed_over_by_the_same_release(
    server: Server, store: Store, ears: Ears
) -> None:
    await store.acquire(demand(), lease=f"{G1}~1", holder=G1)
    for lease, holder in ((f"{G2}~2", G2), (f"{G1}~3", G1)):
        await store.acquire(demand(), lease=lease, holder=holder)
    # Two thirds of a ttl, twice; only one of the two gateways ticks between them.
    server.client.hincrby(KEYS.meta, "clock", TIMES.ttl_ms * 2 // 3)
    await store.tick(FLEET, holder=G1, leases=[], news=frozenset())
    server.client.hincrby(KEYS.meta, "clock", TIMES.ttl_ms * 2 // 3)
    await store.release(FLEET, [gone(f"{G1}~1")])
    assert ears.heard() == [f"{G1} {G1}~3 cold e1"]
    assert await store.line(FLEET) == []


# --- as gateways live it


@asynccontextmanager
async def replicas(
    server: Server, store: Store, policies: Mapping[str, FleetPolicy], *, times: LeaseTimes
) -> AsyncIterator[list[Gate]]:
    """Two gates on a fleet of one place, each of which hears what is published."""
    await store.set_limits(FLEET, ONE_PLACE, who="test")
    async with AsyncExitStack() as stack:
        gates = [
            await stack.enter_async_context(
                open_gate(redis_url=server.url, name=name, times=times, fleets=policies)
            )
            for name in ("g1", "g2")
        ]
        await wait_until(lambda: all(gate.ready()[0] for gate in gates), "both gates are ready")
        await wait_until(lambda: listeners(server, gates) == 2, "both hear what is published")
        yield gates


def listeners(server: Server, gates: list[Gate]) -> int:
    channels = [KEYS.wake(gate.holder) for gate in gates]
    return sum(count for _, count in server.client.pubsub_shardnumsub(*channels))


async def in_line(store: Store, count: int) -> None:
    async def so_many() -> bool:
        return len(await store.line(FLEET)) == count

    await wait_until(so_many, f"{count} in line")


async def started(task: asyncio.Task[Permit], within_s: float) -> Permit:
    return await asyncio.wait_for(asyncio.shield(task), within_s)


async def test_waiters_of_two_replicas_start_in_turn_by_messages_alone(
    server: Server, store: Store, policies: Mapping[str, FleetPolicy]
) -> None:
    """No tick falls into this test, so each of the twelve was started by what a release published."""
    async with replicas(server, store, policies, times=SELDOM) as gates:
        running = await gates[0].take(demand())
        waiters = []
        for number in range(12):
            waiters.append(asyncio.create_task(gates[number % 2].take(demand())))
            await in_line(store, number + 1)
        for number, waiter in enumerate(waiters):
            running.close()
            running = await started(waiter, 10)
            assert not any(later.done() for later in waiters[number + 1 :])
            assert (await store.count(FLEET)).total == 1
        running.close()
        await wait_until(lambda: server.client.zcard(KEYS.total) == 0, "the last place is given back")
    assert server.client.keys("tenure:*:line:*") == []


async def test_a_grant_of_which_nobody_heard_is_found_by_a_tick(
    server: Server, store: Store, policies: Mapping[str, FleetPolicy]
) -> None:
    server.client.script_load(load()["release"].text)
    async with replicas(server, store, policies, times=TIMES) as (g1, g2):
        running = await g1.take(demand())
        waiter = asyncio.create_task(g2.take(demand()))
        await in_line(store, 1)
        # In one transaction: nobody can have subscribed again in between.
        with server.client.pipeline() as together:
            together.client_kill_filter(_type="pubsub")
            RawFleet(together, times=TIMES, name=FLEET).release(running.id)
            together.pubsub_shardnumsub(KEYS.wake(g2.holder))
            _, released, ((_, listening),) = together.execute()
        assert (released[3], listening) == (1, 0)
        (await started(waiter, 10)).close()
        running.close()


async def test_one_who_leaves_the_line_or_loses_patience_leaves_nothing_behind(
    server: Server, store: Store, policies: Mapping[str, FleetPolicy]
) -> None:
    async with replicas(server, store, policies, times=SELDOM) as (g1, g2):
        running = await g1.take(demand())
        with pytest.raises(Refused) as refused:
            await g2.take(demand(patience_ms=200))
        assert refused.value.code == "queue_timeout"
        leaver = asyncio.create_task(g2.take(demand()))
        stayer = asyncio.create_task(g1.take(demand()))
        await in_line(store, 2)
        leaver.cancel()
        await in_line(store, 1)
        running.close()
        (await started(stayer, 10)).close()
        await wait_until(lambda: server.client.zcard(KEYS.total) == 0, "the last place is given back")
    assert server.client.keys("tenure:*:line:*") == []
