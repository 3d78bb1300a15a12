"""What breaks in a soak: drawn from one seed, one or two at a time, each undone before the next ones."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import redis

from tests.nodes.places import TOTAL
from tests.soak.world import LEASE, OLDEST, REAPERS, REPLICAS, World
from tests.support.client import HungUpError
from tests.support.history import GONE

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from tests.soak.book import Book
    from tests.soak.brain import Mood

TTL_S: Final = LEASE["ttl_ms"] / 1000
MORTAL: Final = [name for name in REPLICAS if name != OLDEST]
# How often each fault is drawn.
WEIGHTS: Final = {
    "kill": 4,
    "sigstop": 5,
    "blackhole": 3,
    "one_way": 3,
    "stall": 3,
    "refuse": 2,
    "delay": 3,
    "reset": 3,
    "flushall": 3,
    "script_flush": 2,
    "redis_restart": 3,
    "client_kill": 2,
    "pubsub_kill": 3,
    "redis_sleep": 3,
    "client_pause": 2,
    "oom": 2,
    "engine_crash": 3,
    "engine_errors": 2,
    "engine_stall": 2,
    "reaper_kill": 2,
    "drain": 2,
}
# How often two come at once.
PAIRS: Final = 0.25
# What a process sent with its last breath has arrived so long after.
IN_FLIGHT_S: Final = 0.05
# How long Redis goes without what it needs.
OUTAGE_S: Final = (0.2, 2.5)
ACCEPTED: Final = 202


@dataclass
class Injector:
    """Injects faults until cancelled; `pause` returns when none is left."""

    world: World
    book: Book
    rng: random.Random
    gap_s: tuple[float, float]
    injected: Counter[str] = field(default_factory=Counter)
    _going: asyncio.Event = field(default_factory=asyncio.Event)
    _idle: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        """Be idle before the first fault."""
        self._idle.set()

    async def run(self) -> None:
        """Draw, inject, undo, wait."""
        self._going.set()
        while True:
            await self._sleep(self.rng.uniform(*self.gap_s))
            first, second = self._draw(), self._draw()
            targets = self.rng.sample(MORTAL if {first, second} & GONE else REPLICAS, 2)
            chosen = [(first, targets[0])]
            if self.rng.random() < PAIRS and first != second:
                chosen.append((second, targets[1]))
            self._idle.clear()
            await asyncio.gather(*(self.inject(*one) for one in chosen))
            self._idle.set()

    async def pause(self) -> None:
        """Stop after the faults under way, and return when they are undone."""
        self._going.clear()
        await self._idle.wait()

    def resume(self) -> None:
        """Go on."""
        self._going.set()

    async def _sleep(self, seconds: float) -> None:
        self._idle.set()
        await asyncio.sleep(seconds)
        await self._going.wait()

    def _draw(self) -> str:
        return self.rng.choices([*WEIGHTS], [*WEIGHTS.values()])[0]

    async def inject(self, kind: str, target: str | None = None) -> None:
        """Inject one fault, against one gateway if it is that kind, and return when it is undone."""
        target = target or self.rng.choice(MORTAL if kind in GONE else REPLICAS)
        rng = random.Random(self.rng.random())
        self.injected[kind] += 1
        act: Callable[[str, random.Random], Awaitable[None]] = getattr(self, f"_{kind}")
        await act(target, rng)

    @contextmanager
    def _noted(self, kind: str, target: str | None = None) -> Iterator[None]:
        fault = self.book.begin(kind, target)
        try:
            yield
        finally:
            fault.end_s = time.monotonic()

    # Gateways and reapers.

    async def _kill(self, target: str, rng: random.Random) -> None:
        with self._noted("kill", target):
            self.world.gateways[target].kill9()
            await asyncio.to_thread(self._note_killed, target)
            await asyncio.sleep(rng.uniform(0, 3))
            await self.world.start_gateway(target)

    def _note_killed(self, name: str) -> None:
        """Read what the dead one held; nobody adds to it any more."""
        at_s = time.monotonic()
        time.sleep(IN_FLIGHT_S)
        try:
            leases = self.world.redis.cli("ZRANGE", TOTAL, 0, -1)
        except redis.RedisError:
            return
        held: dict[str, list[str]] = {}
        for lease in leases:
            if lease.startswith(f"{name}~"):
                held.setdefault(lease.rpartition("~")[0], []).append(lease)
        for holder, mine in held.items():
            self.book.chapter.killed.setdefault(holder, (at_s, mine))

    async def _sigstop(self, target: str, rng: random.Random) -> None:
        process = self.world.gateways[target]
        with self._noted("sigstop", target):
            process.sigstop()
            await asyncio.sleep(rng.uniform(0.3, 2) * TTL_S)
            process.sigcont()

    async def _drain(self, target: str, rng: random.Random) -> None:
        process = self.world.gateways[target]
        with self._noted("drain", target):
            await self._ask_to_drain(target, rng)
            status = await process.wait(60)
            # Drained on the administrator's word, it may be on its way out when the signal comes.
            if status and not (
                status == -signal.SIGTERM and '"event":"stopped"' in process.log_text()[-400:]
            ):
                self.book.find("drain", f"{target} ended with {status}")
            await process.end()
            await self.world.start_gateway(target)

    async def _ask_to_drain(self, target: str, rng: random.Random) -> None:
        """Ask by a signal, or as an administrator from another replica where that one answers."""
        if rng.random() < 0.5:
            try:
                status, _ = await self.world.admin(OLDEST).call("POST", f"/gateways/{target}/drain")
            except (OSError, HungUpError, TimeoutError):
                status = 0
            if status == ACCEPTED:
                await asyncio.sleep(2 * LEASE["tick_ms"] / 1000)
        self.world.gateways[target].sigterm()

    async def _reaper_kill(self, _target: str, rng: random.Random) -> None:
        name = rng.choice(REAPERS)
        with self._noted("reaper_kill", name):
            self.world.reapers[name].kill9()
            await asyncio.sleep(rng.uniform(0, 2))
            await self.world.start_reaper(name)

    # The network between one gateway and Redis.

    async def _blackhole(self, target: str, rng: random.Random) -> None:
        await self._away(target, rng, "blackhole", self.world.shims[target].blackhole)

    async def _stall(self, target: str, rng: random.Random) -> None:
        await self._away(target, rng, "stall", self.world.shims[target].stall)

    async def _refuse(self, target: str, rng: random.Random) -> None:
        await self._away(target, rng, "refuse", self.world.shims[target].refuse)

    async def _one_way(self, target: str, rng: random.Random) -> None:
        """Let Redis carry out everything, and the gateway hear of nothing."""
        shim = self.world.shims[target]
        await self._away(target, rng, "one_way", lambda: shim.drop_replies(bool, 1_000_000, harm="hang"))

    async def _delay(self, target: str, rng: random.Random) -> None:
        shim, delay_ms = self.world.shims[target], rng.choice([20, 100, 400, 900])
        await self._away(target, rng, "delay", lambda: shim.delay(delay_ms))

    async def _reset(self, target: str, _rng: random.Random) -> None:
        with self._noted("reset", target):
            await asyncio.to_thread(self.world.shims[target].reset)

    async def _away(self, target: str, rng: random.Random, kind: str, break_it: Callable[[], object]) -> None:
        with self._noted(kind, target):
            await asyncio.to_thread(break_it)
            await asyncio.sleep(rng.uniform(0.3, 2) * TTL_S)
            await asyncio.to_thread(self.world.shims[target].healthy)

    # Redis itself.

    async def _flushall(self, _target: str, _rng: random.Random) -> None:
        with self._noted("flushall"):
            await self._tell_redis("FLUSHALL")

    async def _script_flush(self, _target: str, _rng: random.Random) -> None:
        with self._noted("script_flush"):
            await self._tell_redis("SCRIPT", "FLUSH")

    async def _client_kill(self, _target: str, _rng: random.Random) -> None:
        with self._noted("client_kill"):
            await self._tell_redis("CLIENT", "KILL", "TYPE", "normal")

    async def _pubsub_kill(self, _target: str, _rng: random.Random) -> None:
        with self._noted("pubsub_kill"):
            await self._tell_redis("CLIENT", "KILL", "TYPE", "pubsub")

    async def _redis_sleep(self, _target: str, rng: random.Random) -> None:
        with self._noted("redis_sleep"):
            await self._tell_redis("DEBUG", "SLEEP", f"{rng.uniform(*OUTAGE_S):.2f}")

    async def _client_pause(self, _target: str, rng: random.Random) -> None:
        seconds = rng.uniform(*OUTAGE_S)
        with self._noted("client_pause"):
            await self._tell_redis("CLIENT", "PAUSE", round(seconds * 1000), rng.choice(["ALL", "WRITE"]))
            await asyncio.sleep(seconds)

    async def _oom(self, _target: str, rng: random.Random) -> None:
        with self._noted("oom"):
            await self._tell_redis("CONFIG", "SET", "maxmemory", "1")
            await asyncio.sleep(rng.uniform(*OUTAGE_S))
            await self._tell_redis("CONFIG", "SET", "maxmemory", "0")

    async def _redis_restart(self, _target: str, rng: random.Random) -> None:
        with self._noted("redis_restart"):
            await asyncio.to_thread(self.world.redis.stop)
            await asyncio.sleep(rng.uniform(*OUTAGE_S))
            await asyncio.to_thread(self.world.redis.start)

    async def _tell_redis(self, *words: str | float) -> None:
        """Send one command; a Redis that another fault holds down or asleep is told until it hears."""
        while True:
            try:
                await asyncio.to_thread(self.world.redis.cli, *words)
            except (redis.ConnectionError, redis.TimeoutError):
                await asyncio.sleep(0.05)
            else:
                return

    # The engine.

    async def _engine_crash(self, _target: str, rng: random.Random) -> None:
        engine, brain = self.world.engine, self.world.brain
        with self._noted("engine_crash"):
            await asyncio.to_thread(engine.refuse)
            await asyncio.to_thread(engine.hang_up)
            brain.crash()
            await asyncio.sleep(rng.uniform(*OUTAGE_S))
            await asyncio.to_thread(engine.listen)

    async def _engine_errors(self, _target: str, rng: random.Random) -> None:
        await self._mood("engine_errors", "errors", rng.uniform(*OUTAGE_S))

    async def _engine_stall(self, _target: str, rng: random.Random) -> None:
        await self._mood("engine_stall", "stalled", rng.uniform(0.5, 5))

    async def _mood(self, kind: str, mood: Mood, seconds: float) -> None:
        with self._noted(kind):
            self.world.brain.mood = mood
            await asyncio.sleep(seconds)
            self.world.brain.mood = "well"
