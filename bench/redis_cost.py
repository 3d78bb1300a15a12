"""Redis CPU of the permit scripts, at few and at many live leases."""

import asyncio
import statistics
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from redis.asyncio import Redis

from bench.cpu import cpu_s
from services.permits.connect import connect
from services.permits.model import Demand, Gone, Held
from services.permits.store import LEASES_PER_TICK_MAX, Store
from tests.support.redis_server import RedisServer

FLEET: Final = "bench"
PLENTY: Final = 1_000_000
PAIRS: Final = 4_000
CALLERS: Final = 8
ROUNDS: Final = 5
TENANTS: Final = 20


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


async def _ticked(client: Redis, store: Store, live: int) -> float:
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


async def _paired(client: Redis, store: Store, pid: int, round_: int) -> tuple[float, float]:
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


async def _script_us(client: Redis) -> float:
    stats = await client.info("commandstats")
    return float(stats.get("cmdstat_evalsha", {}).get("usec", 0))
