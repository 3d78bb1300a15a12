"""Gates on a real Redis: what most tests of the library begin with, and what they look at."""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

import redis

from services.permits import Demand, FleetPolicy, LeaseTimes, Refused, open_gate
from services.permits.connect import connect
from services.permits.events import Silent
from services.permits.keys import FleetKeys
from services.permits.store import Store

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from services.permits import Gate, Permit
    from services.permits.events import Cause, Listener

TIMES: Final = LeaseTimes(ttl_ms=3000, tick_ms=500, provisional_ms=2000, learning_ms=600)
LIMITS: Final = {"total": 4, "cold": 4, "tenant_default": 4}
KEYS: Final = FleetKeys("tenure", "f")

_numbers = itertools.count(1)


def demand(tenant: str = "acme", *, engines: tuple[str, ...] = ("e1",), **more: Any) -> Demand:
    return Demand(fleet="f", tenant=tenant, request_id=f"r{next(_numbers)}", engines=engines, **more)


class Heard(Silent):
    """A listener that remembers. Called from two threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.outcomes: Counter[str] = Counter()
        self.scripts: Counter[str] = Counter()
        self.ticks: list[float] = []
        self.causes: Counter[str] = Counter()
        self.up: list[bool] = []
        self.fleets: set[str] = set()
        self.longest_s: dict[str, float] = {}

    def admission(self, fleet: str, outcome: str) -> None:
        with self._lock:
            self.outcomes[outcome] += 1
            self.fleets.add(fleet)

    def script(self, verb: str, seconds: float) -> None:
        with self._lock:
            self.scripts[verb] += 1
            self.longest_s[verb] = max(seconds, self.longest_s.get(verb, 0.0))

    def tick(self, fleet: str, lateness_s: float) -> None:
        with self._lock:
            self.ticks.append(lateness_s)
            self.fleets.add(fleet)

    def reasserted(self, fleet: str, cause: Cause, count: int) -> None:
        with self._lock:
            self.causes[cause] += count
            self.fleets.add(fleet)

    def redis_up(self, *, up: bool) -> None:
        with self._lock:
            self.up.append(up)


@asynccontextmanager
async def a_gate(
    url: str,
    name: str = "g1",
    *,
    limits: Mapping[str, int] = LIMITS,
    times: LeaseTimes = TIMES,
    keys: Mapping[str, str] | None = None,
    listener: Listener | None = None,
    **policy: Any,
) -> AsyncIterator[Gate]:
    """Open a gate on fleet `f`; `policy` is that of FleetPolicy."""
    async with open_gate(
        redis_url=url,
        name=name,
        fleets={"f": FleetPolicy(limits=limits, **policy)},
        times=times,
        keys=keys,
        listener=listener,
    ) as gate:
        yield gate


async def begin(url: str, limits: Mapping[str, int] = LIMITS) -> None:
    """Seed the fleet as one that is known to be new: it starts without learning."""
    async with a_store(url) as store:
        await store.set_limits("f", limits, seed=True, who="test", learning_ms=0)


@asynccontextmanager
async def a_store(url: str) -> AsyncIterator[Store]:
    client = connect(url)
    try:
        yield Store(client, times=TIMES)
    finally:
        await client.aclose()


async def granted_of(gate: Gate, asked: int, **what: Any) -> int:
    """Ask for `asked` permits, give all back, and return how many were granted: a full pool's true size."""
    permits: list[Permit] = []
    try:
        for _ in range(asked):
            try:
                permits.append(await gate.take(demand(**what)))
            except Refused:
                continue
        return len(permits)
    finally:
        for permit in permits:
            permit.close()


class Seen:
    """Redis as an engineer sees it, on a connection of its own."""

    def __init__(self, client: redis.Redis) -> None:
        self.client: Any = client

    def advance(self, ms: int) -> None:
        """Let time pass on the lease clock."""
        self.client.hincrby(KEYS.meta, "clock", ms)

    def live(self, pool: str = "total") -> set[str]:
        now = self.client.hget(KEYS.meta, "clock") or 0
        return set(self.client.zrangebyscore(KEYS.pool(pool), f"({now}", "+inf"))

    def places(self) -> dict[str, set[str]]:
        """Return every pool that has a member at all."""
        return {key: set(self.client.zrange(key, 0, -1)) for key in self.client.keys(KEYS.pool("*"))}

    def nothing_left(self) -> bool:
        return not self.places() and not self.client.keys(KEYS.lease("*"))

    def limits(self) -> dict[str, str]:
        found: dict[str, str] = self.client.hgetall(KEYS.limits)
        return found
