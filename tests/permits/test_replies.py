"""Replies that are lost, scripts that are forgotten, connections that run short, callers that leave."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Literal

import pytest
import redis
from redis.asyncio import UnixDomainSocketConnection

from services.permits import Demand, Permit, Refused
from services.permits.connect import connect
from services.permits.honest import honest
from services.permits.model import Granted
from tests.permits.scene import LIMITS, TIMES, Heard, a_gate, a_store, demand, granted_of
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from services.permits import Gate
    from tests.permits.scene import Seen
    from tests.support.redis_server import RedisServer
    from tests.support.redis_shim import RedisShim


def acquiring(request: bytes) -> bool:
    """Recognise an acquire: the only call that names a request that nobody else knows."""
    return b"only-here" in request


def asked_here(tenant: str = "acme") -> Demand:
    return Demand(fleet="f", tenant=tenant, request_id="only-here", engines=("e1",))


@pytest.mark.parametrize("harm", ["cut", "hang"])
async def test_an_acquire_whose_reply_is_lost_is_answered_under_the_same_id(
    shim: RedisShim, seen: Seen, harm: Literal["cut", "hang"]
) -> None:
    async with a_gate(shim.url) as gate:
        for _ in range(3):
            lost = shim.drop_replies(acquiring, harm=harm)
            permit = await gate.take(asked_here())
            assert lost.hits == 1
            assert seen.live() == {permit.id}
            assert seen.client.hget("tenure:{f}:meta", "grant") == str(permit.grant)
            permit.close()
            await wait_until(seen.nothing_left, "the permit went back")


async def test_fifty_lost_replies_leak_nothing(shim: RedisShim, seen: Seen) -> None:
    async with a_gate(shim.url) as gate:
        for _ in range(50):
            shim.drop_replies(acquiring)
            async with gate.hold(asked_here()):
                pass
        await wait_until(seen.nothing_left, "all went back")
        assert await granted_of(gate, LIMITS["total"] + 1) == LIMITS["total"]


@pytest.mark.parametrize("harm", ["cut", "hang"])
async def test_a_release_whose_reply_is_lost_frees_one_place_and_is_acknowledged(
    shim: RedisShim, seen: Seen, harm: Literal["cut", "hang"]
) -> None:
    async with a_gate(shim.url) as gate:
        permits = [await gate.take(demand()) for _ in range(4)]
        told: list[float] = []
        permits[0].on_released = told.append
        gone = permits[0].id.encode()
        lost = shim.drop_replies(lambda request: gone in request and b"req" not in request, harm=harm)
        permits[0].close()
        await wait_until(lambda: told, "the release was acknowledged")
        assert lost.hits == 1
        assert seen.live() == {permit.id for permit in permits[1:]}
        assert await granted_of(gate, 3) == 1
        assert len(told) == 1
        for permit in permits[1:]:
            permit.close()
    assert seen.nothing_left()


async def test_releases_that_redis_answers_with_errors_are_sent_until_they_pass(
    shim: RedisShim, seen: Seen
) -> None:
    async with a_gate(shim.url) as gate:
        permits = [await gate.take(demand()) for _ in range(4)]
        gone = permits[0].id.encode()
        shim.fail(lambda request: gone in request, 3)
        for permit in permits:
            permit.close()
        await wait_until(seen.nothing_left, "all went back")
        await wait_until(lambda: all(permit.state == "released" for permit in permits), "and were told")


async def test_scripts_that_redis_forgets_all_the_time_fail_no_call(
    redis_server: RedisServer, url: str, seen: Seen
) -> None:
    """SCRIPT FLUSH again and again under load: a failover or a restart in the worst form."""
    heard = Heard()
    over = asyncio.Event()

    def flush() -> None:
        with redis.Redis(unix_socket_path=str(redis_server.socket_path)) as client:
            for _ in range(10):
                client.script_flush("SYNC")

    async def flushes() -> None:
        for _ in range(8):
            await asyncio.to_thread(flush)
            await asyncio.sleep(0.2)  # the fault's own rhythm, not a wait for anything
        over.set()

    async def requests(gate: Gate) -> int:
        served = 0
        while not over.is_set():
            async with gate.hold(demand()) as permit:
                permit.downgrade()
                gate.witness(permit, {"p": True})
                served += 1
                await asyncio.sleep(0)
        return served

    async with a_store(url) as store:
        await store.set_limits("f", {"total": 1000, "cold": 1000, "tenant_default": 1000}, who="test")
    async with a_gate(url, listener=heard) as gate:
        flushing = asyncio.create_task(flushes())
        served = await asyncio.gather(*(requests(gate) for _ in range(4)))
        await flushing
        assert sum(served) > 100
        assert heard.outcomes == {"granted": sum(served)}
        assert all(heard.up)
    assert seen.nothing_left()


async def test_one_connection_serves_five_hundred_callers_at_once(url: str, seen: Seen) -> None:
    limits = {"total": 300, "cold": 300, "tenant_default": 300}
    async with a_store(url) as store:
        await store.set_limits("f", limits, who="test")
    heard = Heard()
    # Without Redis this policy grants nothing, so a call that failed for want of a connection would show.
    async with a_gate(url, redis_loss="closed", listener=heard) as gate:
        answers = await asyncio.gather(*(gate.take(demand()) for _ in range(500)), return_exceptions=True)
        granted = [answer for answer in answers if isinstance(answer, Permit)]
        refused = [answer for answer in answers if isinstance(answer, Refused)]
        assert (len(granted), len(refused)) == (300, 200)
        assert {refusal.code for refusal in refused} == {"tenant_quota"}
        assert seen.live() == {permit.id for permit in granted}
        assert all(heard.up)
        assert len(seen.client.client_list()) <= 5 + 2 + 2
        for permit in granted:
            permit.close()
    assert seen.nothing_left()


async def test_a_caller_that_is_cancelled_at_any_step_of_a_plain_command_ends(url: str) -> None:
    """A loop that went on because one cancellation was swallowed kept a whole process from ending."""
    client = connect(url)

    async def asks() -> None:
        while True:
            await client.hlen("nothing")

    try:
        for steps in range(200):
            asking = asyncio.create_task(asks())
            for _ in range(steps):
                await asyncio.sleep(0)
            asking.cancel()
            await wait_until(asking.done, f"a caller that was cancelled in step {steps} ends")
            assert asking.cancelled()
    finally:
        asking.cancel()
        await client.aclose()


async def test_a_connection_that_is_closed_at_any_step_of_a_command_is_an_outage(
    redis_server: RedisServer,
) -> None:
    """A client of a Cluster closes all connections of a node in trouble, also those that begin to send.

    What is no outage is taken for a defect: nobody tries again, and a tick fails with a traceback.
    """
    connection = honest(UnixDomainSocketConnection)(path=str(redis_server.socket_path), socket_timeout=5)
    closed = 0

    async def ping() -> None:
        await connection.send_command("PING")
        await connection.read_response()

    for steps in range(20):
        await connection.connect()
        sending = asyncio.create_task(ping())
        for _ in range(steps):
            await asyncio.sleep(0)
        await connection.disconnect(nowait=True)
        (outcome,) = await asyncio.gather(sending, return_exceptions=True)
        assert outcome is None or isinstance(outcome, redis.ConnectionError), (steps, outcome)
        closed += outcome is not None
        await connection.disconnect(nowait=True)
    assert closed > 0


async def test_cancelled_calls_leave_no_reply_for_the_next_one(url: str, seen: Seen) -> None:
    """Half of the callers leave at a random moment; each of the others must get its own answer."""
    limits = {"total": 10_000, "cold": 10_000, "tenant_default": 10_000, "tenant:none": 0}
    async with a_store(url) as store:
        await store.set_limits("f", limits, who="test")
    rng = random.Random(7)
    async with a_gate(url) as gate:

        async def stays(number: int) -> None:
            if number % 3 == 0:
                counts = await gate.count("f", ["none"])
                assert counts.limits["tenant:none"] == 0
            elif number % 3 == 1:
                with pytest.raises(Refused, match="tenant:none"):
                    await gate.take(demand("none"))
            else:
                async with gate.hold(demand(f"t{number}", engines=(f"e{number}",))) as permit:
                    assert permit.engine == f"e{number}"
                    assert await gate.move(permit, [f"m{number}"])
                    assert permit.engine == f"m{number}"

        async def leaves(number: int) -> None:
            async with gate.hold(demand(f"t{number}", engines=(f"x{number}",))) as permit:
                await gate.move(permit, [f"y{number}"])
                await gate.count("f")

        async def after(task: asyncio.Task[None], turns: int) -> None:
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

        connected = seen.client.info("stats")["total_connections_received"]
        for _ in range(10):
            await asyncio.gather(
                *(stays(n) for n in range(60)),
                *(after(asyncio.create_task(leaves(n)), rng.randrange(40)) for n in range(60)),
            )
        for _ in range(50):
            asking = asyncio.create_task(gate.count("f"))
            for _ in range(3):
                await asyncio.sleep(0)  # sent by now, and not yet answered
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
        await wait_until(seen.nothing_left, "everything went back")
        assert gate.live() == 0
        # Nor does a caller who leaves cost a connection, which would be thrown away to be safe.
        assert seen.client.info("stats")["total_connections_received"] - connected <= 6 + 2


async def test_a_delayed_acquire_that_arrives_after_its_caller_left_costs_a_provisional_lease_at_most(
    shim: RedisShim, seen: Seen
) -> None:
    """The network keeps the call back and delivers it when nobody waits for it any more."""
    async with a_gate(shim.url, redis_loss="closed") as gate:
        async with gate.hold(demand()):
            pass  # so that there is a connection to be stalled
        shim.stall()
        with pytest.raises(Refused):
            await gate.take(demand())
        shim.healthy()
        await wait_until(lambda: seen.client.hget("tenure:{f}:meta", "grant") == "2", "it arrived")
        await wait_until(lambda: gate.ready()[0], "Redis answers again")
        seen.advance(TIMES.provisional_ms)
        assert await granted_of(gate, 5) == 4
    await wait_until(lambda: not seen.live(), "nothing lives")


async def test_the_same_id_asked_through_two_connections_is_one_grant(url: str, seen: Seen) -> None:
    async with a_store(url) as store:
        call = asked_here()
        answers = await asyncio.gather(
            *(store.acquire(call, lease="g1~a1~1", holder="g1~a1") for _ in range(20))
        )
        assert {answer.stamp.grant for answer in answers if isinstance(answer, Granted)} == {1}
        assert len(answers) == 20
        assert seen.live() == {"g1~a1~1"}
        seen.client.flushall()
