"""Redis CPU of the permit scripts, at few and at many live leases."""

import asyncio
import statistics
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.cpu import cpu_s
from services.permits.connect import Client, connect
from services.permits.model import Demand, Gone, Held
from services.permits.store import LEASES_PER_TICK_MAX, Store
from tests.support.redis_server import RedisServer

FLEET: Final = "bench"
PLENTY: Final = 1_000_000
PAIRS: Final = 4_000
CALLERS: Final = 8
ROUNDS: Final = 5
TENANTS: Final = 20
REPEATS: Final = 300


@dataclass(frozen=True, slots=True)
class Cost:
    """Microseconds of Redis CPU, medians over the rounds."""

    live: int
    pair_script_us: float
    pair_process_us: float
    tick_per_lease_us: float


def measure(sizes: tuple[int, ...] = (100, 1_000, 10_000)) -> list[Cost]:
    """Measure at each number of live leases, on a server of its own."""
    with tempfile.TemporaryDirectory() as folder:
        server = RedisServer(Path(folder)).start()
        try:
            return [asyncio.run(_measure(server, live)) for live in sizes]
        finally:
            server.stop()


@dataclass(frozen=True, slots=True)
class HandoffCost:
    """Microseconds of Redis CPU of one release, medians over REPEATS."""

    waiters: int
    plain_us: float
    handoff_us: float


def measure_handoff(waiters: int = 2_000, tenants: int = 100) -> HandoffCost:
    """Measure a release that hands its place to one of many waiters, next to one without a line."""
    with tempfile.TemporaryDirectory() as folder:
        server = RedisServer(Path(folder)).start()
        try:
            return asyncio.run(_handed_on(server, waiters, tenants))
        finally:
            server.stop()


async def _handed_on(server: RedisServer, waiters: int, tenants: int) -> HandoffCost:
    client = connect(server.unix_url, max_connections=2)
    store = Store(client)
    limits = {
        "total": 1,
        "cold": 1,
        "tenant_default": PLENTY,
        "line_max": PLENTY,
        "line_max_per_tenant": PLENTY,
    }
    try:
        await store.set_limits(FLEET, limits, who="bench", learning_ms=0)
        await store.tick(FLEET, holder="w~0", leases=[], news=frozenset())

        async def ask(n: int, patience_ms: int) -> Gone:
            tenant = f"t{n % tenants}"
            demand = Demand(
                fleet=FLEET, tenant=tenant, request_id="0" * 32, engines=("e1",), patience_ms=patience_ms
            )
            await store.acquire(demand, lease=f"w~0~{n}", holder="w~0")
            return Gone(f"w~0~{n}", tenant, "e1")

        plain = [await _released(client, store, await ask(n, 0)) for n in range(REPEATS)]
        held = await ask(REPEATS, 0)
        for n in range(REPEATS + 1, REPEATS + 1 + waiters):
            await ask(n, 3_600_000)
        handed_on = []
        for _ in range(REPEATS):
            handed_on.append(await _released(client, store, held))
            lease = str((await client.zrange(store.keys(FLEET).total, 0, 0))[0])
            held = Gone(lease, f"t{int(lease.rpartition('~')[2]) % tenants}", "e1")
    finally:
        await client.aclose()
    return HandoffCost(waiters, statistics.median(plain), statistics.median(handed_on))


async def _released(client: Client, store: Store, gone: Gone) -> float:
    began_us = await _script_us(client)
    await store.release(FLEET, [gone])
    return await _script_us(client) - began_us


async def _measure(server: RedisServer, live: int) -> Cost:
    client = connect(server.unix_url, max_connections=CALLERS)
    store = Store(client)
    try:
        await client.flushall()
        limits = {"total": PLENTY, "cold": PLENTY, "tenant_default": PLENTY}
        await store.set_limits(FLEET, limits, who="bench", learning_ms=0)
        tick_us = [await _ticked(client, store, live) for _ in range(ROUNDS)]
        pairs = [await _paired(client, store, server.pid, round_) for round_ in range(ROUNDS)]
    finally:
        await client.aclose()
    script_us, process_us = zip(*pairs, strict=True)
    return Cost(live, *map(statistics.median, (script_us, process_us, tick_us)))


async def _ticked(client: Client, store: Store, live: int) -> float:
    """Renew `live` leases once; return the script's time per lease."""
    leases = [
        Held(
            lease=f"holder~0~{n}",
            request_id="0" * 32,
            tenant=f"t{n % TENANTS}",
            class_="cold",
            engine="e1",
            phase="decode",
            acquired_at=1,
            cold=True,
        )
        for n in range(live)
    ]
    began_us = await _script_us(client)
    for batch in _batches(leases):
        await store.tick(FLEET, holder="holder~0", leases=batch, news=frozenset())
    return (await _script_us(client) - began_us) / live


def _batches(leases: list[Held]) -> Iterator[list[Held]]:
    for n in range(0, len(leases), LEASES_PER_TICK_MAX):
        yield leases[n : n + LEASES_PER_TICK_MAX]


async def _paired(client: Client, store: Store, pid: int, round_: int) -> tuple[float, float]:
    """Acquire and release PAIRS times; return (script, whole process) microseconds per pair."""
    numbers = iter(range(PAIRS))

    async def call() -> None:
        for n in numbers:
            tenant, lease = f"t{n % TENANTS}", f"caller~{round_}~{n}"
            demand = Demand(fleet=FLEET, tenant=tenant, request_id="0" * 32, engines=("e1",))
            await store.acquire(demand, lease=lease, holder="caller~0")
            await store.release(FLEET, [Gone(lease, tenant, "e1")])

    script_us, process_s = await _script_us(client), cpu_s(pid)
    await asyncio.gather(*(call() for _ in range(CALLERS)))
    used_s = cpu_s(pid) - process_s
    return (await _script_us(client) - script_us) / PAIRS, used_s * 1e6 / PAIRS


async def _script_us(client: Client) -> float:
    stats = await client.info("commandstats")
    return float(stats.get("cmdstat_evalsha", {}).get("usec", 0))
