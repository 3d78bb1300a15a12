"""The core of the protocol on Redis 7, Redis 8 and Valkey 8: whichever of them an operator has."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import pytest

from services.permits.connect import connect
from services.permits.errors import Refused, Unavailable, Unusable
from services.permits.gate import open_gate
from services.permits.model import Demand, Full, Gone, Granted, Held, Learning, LeaseTimes
from services.permits.probe import commands, missing_commands
from services.permits.store import Store
from tests.docker.conftest import FLEET, LIMITS, TIMES, Server
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Mapping

    from services.permits.gate import Gate
    from services.permits.model import FleetPolicy, Reclaim

# The limit is for a first pull.
pytestmark = pytest.mark.timeout(300)

HOLDER = "g1~a1"


def demand(request_id: str = "r", *, engine: str = "e1", **more: Any) -> Demand:
    return Demand(fleet=FLEET, tenant="acme", request_id=request_id, engines=(engine,), **more)


def held(lease: str) -> Held:
    return Held(
        lease=lease,
        request_id=f"r-{lease}",
        tenant="acme",
        class_="cold",
        engine="e1",
        phase="decode",
        acquired_at=1_700_000_000_000,
        cold=True,
    )


async def take(store: Store, *leases: str) -> None:
    for lease in leases:
        answer = await store.acquire(demand(f"r-{lease}"), lease=lease, holder=HOLDER)
        assert isinstance(answer, Granted), answer


async def in_use(store: Store) -> tuple[int, int, int, int]:
    """Return the live leases of the total, the cold pool, the tenant and the engine."""
    counts = await store.count(FLEET, ["acme"], ["e1"])
    return counts.total, counts.cold, counts.tenants["acme"], counts.engines["e1"]


async def test_a_place_is_granted_once_refused_when_taken_and_given_back_once(store: Store) -> None:
    await take(store, "a", "b", "c")
    again = await store.acquire(demand(), lease="a", holder=HOLDER)
    assert isinstance(again, Granted)
    assert again.stamp.grant == 1

    refused = await store.acquire(demand(), lease="d", holder=HOLDER)
    assert isinstance(refused, Full)
    assert (refused.pool, refused.in_use, refused.limit) == ("cold", 3, 3)
    assert await in_use(store) == (3, 3, 3, 3)

    ticked = await store.tick(FLEET, holder=HOLDER, leases=[held("a"), held("b")], news=frozenset({"a"}))
    assert ticked.missing == ()
    assert {row.lease: row.phase for row in await store.inspect(FLEET)} == {
        "a": "decode",
        "b": "granted",
        "c": "granted",
    }

    gone = [Gone(lease=lease, tenant="acme", engine="e1") for lease in ("a", "b", "c", "d")]
    assert await store.release(FLEET, gone) == 3
    assert await store.release(FLEET, gone) == 0
    assert await in_use(store) == (0, 0, 0, 0)


async def test_a_warm_request_takes_no_cold_place_and_a_cold_one_gives_it_back_early(store: Store) -> None:
    await take(store, "a", "b", "c")
    await store.witness(FLEET, "e1", {"prefix": True})
    warm = await store.acquire(demand(prefixes=("prefix",)), lease="w", holder=HOLDER)
    assert isinstance(warm, Granted)
    assert warm.class_ == "warm"
    assert await in_use(store) == (4, 3, 4, 4)

    assert await store.downgrade(FLEET, ["a", "w"]) == 1
    assert await in_use(store) == (4, 2, 4, 4)
    assert await store.move(FLEET, "a", ["e2"]) == "e2"
    assert await in_use(store) == (4, 2, 4, 3)


async def test_the_lease_of_a_dead_holder_is_reaped_and_reported_once(server: Server, store: Store) -> None:
    client = connect(server.url)
    hasty = Store(client, times=LeaseTimes(ttl_ms=600, tick_ms=100, provisional_ms=300, learning_ms=100))
    await take(hasty, "a")
    await take(store, "b")
    reclaimed: list[Reclaim] = []

    async def reaped() -> bool:
        reclaimed.extend((await hasty.reap(FLEET, ["tenant:acme", "engine:e1"])).reclaimed)
        return bool(reclaimed)

    await wait_until(reaped, "the lease of the dead holder is taken back")
    assert [(one.lease, one.tenant, one.holder) for one in reclaimed] == [("a", "acme", HOLDER)]
    assert (await store.reap(FLEET)).reclaimed == ()
    assert await in_use(store) == (1, 1, 1, 1)
    await client.aclose()


async def test_after_a_loss_nothing_is_granted_before_the_holders_said_what_runs(
    server: Server, store: Store
) -> None:
    await take(store, "a", "b")
    server.client.flushall()
    await store.set_limits(FLEET, LIMITS, seed=True, who="test")
    assert isinstance(await store.acquire(demand(), lease="c", holder=HOLDER), Learning)

    ticked = await store.tick(FLEET, holder=HOLDER, leases=[held("a"), held("b")], news=frozenset())
    assert set(ticked.missing) == {"a", "b"}
    assert await in_use(store) == (2, 2, 2, 2)

    async def granted() -> bool:
        return isinstance(await store.acquire(demand(), lease="c", holder=HOLDER), Granted)

    await wait_until(granted, "the learning window passes")
    assert await in_use(store) == (3, 3, 3, 3)


async def test_a_server_out_of_memory_grants_nothing_and_still_takes_places_back(
    server: Server, store: Store
) -> None:
    """A gateway that could not release would leak every place until the operator made room."""
    await take(store, "a", "b")
    server.client.config_set("maxmemory", 1)
    with pytest.raises(Unavailable, match="maxmemory"):
        await store.acquire(demand(), lease="c", holder=HOLDER)

    server.client.script_flush()
    await store.tick(FLEET, holder=HOLDER, leases=[held("a"), held("b")], news=frozenset())
    assert await store.release(FLEET, [Gone(lease="a", tenant="acme", engine="e1")]) == 1
    await store.downgrade(FLEET, ["b"])
    await store.reap(FLEET)
    assert await in_use(store) == (1, 0, 1, 1)


async def test_no_request_fails_while_the_script_cache_is_flushed(
    server: Server, store: Store, policies: Mapping[str, FleetPolicy]
) -> None:
    await store.set_limits(FLEET, {"line_max": 10, "line_max_per_tenant": 10}, who="test")
    async with open_gate(redis_url=server.url, name="g1", times=TIMES, fleets=policies) as gate:
        await ready(gate)
        for number in range(50):
            server.client.script_flush()
            # Places come back a moment after their end, so it may have to wait for one.
            async with gate.hold(demand(f"r{number}", patience_ms=10_000)):
                server.client.script_flush()
    # Closing the gate flushed its outbox.
    assert await in_use(store) == (0, 0, 0, 0)


async def test_two_replicas_together_admit_no_more_than_the_limit(
    server: Server, store: Store, policies: Mapping[str, FleetPolicy]
) -> None:
    async with AsyncExitStack() as stack:
        gates = [
            await stack.enter_async_context(
                open_gate(redis_url=server.url, name=name, times=TIMES, fleets=policies)
            )
            for name in ("g1", "g2")
        ]
        await asyncio.gather(*map(ready, gates))
        await store.set_limits(FLEET, {"cold": 4}, who="test")
        for _ in range(5):
            async with AsyncExitStack() as permits:
                answers = await asyncio.gather(
                    *(permits.enter_async_context(gates[n % 2].hold(demand(f"r{n}"))) for n in range(60)),
                    return_exceptions=True,
                )
                refused = [answer for answer in answers if isinstance(answer, Refused)]
                assert len(refused) == 56, answers
                assert await in_use(store) == (4, 4, 4, 4)
            await wait_until(lambda: is_empty(store), "every place is given back")


async def test_a_server_that_would_evict_leases_is_refused_at_the_start(
    server: Server, policies: Mapping[str, FleetPolicy]
) -> None:
    server.client.config_set("maxmemory-policy", "allkeys-lru")
    with pytest.raises(Unusable, match="noeviction"):
        async with open_gate(redis_url=server.url, name="g1", times=TIMES, fleets=policies):
            pass


@pytest.mark.parametrize(
    ("rules", "missing"),
    [
        ([], []),
        (["-hset", "-hlen", "-time"], ["hlen", "hset", "time"]),
        (["resetchannels"], ["spublish", "ssubscribe"]),
        (["resetkeys"], ["eval"]),
    ],
)
async def test_a_user_is_told_what_it_may_not_do_and_nothing_else(
    server: Server, rules: list[str], missing: list[str]
) -> None:
    """Servers differ in how they are asked; one that is asked in the wrong way would be called too old."""
    operator: Any = server.client
    enough = ["reset", "on", ">x", "~tenure:*", "&tenure:*", *(f"+{name.lower()}" for name in commands())]
    operator.execute_command("ACL", "SETUSER", "limited", *enough, *rules)
    client = connect(server.url.replace("redis://", "redis://limited:x@"))
    try:
        assert await missing_commands(client, "tenure") == missing
    finally:
        await client.aclose()
        operator.execute_command("ACL", "DELUSER", "limited")


async def ready(gate: Gate) -> None:
    await wait_until(lambda: gate.ready()[0], "the gate is ready")


async def is_empty(store: Store) -> bool:
    return await in_use(store) == (0, 0, 0, 0)
