"""Any order of joins, ends, deaths, limits and lost messages: nobody waits for a place that is free.

After every script: no free place with an eligible live waiter, no limit exceeded, no waiter lost or served
twice, and whoever was granted was the fairest of those who could be.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from services.permits.model import LeaseTimes
from services.permits.replies import wake_ups
from tests.lua.fleet import RawFleet, held, told
from tests.properties.line_view import ENGINES, TENANTS, View, look

if TYPE_CHECKING:
    from collections.abc import Callable

    import redis
    from hypothesis import settings

# Round numbers of minutes: real time, which also passes, never decides.
TIMES: Final = LeaseTimes(
    ttl_ms=6_000_000, tick_ms=1_000_000, provisional_ms=3_000_000, learning_ms=2_000_000
)
PATIENCE_MS: Final = (0, 1_500_000, 50_000_000, 50_000_000)
NAMES: Final = ("g1", "g2", "g3")

# Tenant, engines, prefixes.
Wish = tuple[str, tuple[str, ...], tuple[str, ...]]

some_gateway = st.sampled_from(NAMES)
some_tenant = st.sampled_from(TENANTS)
WISHES: Final = (("e1",), ("e2",), ("e1", "e2"), ("e2", "e1"))
some_engines = st.sampled_from(WISHES)


@dataclass
class Gateway:
    """What one process believes: whom it runs and who waits with it."""

    holder: str
    running: dict[str, tuple[str, str, str]] = field(default_factory=dict)  # tenant, class, engine
    waiting: dict[str, Wish] = field(default_factory=dict)


class LineMachine(RuleBasedStateMachine):
    """The real scripts, and three gateways that may miss messages, die and come back."""

    def __init__(self, client: redis.Redis) -> None:
        super().__init__()
        client.flushall()
        self.fleet = RawFleet(client, times=TIMES)
        self.incarnation = self.sequence = self.steps = 0
        self.gateways: dict[str, Gateway] = {}
        self.ears = self.fleet.client.pubsub()
        self.ended: set[str] = set()
        self.grants: Counter[str] = Counter()
        # Whether something happened that may leave more live than a limit allows.
        self.over = False

    @initialize(
        total=st.integers(2, 6),
        cold=st.integers(1, 5),
        quota=st.integers(2, 5),
        slots=st.integers(1, 2),
        crowd=st.integers(0, 10**6),
    )
    def open(self, total: int, cold: int, quota: int, slots: int, crowd: int) -> None:
        limits = {"total": total, "cold": cold, "tenant_default": quota, "line_max": 12}
        limits |= {"line_max_per_tenant": 6, "weight:a": 3, "weight:b": 1, "weight:c": 1}
        self.fleet.open(**limits, **{f"engine:{name}": slots for name in ENGINES})
        self.fleet.witness("e1", {"p": True}, keep_ms=10**12)
        self.fleet.witness("e2", {"q": True}, keep_ms=10**12)
        for name in NAMES:
            self._start(name)
        self.many(crowd=crowd, count=12)

    def _start(self, name: str) -> None:
        self.incarnation += 1
        self.gateways[name] = Gateway(f"{name}~{self.incarnation}")
        self.ears.ssubscribe(self.fleet.keys.wake(self.gateways[name].holder))
        self._call(lambda: self.fleet.tick(holder=self.gateways[name].holder))

    # --- one request's life

    @rule(
        name=some_gateway,
        tenant=some_tenant,
        engines=some_engines,
        prefix=st.sampled_from(["", "p", "q"]),
        patience_ms=st.sampled_from(PATIENCE_MS),
    )
    def acquire(
        self, name: str, tenant: str, engines: tuple[str, ...], prefix: str, patience_ms: int
    ) -> None:
        """Ask, every other time twice because the first answer was lost."""
        gateway = self.gateways[name]
        self.sequence += 1
        lease = f"{gateway.holder}~{self.sequence}"
        wish = (tenant, engines, (prefix,) if prefix else ())
        for _ in range(1 + self.sequence % 2):
            reply = self._ask(gateway, lease, wish, patience_ms)
        if reply[0] == "FULL":
            self.ended.add(lease)

    @rule(crowd=st.integers(0, 10**6), count=st.integers(2, 6))
    def many(self, crowd: int, count: int) -> None:
        """Some ask one after the other, for whatever the dice say: most histories need a crowd."""
        dice = random.Random(crowd)
        for _ in range(count):
            self.acquire(
                name=dice.choice(NAMES),
                tenant=dice.choice(TENANTS),
                engines=dice.choice(WISHES),
                prefix=dice.choice(["", "", "p", "q"]),
                patience_ms=dice.choice(PATIENCE_MS),
            )

    def _ask(self, gateway: Gateway, lease: str, wish: Wish, patience_ms: int) -> list[Any]:
        tenant, engines, prefixes = wish
        holder = gateway.holder
        reply = self._call(
            lambda: self.fleet.acquire(
                lease, tenant, engines=engines, prefixes=prefixes, holder=holder, patience_ms=patience_ms
            ),
            newcomer=lease,
        )
        gateway.waiting.pop(lease, None)
        if reply[0] == "GRANTED":
            gateway.running[lease] = (tenant, reply[3], reply[4])
        elif reply[0] == "QUEUED":
            assert patience_ms > 0
            gateway.waiting[lease] = wish
        return reply

    @precondition(lambda self: self._any("running"))
    @rule(data=st.data(), times=st.integers(1, 2))
    def end(self, data: st.DataObject, times: int) -> None:
        running, lease = self._one_of("running", data)
        tenant, _, engine = running.pop(lease)
        self.ended.add(lease)
        for _ in range(times):
            self._call(lambda: self.fleet.release(lease, tenant=tenant, engine=engine))

    @precondition(lambda self: self._any("running"))
    @rule(data=st.data())
    def end_another(self, data: st.DataObject) -> None:
        self.end(data=data, times=1)

    @precondition(lambda self: self._any("waiting"))
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        """Give up; the grant may be on its way."""
        waiting, lease = self._one_of("waiting", data)
        tenant, _, _ = waiting.pop(lease)
        self.ended.add(lease)
        self._call(lambda: self.fleet.release(lease, tenant=tenant, engine=""))

    @precondition(lambda self: self._any("waiting"))
    @rule(data=st.data())
    def revoke(self, data: st.DataObject) -> None:
        """Somebody ends a waiter from afar."""
        waiting, lease = self._one_of("waiting", data)
        tenant, _, _ = waiting.pop(lease)
        self.ended.add(lease)
        if self._call(lambda: self.fleet.revoke(lease))[0:5:4] == ["REVOKED", "live"]:
            self._call(lambda: self.fleet.release(lease, tenant=tenant, engine=""))

    @precondition(lambda self: self._any("running"))
    @rule(data=st.data())
    def first_token(self, data: st.DataObject) -> None:
        running, lease = self._one_of("running", data)
        tenant, _, engine = running[lease]
        running[lease] = (tenant, "warm", engine)
        self._call(lambda: self.fleet.downgrade(lease))

    @precondition(lambda self: self._any("running"))
    @rule(data=st.data(), engines=some_engines)
    def move(self, data: st.DataObject, engines: tuple[str, ...]) -> None:
        running, lease = self._one_of("running", data)
        reply = self._call(lambda: self.fleet.move(lease, *engines))
        if reply[0] == "MOVED":
            tenant, class_, _ = running[lease]
            running[lease] = (tenant, class_, reply[3])

    def _any(self, kind: Literal["running", "waiting"]) -> bool:
        return any(getattr(gateway, kind) for gateway in self.gateways.values())

    def _one_of(self, kind: Literal["running", "waiting"], data: st.DataObject) -> tuple[dict[str, Any], str]:
        """Draw a lease that runs, or waits, and return its gateway's table with it."""
        tables = [getattr(gateway, kind) for gateway in self.gateways.values()]
        lease = data.draw(st.sampled_from(sorted(lease for table in tables for lease in table)))
        return next(table for table in tables if lease in table), lease

    # --- gateways

    @rule(name=some_gateway)
    def tick(self, name: str) -> None:
        self._tick(self.gateways[name])

    def _tick(self, gateway: Gateway) -> None:
        facts = [
            held(lease, tenant, class_=class_, engine=engine, cold=class_ == "cold")
            for lease, (tenant, class_, engine) in gateway.running.items()
        ]
        waiting = tuple(gateway.waiting)
        reply = told(self._call(lambda: self.fleet.tick(*facts, holder=gateway.holder, waiters=waiting)))
        self.over = self.over or bool(reply.missing)
        for lease, (class_, engine, _) in reply.granted.items():
            self._start_work(gateway, lease, class_, engine)
        for lease in reply.gone:
            if lease in gateway.waiting:
                self._ask(gateway, lease, gateway.waiting[lease], PATIENCE_MS[-1])

    @rule(name=some_gateway)
    def hear(self, name: str) -> None:
        """The gateway reads its messages. Those read by nobody until the next tick are lost."""
        while (message := self.ears.get_message(timeout=0)) is not None:
            if message["type"] == "smessage" and message["channel"].endswith(self.gateways[name].holder):
                for lease, news in wake_ups(message["data"]):
                    if lease in self.gateways[name].waiting:
                        self._start_work(self.gateways[name], lease, news.class_, news.engine)  # type: ignore[union-attr]

    def _start_work(self, gateway: Gateway, lease: str, class_: str, engine: str) -> None:
        tenant, _, _ = gateway.waiting.pop(lease)
        gateway.running[lease] = (tenant, class_, engine)

    @rule(name=some_gateway)
    def kill(self, name: str) -> None:
        """The process dies with all it ran and all who waited, and comes back as another holder."""
        old = self.gateways[name]
        self.ended |= set(old.running)
        self._start(name)

    # --- the others

    @rule(ticks=st.integers(1, 4))
    def time_passes(self, ticks: int) -> None:
        """Everybody who lives ticks meanwhile, one after the other."""
        for _ in range(ticks):
            self.fleet.advance(TIMES.tick_ms)
            for gateway in self.gateways.values():
                self._tick(gateway)

    @rule()
    def reap(self) -> None:
        self._call(lambda: self.fleet.reap(("tenant:a", "engine:e1")))

    @rule(
        pool=st.sampled_from(["total", "cold", "tenant_default", "tenant:a", "engine:e1", "engine:e2"]),
        limit=st.sampled_from([3, 2, 4, 1, 5, 0]),
    )
    def change_a_limit(self, pool: str, limit: int) -> None:
        """Live leases stay; over a lowered limit nobody starts until below."""
        self.over = True
        self._call(lambda: self.fleet.set_limits({pool: limit}))

    @rule(tenant=some_tenant, weight=st.integers(1, 5))
    def change_a_weight(self, tenant: str, weight: int) -> None:
        self._call(lambda: self.fleet.set_limits({f"weight:{tenant}": weight}))

    @precondition(lambda self: self.steps % 7 == 0)
    @rule(data=st.data())
    def a_key_of_the_line_is_lost(self, data: st.DataObject) -> None:
        """Half a line is no line: within one tick of everybody it is whole again."""
        tail = data.draw(st.sampled_from(["waiting", "tenants", "next:cold", "next:warm", "queue:cold:a"]))
        self.fleet.client.delete(self.fleet.keys.meta.replace("meta", f"line:{tail}"))
        for gateway in self.gateways.values():
            self._heal(gateway)
        for gateway in self.gateways.values():
            self._tick(gateway)

    def _heal(self, gateway: Gateway) -> None:
        facts = [
            held(lease, tenant, class_=class_, engine=engine, cold=class_ == "cold")
            for lease, (tenant, class_, engine) in gateway.running.items()
        ]
        self.fleet.tick(*facts, holder=gateway.holder)

    # --- what holds after every script

    def _call(self, script: Callable[[], list[Any]], newcomer: str = "") -> list[Any]:
        """Run one script and hold what became of the line against what it was before."""
        before = look(self.fleet)
        reply = script()
        after = look(self.fleet)
        self.steps += 1
        idle = [one.lease for one in after.waiters.values() if after.fits(one)]
        assert not idle, f"{idle} wait for places that are free"
        self._nobody_served_twice(before, after)
        self._nobody_lost(before, after)
        self._the_fairest_was_granted(before, after, newcomer)
        if not self.over:
            for pool, members in after.pools.items():
                assert len(members) <= after.limit(pool), pool
        return reply

    def _nobody_served_twice(self, before: View, after: View) -> None:
        for lease in after.live - before.live:
            if lease not in self._known_running():
                self.grants[lease] += 1
                assert self.grants[lease] == 1, lease
                assert lease not in self.ended, f"{lease} was granted after it had ended"
        assert not after.live & set(after.waiters), "who has a permit waits no more"

    def _known_running(self) -> set[str]:
        return {lease for gateway in self.gateways.values() for lease in gateway.running}

    def _nobody_lost(self, before: View, after: View) -> None:
        for lease, waiter in before.waiters.items():
            stays = lease in after.waiters or lease in after.live
            assert stays or lease in self.ended or not waiter.alive, f"{lease} vanished from the line"

    def _the_fairest_was_granted(self, before: View, after: View, newcomer: str) -> None:
        granted = [before.waiters[lease] for lease in after.live if lease in before.waiters]
        if newcomer in after.live - before.live and newcomer not in before.waiters:
            rest = after.without(newcomer)
            overtaken = [one.lease for one in after.waiters.values() if rest.fits(one)]
            assert not overtaken, f"{newcomer} overtook {overtaken}"
        if len(granted) != 1 or newcomer in after.live - before.live:
            return
        (one,) = granted
        # Just before its grant: with its place free, and everybody who stayed still in line.
        then = after.without(one.lease)
        line = {lease: waiter for lease, waiter in before.waiters.items() if lease not in self.ended}
        then = View(then.now, then.learning, then.limits, then.pools, {**line, one.lease: one})
        able = [waiter for waiter in then.queue(one.tenant, one.class_) if then.fits(waiter)]
        assert able[0].lease == one.lease, "within a tenant the oldest who can run is first"
        heads = [head for head in then.heads() if then.fits(head)]
        if heads:
            rank = min((then.share(head.tenant), head.ticket) for head in heads)
            assert (then.share(one.tenant), one.ticket) == rank


@pytest.mark.timeout(3600)  # a failure is made small first, and the thorough profile takes its time
def test_in_any_history_no_place_is_idle_and_nobody_is_lost(client: redis.Redis, budget: settings) -> None:
    class LineOnThisRedis(LineMachine):
        def __init__(self) -> None:
            super().__init__(client)

        def teardown(self) -> None:
            self.ears.close()

    run_state_machine_as_test(LineOnThisRedis, settings=budget)
