"""Redis CPU of the permit scripts: flat in leases and tenants, and of a release that hands its place on.

What is measured is the CPU time of the server's main thread, reading and answering included, as the kernel
counts it, while a burst of calls lies in its socket: what a call costs a Redis that is busy. The rows of a
table take turns, burst by burst, and each figure is a median: a machine whose speed drifts changes them all.
By leases and tenants, the first acquires of a turn find the caches full of the row before it, and are not
counted: a Redis that is busy has its own in them. Released one by one is what a tick has renewed:
most requests last so long.
"""

import asyncio
import itertools
import os
import statistics
import tempfile
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from bench.cpu import keep_apart, main_thread_us
from services.permits.connect import Client, connect
from services.permits.model import Demand, Gone, Granted, Held, LeaseTimes, Queued
from services.permits.store import LEASES_PER_TICK_MAX, Store
from tests.support.redis_server import RedisServer

FLEET: Final = "bench"
HOLDER: Final = "g1~6955ec72"
PLENTY: Final = 1_000_000
BURST: Final = 100
GATHERED: Final = 10
ROUNDS: Final = 30
# How often the servers are started anew: where the memory of one lies is a matter of chance while it runs.
SERVERS: Final = 3
# No lease runs out while the machine is slow; as by default a tick gives more than an acquire.
TIMES: Final = LeaseTimes(ttl_ms=3_600_000, tick_ms=60_000, provisional_ms=1_800_000, learning_ms=1_000)
PATIENCE_MS: Final = 3_600_000

# Live leases and tenants of each row.
SIZES: Final = ((100, 20), (1_000, 20), (10_000, 20), (1_000, 1), (1_000, 100), (1_000, 1_000))
# Waiters and tenants of each row; as many leases are live as a burst releases, and four times as many.
LINES: Final = ((1, 1), (1_000, 100), (2_000, 1), (2_000, 100), (2_000, 1_000))
LIVE: Final = 4 * BURST


@dataclass(frozen=True, slots=True)
class Cost:
    """Microseconds of Redis CPU of one row. A `gathered` release is one of the leases of a call for ten."""

    live: int
    tenants: int
    acquire_us: float
    release_us: float
    gathered_us: float
    tick_per_lease_us: float


@dataclass(frozen=True, slots=True)
class HandoffCost:
    """Microseconds of Redis CPU of a release for one lease: without a line, and handing its place on."""

    waiters: int
    tenants: int
    plain_us: float
    handoff_us: float
    joining_us: float


@dataclass
class Bed:
    """One server with one fleet. `live` are the leases that are held, with their tenants."""

    server: RedisServer
    client: Client
    store: Store
    tenants: int
    live: dict[str, str] = field(default_factory=dict)
    waiting: dict[str, str] = field(default_factory=dict)
    numbers: Iterator[int] = field(default_factory=itertools.count)
    figures: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    async def timed(self, name: str, calls: Iterable[Awaitable[Any]], per: int) -> list[Any]:
        """Make the calls in one burst; note the CPU that they took, divided by `per`."""
        began_us = main_thread_us(self.server.pid)
        answers = await asyncio.gather(*calls)
        self.figures[name].append((main_thread_us(self.server.pid) - began_us) / per)
        return answers

    async def acquire(self, count: int, name: str = "acquire", patience_ms: int = 0) -> list[str]:
        """Take, or stand in line for, `count` permits; each tenant has its turn."""
        demands = []
        for number in itertools.islice(self.numbers, count):
            # As a gateway makes them: numbers that follow each other crowd Lua's table of strings.
            request_id = os.urandom(16).hex()
            demands.append(
                Demand(
                    fleet=FLEET,
                    tenant=f"t{number % self.tenants}",
                    request_id=request_id,
                    engines=("e1",),
                    patience_ms=patience_ms,
                )
            )
        calls = (
            self.store.acquire(demand, lease=f"{HOLDER}~{demand.request_id}", holder=HOLDER)
            for demand in demands
        )
        answers = await self.timed(name, calls, count)
        wanted = Queued if patience_ms else Granted
        _check(all(isinstance(answer, wanted) for answer in answers), answers)
        book = self.waiting if patience_ms else self.live
        book.update((f"{HOLDER}~{demand.request_id}", demand.tenant) for demand in demands)
        return [f"{HOLDER}~{demand.request_id}" for demand in demands]

    async def release(self, leases: Sequence[str], name: str, gathered: int = 1) -> None:
        """Give the leases back, `gathered` of them in each call."""
        gone = [Gone(lease, self.live.pop(lease), "e1") for lease in leases]
        calls = (self.store.release(FLEET, gone[n : n + gathered]) for n in range(0, len(gone), gathered))
        answers = await self.timed(name, calls, len(gone))
        _check(answers == [gathered] * (len(gone) // gathered), answers)

    async def tick(self, name: str = "tick") -> None:
        """Renew all that is live."""
        held = [
            Held(
                lease=lease,
                request_id=lease.rpartition("~")[2],
                tenant=tenant,
                class_="cold",
                engine="e1",
                phase="decode",
                acquired_at=1_795_980_715_306,
                cold=True,
            )
            for lease, tenant in self.live.items()
        ]
        calls = (
            self.store.tick(FLEET, holder=HOLDER, leases=held[n : n + LEASES_PER_TICK_MAX], news=frozenset())
            for n in range(0, max(1, len(held)), LEASES_PER_TICK_MAX)
        )
        await self.timed(name, calls, max(1, len(held)))

    async def learn_grants(self) -> None:
        """Find out which waiters were granted: here nobody listens to wake-ups."""
        for lease in await self.store.lease_ids(FLEET):
            if lease in self.waiting:
                self.live[lease] = self.waiting.pop(lease)

    def median(self, name: str) -> float:
        return statistics.median(self.figures[name])


def _check(as_meant: bool, answers: object) -> None:  # noqa: FBT001  (read as an assertion)
    """A figure of calls that did something else would be no figure."""
    if not as_meant:
        raise RuntimeError(f"the calls were answered otherwise than meant: {answers}")


def measure(sizes: Sequence[tuple[int, int]] = SIZES) -> list[Cost]:
    """Measure at each number of live leases and tenants, on a server for each."""
    return asyncio.run(_measure(sizes))


def measure_handoff(lines: Sequence[tuple[int, int]] = LINES) -> list[HandoffCost]:
    """Measure releases that hand their places on, next to releases without a line."""
    return asyncio.run(_measure_handoff(lines))


@asynccontextmanager
async def _bed(tenants: int, **limits: int) -> AsyncIterator[Bed]:
    """Start a server with a fleet that is open."""
    fields = {"total": PLENTY, "cold": PLENTY, "tenant_default": PLENTY, "engine:e1": PLENTY}
    fields |= {"line_max": PLENTY, "line_max_per_tenant": PLENTY, **limits}
    with tempfile.TemporaryDirectory() as folder:
        server = RedisServer(Path(folder)).start()
        keep_apart(server.pid)
        client = connect(server.unix_url, max_connections=2, timeout_s=60)
        try:
            bed = Bed(server, client, Store(client, times=TIMES), tenants)
            await bed.store.set_limits(FLEET, fields, who="bench", learning_ms=0)
            await bed.tick()
            yield bed
        finally:
            await client.aclose()
            server.stop()


async def _fill(bed: Bed, live: int) -> None:
    for first in range(0, live, BURST):
        await bed.acquire(min(BURST, live - first), "filling")
    await bed.tick("filling")


async def _measure(sizes: Sequence[tuple[int, int]]) -> list[Cost]:
    figures: list[defaultdict[str, list[float]]] = [defaultdict(list) for _ in sizes]
    for _ in range(SERVERS):
        async with AsyncExitStack() as stack:
            beds = [await stack.enter_async_context(_bed(tenants)) for _, tenants in sizes]
            for (live, _), bed, noted in zip(sizes, beds, figures, strict=True):
                await _fill(bed, live)
                bed.figures = noted
            for _ in range(ROUNDS):
                for bed in beds:
                    await _turn(bed)
    return [
        Cost(
            live,
            tenants,
            *(statistics.median(noted[name]) for name in ("acquire", "release", "gathered", "tick")),
        )
        for (live, tenants), noted in zip(sizes, figures, strict=True)
    ]


async def _turn(bed: Bed) -> None:
    """Let a burst of requests come, be renewed and end, each time with caches as a busy server has them."""
    await _warm(bed)
    leases = await bed.acquire(BURST)
    await bed.tick()
    await _warm(bed)
    await bed.release(leases, "release")


async def _warm(bed: Bed) -> None:
    await bed.release(await bed.acquire(BURST, "warming"), "gathered", GATHERED)


async def _measure_handoff(lines: Sequence[tuple[int, int]]) -> list[HandoffCost]:
    async with AsyncExitStack() as stack:
        rows = []
        for waiters, tenants in lines:
            plain = await stack.enter_async_context(_bed(tenants))
            full = await stack.enter_async_context(_bed(tenants, total=LIVE))
            for bed in (plain, full):
                await _fill(bed, LIVE)
            for n in range(0, waiters, BURST):
                await full.acquire(min(BURST, waiters - n), "filling", PATIENCE_MS)
            rows.append((waiters, plain, full))
        for _ in range(ROUNDS):
            for waiters, plain, full in rows:
                burst = min(BURST, waiters)
                await plain.tick()
                await full.tick()
                await plain.release(list(plain.live)[:burst], "release")
                await plain.acquire(burst)
                await full.release(list(full.live)[:burst], "handoff")
                await full.learn_grants()
                await full.acquire(burst, "joining", PATIENCE_MS)
        return [
            HandoffCost(
                waiters,
                full.tenants,
                plain.median("release"),
                full.median("handoff"),
                full.median("joining"),
            )
            for waiters, plain, full in rows
        ]
