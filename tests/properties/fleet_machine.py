"""The real scripts beside a small model, under any order of calls, time, lost replies and lost data."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from services.permits.model import LeaseTimes
from tests.lua.fleet import RawFleet, held, told
from tests.properties.fleet_model import Facts, FleetModel

if TYPE_CHECKING:
    from collections.abc import Sequence

    import redis

# Round numbers of minutes: real time, which also passes, never decides.
TIMES: Final = LeaseTimes(
    ttl_ms=6_000_000, tick_ms=1_000_000, provisional_ms=3_000_000, learning_ms=2_000_000
)
HOUR_MS: Final = 3_600_000
TENANTS: Final = ("acme", "other")
ENGINES: Final = ("e1", "e2")
PREFIXES: Final = ("p", "q")
GATEWAYS: Final = ("g1~a1", "g2~b2")
POOLS: Final = (
    "total",
    "cold",
    *(f"tenant:{tenant}" for tenant in TENANTS),
    *(f"engine:{name}" for name in ENGINES),
)

gateways = st.sampled_from(GATEWAYS)
tenants = st.sampled_from(TENANTS)
candidates = st.permutations(ENGINES).flatmap(lambda names: st.sampled_from([names[:1], names]))
prompts = st.lists(st.sampled_from(PREFIXES), max_size=2, unique=True)
small = st.integers(0, 4)


class Fleet(RuleBasedStateMachine):
    """The real scripts beside the model. Two gateways, each with what it believes to run."""

    def __init__(self, client: redis.Redis) -> None:
        super().__init__()
        client.flushall()
        self.fleet = RawFleet(client, times=TIMES)
        self.running: dict[str, dict[str, Facts]] = {gateway: {} for gateway in GATEWAYS}
        self.late_ticks: list[tuple[str, dict[str, Facts]]] = []
        # Every acquire that was ever sent: lease, tenant, engines, prefixes.
        self.sent: list[tuple[str, str, Sequence[str], Sequence[str]]] = []
        self.sequence = 0
        # Whether anything happened that may leave more live than a limit allows.
        self.fault = False

    @initialize(total=st.integers(1, 6), cold=st.integers(0, 4), quota=small, slots=st.integers(1, 4))
    def open(self, total: int, cold: int, quota: int, slots: int) -> None:
        limits = {"total": total, "cold": cold, "tenant_default": total, "tenant:acme": quota}
        limits |= dict.fromkeys((f"engine:{name}" for name in ENGINES), slots)
        self.model = FleetModel(times=TIMES, limits=limits)
        self.fleet.set_limits(limits, mode="seed", args={"learning_ms": 0})

    # --- one request's life

    @rule(gateway=gateways, tenant=tenants, engines=candidates, prefixes=prompts, lost=st.integers(0, 2))
    def acquire(self, gateway: str, tenant: str, engines: list[str], prefixes: list[str], lost: int) -> None:
        """Ask, and ask again under the same id for every answer that was lost on the way."""
        lease = self._new_lease(gateway)
        for _ in range(lost + 1):
            reply = self._ask(lease, tenant, engines, prefixes)
        self.sent.append((lease, tenant, engines, prefixes))
        if reply[0] == "GRANTED":
            assert reply[2] == self.model.places[lease].grant
            self.running[gateway][lease] = Facts(tenant, reply[3], reply[4], cold=reply[3] == "cold")

    @rule(gateway=gateways, tenant=tenants)
    def acquire_for_a_caller_who_left(self, gateway: str, tenant: str) -> None:
        """The answer never arrives: the id is released blind."""
        lease = self._new_lease(gateway)
        granted = self._ask(lease, tenant, ENGINES, ())[0] == "GRANTED"
        assert self._release(lease, tenant, "") == int(granted)

    @rule(gateway=gateways, tenant=tenants)
    def a_release_overtakes_its_acquire(self, gateway: str, tenant: str) -> None:
        """The blind release arrives first. What is granted to nobody then lasts as long as a first lease."""
        lease = self._new_lease(gateway)
        assert self._release(lease, tenant, "") == 0
        self._ask(lease, tenant, ENGINES, ())

    @precondition(lambda self: self.sent)
    @rule(data=st.data())
    def an_old_acquire_arrives_again(self, data: st.DataObject) -> None:
        """A copy from the network: of a request that runs, or that ended long ago."""
        self._ask(*data.draw(st.sampled_from(self.sent)))

    @precondition(lambda self: self.sent)
    @rule(data=st.data())
    def an_old_release_arrives_again(self, data: st.DataObject) -> None:
        lease, tenant, engines, _ = data.draw(st.sampled_from(self.sent))
        if not any(lease in running for running in self.running.values()):
            self._release(lease, tenant, "" if lease in self.model.places else engines[0])

    def _new_lease(self, gateway: str) -> str:
        self.sequence += 1
        return f"{gateway}~{self.sequence}"

    def _ask(self, lease: str, tenant: str, engines: Sequence[str], prefixes: Sequence[str]) -> list[Any]:
        holder = lease.rpartition("~")[0]
        reply = self.fleet.acquire(lease, tenant, engines=engines, prefixes=prefixes, holder=holder)
        assert [reply[0], *reply[3:6]] == self.model.acquire(lease, tenant, engines, prefixes, self.fleet.now)
        return reply

    def _release(self, lease: str, tenant: str, engine: str) -> int:
        returned: int = self.fleet.release(lease, tenant=tenant, engine=engine)[3]
        assert returned == self.model.release([lease], self.fleet.now)
        return returned

    @rule(gateway=gateways, most=st.integers(0, 8), lost=st.integers(0, 1))
    def tick(self, gateway: str, most: int, lost: int) -> None:
        """Renew, and again when the answer was lost; streams beyond `most` are hung, and left out."""
        believed = dict(list(self.running[gateway].items())[:most])
        for _ in range(lost + 1):
            self._tick(gateway, believed)
        self.late_ticks.append((gateway, believed))

    @rule(gateway=gateways, ms=st.sampled_from([TIMES.provisional_ms + HOUR_MS, TIMES.ttl_ms + HOUR_MS]))
    def a_gateway_sleeps_through_its_leases(self, gateway: str, ms: int) -> None:
        """Nobody has settled meanwhile: what ran out lies there when it wakes and ticks."""
        self.fleet.advance(ms)
        self._tick(gateway, dict(self.running[gateway]))

    @precondition(lambda self: self.late_ticks)
    @rule(data=st.data())
    def an_old_tick_arrives_late(self, data: st.DataObject) -> None:
        """What a reconnect can do: leases that were released since are ghosts until they run out."""
        self.fault = True
        self._tick(*data.draw(st.sampled_from(self.late_ticks)))

    def _tick(self, gateway: str, believed: dict[str, Facts]) -> None:
        facts = [
            held(lease, fact.tenant, class_=fact.class_, engine=fact.engine, cold=fact.cold)
            for lease, fact in believed.items()
        ]
        reply = told(self.fleet.tick(*facts, holder=gateway))
        missing, cut = self.model.tick(gateway, believed, self.fleet.now)
        assert (reply.missing, reply.cut) == (missing, cut)
        # A holder that came late finds its place given to somebody else.
        self.fault = self.fault or bool(missing)

    @rule(gateway=gateways, data=st.data())
    def first_token(self, gateway: str, data: st.DataObject) -> None:
        lease = self._any_of(gateway, data)
        if lease is not None:
            self.running[gateway][lease] = replace(self.running[gateway][lease], cold=False)
            reply = self.fleet.downgrade(lease, lease)
            assert reply[3] == self.model.downgrade([lease, lease], self.fleet.now)

    @rule(gateway=gateways, engines=candidates, data=st.data())
    def move(self, gateway: str, engines: list[str], data: st.DataObject) -> None:
        lease = self._any_of(gateway, data)
        if lease is not None:
            reply = self.fleet.move(lease, *engines)
            expected = self.model.move(lease, engines, self.fleet.now)
            assert [reply[0], *reply[3 : 2 + len(expected)]] == expected
            if reply[0] == "MOVED":
                # A tick that was written before the move would bring the old engine place back.
                self.late_ticks.clear()
                self.running[gateway][lease] = replace(self.running[gateway][lease], engine=reply[3])

    @rule(gateway=gateways, times=st.integers(1, 3), blind=st.booleans(), data=st.data())
    def end(self, gateway: str, times: int, blind: bool, data: st.DataObject) -> None:
        """Release, also twice, also without knowing the engine."""
        lease = self._any_of(gateway, data)
        if lease is not None:
            facts = self.running[gateway].pop(lease)
            for _ in range(times):
                engine = "" if blind and lease in self.model.places else facts.engine
                self._release(lease, facts.tenant, engine)

    @rule(gateway=gateways, data=st.data())
    def revoke(self, gateway: str, data: st.DataObject) -> None:
        """Somebody ends a request from afar; its gateway hears so in each tick until it has released it."""
        lease = self._any_of(gateway, data)
        if lease is not None:
            reply = self.fleet.revoke(lease)
            assert [reply[0], *reply[3:]] == self.model.revoke(lease)

    @rule(gateway=gateways)
    def drain(self, gateway: str) -> None:
        keys = {"draining": self.fleet.keys.draining}
        reply = self.fleet.run("drain", keys=keys, args={"holder": gateway, "who": "admin"})
        assert [reply[0], *reply[3:]] == self.model.drain(gateway, self.fleet.now)

    @rule(gateway=gateways)
    def kill(self, gateway: str) -> None:
        """The process dies and comes back as another holder with other leases."""
        self.running[gateway].clear()

    def _any_of(self, gateway: str, data: st.DataObject) -> str | None:
        """Return one that the gateway runs; where there is none it asks for one first."""
        if not self.running[gateway]:
            self.acquire(gateway, TENANTS[1], list(ENGINES), [], 0)
        leases = list(self.running[gateway])
        return data.draw(st.sampled_from(leases)) if leases else None

    # --- the others

    @rule()
    def reap(self) -> None:
        reply = self.fleet.reap(POOLS[2:], list(self.model.places))
        self.model.reap(self.fleet.now)
        told = reply[6::6]
        assert told == (self.model.reclaimed[-len(told) :] if told else [])

    @rule()
    def count(self) -> None:
        _, _, now, learning_ms, gateways, total, cold, waiting, *more = self.fleet.count(*POOLS)
        model = self.model
        assert learning_ms == max(0, model.learning_until - now)
        assert gateways == sum(until > now for until in model.sessions.values())
        assert (total, cold, waiting) == (model.live("total", now), model.live("cold", now), 0)
        assert more[: len(POOLS)] == [model.live(pool, now) for pool in POOLS]
        words = iter(more[len(POOLS) :])
        assert {field: int(limit) for field, limit in zip(words, words, strict=True)} == model.limits

    @rule()
    def inspect(self) -> None:
        """What people see of who runs; nobody stands in line here."""
        seen = [dict(word.split("=", 1) for word in line.split()) for line in self.fleet.inspect()]
        now = self.fleet.now
        assert {row["lease"]: (row["tenant"], row["class"], row["engine"]) for row in seen} == {
            lease: (place.tenant, place.class_, place.engine)
            for lease, place in self.model.places.items()
            if place.expiry > now
        }
        assert self.fleet.line() == []

    @rule(engine=st.sampled_from(ENGINES), prefix=st.sampled_from(PREFIXES), cached=st.booleans())
    def witness(self, engine: str, prefix: str, cached: bool) -> None:
        reply = self.fleet.witness(engine, {prefix: cached}, keep_ms=10**12)
        (self.model.evidence.add if cached else self.model.evidence.discard)((engine, prefix))
        assert reply[3] == sum(name == engine for name, _ in self.model.evidence)

    @rule(pool=st.sampled_from(["total", "cold", "tenant:acme", "engine:e1"]), limit=small)
    def change_a_limit(self, pool: str, limit: int) -> None:
        self.fault = self.fault or limit < self.model.limits[pool]
        self.fleet.set_limits({pool: limit})
        self.model.limits[pool] = limit

    @rule(ms=st.sampled_from([TIMES.tick_ms, TIMES.provisional_ms + HOUR_MS, TIMES.ttl_ms + HOUR_MS]))
    def time_passes(self, ms: int) -> None:
        """What ran out counts no more from that moment, and nobody has to settle it first."""
        self.fleet.advance(ms)
        self.count()

    @rule(hours=st.sampled_from([-1000, -1, 1, 1000]))
    def the_wall_clock_steps(self, hours: int) -> None:
        """`last` in the past is a step forward, a pause or an outage; in the future a step back."""
        before = self.fleet.now
        self.fleet.client.hincrby(self.fleet.keys.meta, "last", -hours * HOUR_MS)
        self.fleet.witness("e1", {})
        assert 0 <= self.fleet.now - before <= 2 * TIMES.tick_ms

    @rule(remembered=st.booleans())
    def redis_loses_everything(self, remembered: bool) -> None:
        """A gateway's memory, or the file, brings the limits back; nothing is granted while learning."""
        self.fault = True
        self.fleet.client.flushall()
        self.model.flush()
        self.fleet.set_limits(self.model.limits, mode="restore" if remembered else "seed", seen=1)
        self.model.learning_until = int(self.fleet.meta("learning_until"))

    # --- what holds after every step

    @invariant()
    def redis_holds_what_the_model_says(self) -> None:
        """The sets, the records and the event stream, in one round trip."""
        expected: dict[str, dict[str, int]] = {pool: {} for pool in POOLS}
        for lease, place in self.model.places.items():
            for pool in ("total", f"tenant:{place.tenant}", f"engine:{place.engine}"):
                expected[pool][lease] = place.expiry
            if place.cold_until:
                expected["cold"][lease] = place.cold_until
        keys = self.fleet.keys
        with self.fleet.client.pipeline(transaction=False) as pipe:
            for pool in POOLS:
                pipe.zrange(keys.pool(pool), 0, -1, withscores=True)
            pipe.keys(keys.lease("*"))
            pipe.xrange(keys.events)
            *sets, records, events = pipe.execute()
        assert dict(zip(POOLS, map(dict, sets), strict=True)) == expected
        assert {key.rpartition(":")[2] for key in records} == set(self.model.places)
        reclaimed = [fields["lease"] for _, fields in events if fields["kind"] == "reclaimed"]
        assert reclaimed == self.model.reclaimed

    @invariant()
    def every_grant_is_accounted_for_once(self) -> None:
        model = self.model
        assert model.added == len(model.places) + model.returned + len(model.reclaimed)

    @invariant()
    def without_a_fault_no_pool_is_over_its_limit(self) -> None:
        if not self.fault:
            now = self.fleet.now
            limits = {"tenant:other": self.model.limits["tenant_default"], **self.model.limits}
            for pool in POOLS:
                assert self.model.live(pool, now) <= limits[pool]

    def teardown(self) -> None:
        """One tick of every gateway after losing any key, and counts and records are those of what runs."""
        if not hasattr(self, "model"):
            return
        self.fleet.client.delete(
            *(self.fleet.keys.pool(pool) for pool in POOLS[self.sequence % len(POOLS) :])
        )
        truth = {lease: fact for running in self.running.values() for lease, fact in running.items()}
        self.fleet.client.delete("-", *map(self.fleet.keys.lease, truth))
        self.fleet.expire_all()
        for gateway, running in self.running.items():
            self._plain_tick(gateway, running)
        self.fleet.reap(POOLS[2:])
        for pool in POOLS:
            assert self.fleet.live(pool) == self._truly_in(pool)
        seen = [dict(word.split("=", 1) for word in line.split()) for line in self.fleet.inspect()]
        assert {row["lease"]: (row["request_id"], row["tenant"], row["class"]) for row in seen} == {
            lease: (f"req-{lease}", fact.tenant, fact.class_) for lease, fact in truth.items()
        }
        self._everything_ends()

    def _everything_ends(self) -> None:
        """What is left when all is released and settled is what people set, and history."""
        for running in self.running.values():
            for lease, fact in running.items():
                self.fleet.release(lease, tenant=fact.tenant, engine=fact.engine)
        self.fleet.expire_all()
        while self.fleet.reap(POOLS[2:], list(self.model.places))[3]:
            pass
        left = {key.rpartition("}:")[2].partition(":")[0] for key in self.fleet.client.scan_iter("*")}
        assert left <= {"meta", "limits", "events", "reported", "gateways", "draining", "evidence"}

    def _plain_tick(self, gateway: str, running: dict[str, Facts]) -> None:
        rows = [
            held(lease, fact.tenant, class_=fact.class_, engine=fact.engine, cold=fact.cold)
            for lease, fact in running.items()
        ]
        self.fleet.tick(*rows, holder=gateway)

    def _truly_in(self, pool: str) -> set[str]:
        return {
            lease
            for running in self.running.values()
            for lease, fact in running.items()
            if pool in ("total", f"tenant:{fact.tenant}", f"engine:{fact.engine}")
            or (pool == "cold" and fact.cold)
        }
