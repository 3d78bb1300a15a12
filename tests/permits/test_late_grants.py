"""A grant that was held up begins nothing, and under `stop` a stream ends before its lease does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

import pytest

from services.permits import FleetPolicy, Permit
from services.permits.clock import monotonic
from services.permits.events import Silent
from services.permits.holdings import Holdings
from services.permits.model import Granted, Stamp
from services.permits.renewal import WATCHES_PER_TICK, Renewal
from services.permits.waiters import Handed, Waiter, Waiters
from tests.lua.fleet import RawFleet
from tests.permits.keeper import permit
from tests.permits.line import LIMITS, ask, gates, in_line, started
from tests.permits.scene import KEYS, TIMES, Heard, a_gate, a_store, begin, demand
from tests.support.redis_shim import RedisShim
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from services.permits.store import Store
    from tests.permits.scene import Seen
    from tests.support.redis_server import RedisServer

HELD_UP_S: Final = TIMES.provisional_ms / 1000


def granted(number: int, epoch: str = "e") -> Granted:
    return Granted(class_="cold", engine="e1", stamp=Stamp(epoch, number))


async def test_a_wake_up_that_comes_after_its_lease_begins_nothing(
    redis_server: RedisServer, redis_url: str, seen: Seen
) -> None:
    """The network holds the message back for longer than the grant lives; somebody else has the place."""
    await begin(redis_url, LIMITS)
    fleet = RawFleet(seen.client, times=TIMES)
    with RedisShim(redis_server.port) as shim:
        async with (
            a_gate(redis_url, "g1", limits=LIMITS) as near,
            a_gate(shim.url, "g2", limits=LIMITS) as far,
        ):
            running = await near.take(demand())
            task = ask(far)
            await in_line(seen, 1)
            shim.stall()
            running.close()
            await in_line(seen, 0)
            seen.advance(TIMES.provisional_ms + 1)
            running = await near.take(demand())
            stalled_s = monotonic()
            await wait_until(lambda: monotonic() > stalled_s + HELD_UP_S, "the message is old")
            shim.healthy()
            await wait_until(lambda: far.ready()[0], "the gateway has ticked")
            await in_line(seen, 1)
            assert not task.done(), "it waits again"
            assert fleet.live() == {running.id}
            running.close()
            (await started(task, 5)).close()
    assert seen.nothing_left()


async def test_a_message_about_an_earlier_grant_of_the_same_waiter_is_not_believed(
    redis_url: str, seen: Seen
) -> None:
    async with gates(redis_url, 1) as (gate,):
        running = await gate.take(demand())
        task = ask(gate)
        await in_line(seen, 1)
        (waiter,) = seen.client.hkeys(KEYS.waiting)
        epoch = seen.client.hget(KEYS.meta, "epoch")
        old = f"{epoch}\n{waiter} {running.grant} cold e1"
        await wait_until(lambda: seen.client.spublish(KEYS.wake(gate.holder), old), "the gateway is told")
        view = gate.view("f")
        await wait_until(lambda: gate.view("f") is not view, "a tick has answered")
        assert not task.done()
        assert gate.live() == 1
        running.close()
        (await started(task)).close()


async def test_a_waiter_believes_a_message_that_is_newer_than_the_last_answer() -> None:
    waiter = Waiter()
    assert waiter.granted_since_s(granted(1)) is not None
    waiter.still(monotonic() + 5, Stamp("e", 7))
    # The answer to an older call arrives after that of a newer one.
    waiter.still(0.0, Stamp("e", 3))
    since_s = waiter.granted_since_s(granted(8))
    assert since_s is not None
    assert since_s > monotonic()
    assert waiter.granted_since_s(granted(7)) is None
    assert waiter.granted_since_s(granted(8, epoch="other")) is None
    assert waiter.granted_since_s(Handed(granted(1), 3.0)) == 3.0


async def test_an_answer_that_was_held_up_is_asked_for_again(shim: RedisShim, seen: Seen) -> None:
    """What is left of its lease may be too little for a tick to renew it; asked again, it lasts anew."""
    heard = Heard()
    late_ms = TIMES.provisional_ms - TIMES.tick_ms - 780
    async with a_gate(shim.url, listener=heard) as gate:
        (await gate.take(demand())).close()  # which connects
        await wait_until(seen.nothing_left, "nothing is under way")
        shim.delay(late_ms)
        task = ask(gate)
        await wait_until(lambda: heard.scripts["acquire"] == 2, "the first answer came")
        shim.healthy()
        taken = await started(task, 5)
        assert heard.scripts["acquire"] >= 3
        assert seen.live() == {taken.id}
        assert taken.deadline_s - monotonic() > TIMES.tick_ms / 1000
        taken.close()


# --- lost_lease = "stop"


def renewal_of(
    store: Store, held: list[Permit], lost: list[Permit], policy: Literal["stop", "run_on"] = "stop"
) -> Renewal:
    holdings = Holdings()
    for one in held:
        holdings.add(one)
    return Renewal(
        "f",
        policy=FleetPolicy(limits=LIMITS, lost_lease=policy),
        times=TIMES,
        store=store,
        holdings=holdings,
        waiters=Waiters(),
        holder="g1~a1",
        listener=Silent(),
        lose=lost.extend,
        tell=lambda _fleet, _news: None,
    )


@pytest.mark.parametrize(("looks", "ends"), [(-1.0, True), (0.9, True), (20.0, False)])
async def test_a_stream_ends_at_the_last_look_before_its_deadline(url: str, looks: float, ends: bool) -> None:
    """After the deadline its place may be somebody else's, so to notice then would be too late."""
    async with a_store(url) as store:
        held, lost = permit(1), list[Permit]()
        held.deadline_s = monotonic() + looks * TIMES.tick_ms / 1000 / WATCHES_PER_TICK
        renewal_of(store, [held], lost).lose_overdue()
        assert lost == ([held] if ends else [])


@pytest.mark.leaves_leases("the tick that was held up adds it again; the gate would release it")
@pytest.mark.parametrize("policy", ["stop", "run_on"])
async def test_a_tick_that_was_held_up_beyond_the_deadline_renews_nothing_under_stop(
    shim: RedisShim, url: str, policy: Literal["stop", "run_on"]
) -> None:
    """The place was given away meanwhile: the answer must not let the stream go on."""
    async with a_store(shim.url) as store:
        held, lost = permit(1), list[Permit]()
        held.deadline_s = monotonic() + 0.2
        shim.delay(250)
        await renewal_of(store, [held], lost, policy).tick()
        assert lost == ([held] if policy == "stop" else [])
