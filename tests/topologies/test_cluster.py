"""Fleets spread over the shards of a Redis Cluster: each is served by its own, and suffers with it alone."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

import pytest
from structlog.testing import capture_logs

from services.permits import Demand, FleetPolicy, Refused, open_gate
from services.permits.admin import Admin
from services.permits.connect import connect
from services.permits.probe import commands, probe
from services.permits.store import Store
from services.reaper.survey import Survey
from tests.permits.scene import TIMES
from tests.support.cluster import SHARDS, Cluster
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, MutableMapping

    from services.permits import Gate, Permit

pytestmark = pytest.mark.timeout(240)

LIMITS: Final = {"total": 4, "cold": 4, "tenant_default": 4, "line_max": 10, "line_max_per_tenant": 10}
PROMOTION_S: Final = 60


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster() as started:
        yield started


@pytest.fixture
def replicated() -> Iterator[Cluster]:
    """Each shard has a replica that takes over."""
    with Cluster(replicas=1) as started:
        yield started


def fleets_of(cluster: Cluster) -> list[str]:
    """Return one fleet per shard."""
    return [cluster.fleet_on(shard) for shard in range(SHARDS)]


@asynccontextmanager
async def a_store(cluster: Cluster) -> AsyncIterator[Store]:
    client = connect(cluster.url)
    try:
        yield Store(client, times=TIMES)
    finally:
        await client.aclose()


@asynccontextmanager
async def a_gate(cluster: Cluster, name: str = "g1", **policy: Any) -> AsyncIterator[Gate]:
    """Open a gate on one fleet per shard, none of which is learning."""
    fleets = fleets_of(cluster)
    async with a_store(cluster) as store:
        for fleet in fleets:
            await store.set_limits(fleet, LIMITS, seed=True, who="test", learning_ms=0)
    policies = {fleet: FleetPolicy(limits=LIMITS, **policy) for fleet in fleets}
    async with open_gate(redis_url=cluster.url, name=name, fleets=policies, times=TIMES) as gate:
        await wait_until(lambda: gate.ready() == (True, "ready"), "every fleet has ticked", 20)
        yield gate


def demand(fleet: str, number: int, **more: Any) -> Demand:
    return Demand(fleet=fleet, tenant="acme", request_id=f"r{number}", engines=("e1",), **more)


async def admitted(gate: Gate, fleet: str) -> bool:
    try:
        async with gate.hold(demand(fleet, 99)):
            return True
    except Refused:
        return False


async def live(store: Store, fleet: str) -> int:
    return (await store.count(fleet)).total


async def test_fleets_on_all_shards_admit_tick_line_up_and_release(cluster: Cluster) -> None:
    async with a_gate(cluster) as gate, a_gate(cluster, "g2") as other, a_store(cluster) as store:
        for fleet in fleets_of(cluster):
            held = [await gate.take(demand(fleet, n)) for n in range(4)]
            assert await live(store, fleet) == 4
            with pytest.raises(Refused):
                await other.take(demand(fleet, 5))
            waiting = asyncio.create_task(other.take(demand(fleet, 6, patience_ms=20000)))

            async def in_line(fleet: str = fleet) -> bool:
                return (await store.count(fleet)).waiting == 1

            await wait_until(in_line, "it stands in line", 10)
            held.pop().close()
            held.append(await waiting)
            clock = (await store.count(fleet)).clock
            await wait_until(
                lambda fleet=fleet, clock=clock: _ticked(store, fleet, clock + TIMES.ttl_ms),  # type: ignore[misc]
                "they outlive a ttl",
                20,
            )
            assert await live(store, fleet) == 4
            for permit in held:
                permit.close()
            await wait_until(lambda fleet=fleet: _is_empty(store, fleet), "all went back", 10)  # type: ignore[misc]


async def _ticked(store: Store, fleet: str, clock: int) -> bool:
    return (await store.count(fleet)).clock >= clock


async def _is_empty(store: Store, fleet: str) -> bool:
    return await live(store, fleet) == 0


async def test_a_grant_from_the_line_comes_by_message_and_not_by_the_next_tick(cluster: Cluster) -> None:
    """With ticks that are a minute apart nobody would be told in time."""
    fleet = fleets_of(cluster)[2]
    times = type(TIMES)(ttl_ms=400_000, tick_ms=60_000, provisional_ms=130_000, learning_ms=60_000)
    async with a_store(cluster) as store:
        await store.set_limits(fleet, {**LIMITS, "total": 1}, seed=True, who="test", learning_ms=0)
    policies = {fleet: FleetPolicy(limits=LIMITS)}
    async with open_gate(redis_url=cluster.url, name="g1", fleets=policies, times=times) as gate:
        await wait_until(lambda: cluster.call(fleet, "PUBSUB", "SHARDCHANNELS"), "it listens", 20)
        running = await gate.take(demand(fleet, 1))
        waiting = asyncio.create_task(gate.take(demand(fleet, 2, patience_ms=50_000)))
        await wait_until(
            lambda: cluster.call(fleet, "HLEN", f"tenure:{{{fleet}}}:line:waiting"), "in line", 10
        )
        running.close()
        async with asyncio.timeout(10):
            (await waiting).close()


async def test_administration_and_the_reaper_see_every_shard(cluster: Cluster) -> None:
    async with a_gate(cluster) as gate, a_store(cluster) as store:
        admin = Admin(store, who="ann")
        fleets = fleets_of(cluster)
        assert await admin.fleets() == sorted(fleets)
        await admin.put_tenant("new", weight=2, quotas=dict.fromkeys(fleets, 1))
        key = await admin.add_key("new")
        assert (await admin.tenant("new")).quotas == dict.fromkeys(fleets, 1)
        await wait_until(lambda: gate.tenant_of(key.key) == "new", "the key is known", 10)
        permits = [await gate.take(demand(fleet, n)) for n, fleet in enumerate(fleets)]
        assert [row.live for row in await admin.gateways()] == [SHARDS]
        client = connect(cluster.url)
        try:
            await probe(client)
            seen = await Survey(client.scan_keys, prefix="tenure").look(whole=True)
        finally:
            await client.aclose()
        assert {fleet: found.records for fleet, found in seen.items()} == {
            permit.fleet: {permit.id} for permit in permits
        }
        for permit in permits:
            await admin.revoke(permit.id)
        await admin.delete_tenant("new")
        assert {event["kind"] for event in await admin.newest_events()} >= {"revoked", "limit_set"}
        for permit in permits:
            permit.close()


async def test_a_shard_that_dies_hurts_its_own_fleets_only(replicated: Cluster) -> None:
    """Until its replica takes over they are refused; then what runs is counted there."""
    first, *others = fleets_of(replicated)
    async with a_gate(replicated, redis_loss="closed") as gate, a_store(replicated) as store:
        permits: list[Permit] = [await gate.take(demand(fleet, 1)) for fleet in (first, *others)]
        written = replicated.written(first)
        await wait_until(lambda: replicated.replicated(first, written), "the replica has seen the grant", 20)
        dead = replicated.owner(first)
        dead.stop()
        await wait_until(lambda: _refuses(gate, first), "it is noticed", 10)
        ready, why = gate.ready()
        for fleet in others:
            assert await admitted(gate, fleet)
        assert ready
        assert first in why
        await wait_until(lambda: replicated.owner(first) is not dead, "the replica took over", PROMOTION_S)
        await wait_until(lambda: admitted(gate, first), "its fleet is admitted again", 10)
        assert gate.ready() == (True, "ready")
        for permit in permits:
            assert permit.id in {row.lease for row in await store.inspect(permit.fleet)}
            permit.close()
        for fleet in (first, *others):
            await wait_until(lambda fleet=fleet: _is_empty(store, fleet), "all went back", 10)  # type: ignore[misc]


async def _refuses(gate: Gate, fleet: str) -> bool:
    return not await admitted(gate, fleet)


async def test_a_slot_that_moves_under_load_loses_nothing(cluster: Cluster) -> None:
    """MOVED and ASK are followed: no lease is lost, none is counted twice, and messages still arrive."""
    fleet = fleets_of(cluster)[0]
    target = cluster.servers[1]
    async with a_gate(cluster) as gate, a_store(cluster) as store:
        held = [await gate.take(demand(fleet, n)) for n in range(3)]
        stop = asyncio.Event()
        served = 0

        async def keep_asking() -> None:
            nonlocal served
            while not stop.is_set():
                served += await admitted(gate, fleet)

        asking = asyncio.create_task(keep_asking())
        await wait_until(lambda: served, "it is served before", 10)
        await asyncio.to_thread(cluster.move_slot, fleet, target)
        before = served
        await wait_until(lambda: served > before + 1, "it is served after", 20)
        stop.set()
        await asking
        assert cluster.owner(fleet) is target
        await wait_until(lambda: _holds(store, fleet, {permit.id for permit in held}), "all are counted", 10)
        waiting = asyncio.create_task(gate.take(demand(fleet, 50)))
        held.append(await waiting)
        assert not await admitted(gate, fleet)
        for permit in held:
            permit.close()
        await wait_until(lambda: _is_empty(store, fleet), "all went back", 10)


async def _holds(store: Store, fleet: str, leases: set[str]) -> bool:
    return {row.lease for row in await store.inspect(fleet)} == leases


async def test_the_documented_user_is_enough_on_a_cluster(cluster: Cluster) -> None:
    rules = [
        "on",
        ">pw",
        "~tenure:*",
        "~{tenure}:*",
        "&tenure:*",
        *(f"+{name.lower()}" for name in commands()),
    ]
    for server in cluster.servers:
        server.cli("ACL", "SETUSER", "tenure", *rules, "+cluster|slots", "+command", "+asking")
    url = cluster.url.replace("redis+cluster://", "redis+cluster://tenure:pw@")
    fleet = fleets_of(cluster)[0]
    policies = {fleet: FleetPolicy(limits=LIMITS)}
    async with open_gate(redis_url=url, name="g1", fleets=policies, times=TIMES) as gate:
        await wait_until(lambda: gate.ready() == (True, "ready"), "it is ready", 20)
        async with gate.hold(demand(fleet, 1)):
            assert cluster.call(fleet, "ZCARD", f"tenure:{{{fleet}}}:pool:total") == 1
    for server in cluster.servers:
        assert {entry["object"] for entry in server.cli("ACL", "LOG")} == set()


def ears() -> int:
    """Return how many tasks listen for wake-ups in this loop."""
    return sum("WakeListener.run" in repr(task.get_coro()) for task in asyncio.all_tasks())


def _interruptions(logs: list[MutableMapping[str, Any]]) -> int:
    return sum(line["event"] == "wake_ups_interrupted" for line in logs)


async def test_a_cluster_that_is_away_as_a_whole_is_an_outage_and_everybody_comes_back(
    cluster: Cluster,
) -> None:
    """redis-py has an error of its own for it: calls failed, and wake-ups were not heard again."""
    fleet = fleets_of(cluster)[0]
    async with a_gate(cluster, redis_loss="closed") as gate:
        listening = ears()
        assert listening == SHARDS
        for server in cluster.servers:
            server.pause()
        try:
            with capture_logs() as logs:
                # First the ears notice, then they find no node.
                await wait_until(lambda: _interruptions(logs) >= 2 * SHARDS, "each ear tries again", 30)
            assert not gate.ready()[0]
            with pytest.raises(Refused) as refused:
                await gate.take(demand(fleet, 1))
            assert refused.value.code == "admission_unavailable"
        finally:
            for server in cluster.servers:
                server.resume()
        await wait_until(lambda: gate.ready() == (True, "ready"), "every fleet ticks again", 30)
        assert ears() == listening
        assert await admitted(gate, fleet)
