"""A large fleet on one Redis, and many fleets on a Cluster, by the real library without HTTP."""

import asyncio
import itertools
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Final, cast

import msgspec

from bench.cpu import cpu_s, keep_apart, main_thread_us
from bench.scale_worker import ENGINES, Answer, Order, Plan
from bench.stats import quantile
from services.permits.connect import connect
from services.permits.model import LeaseTimes
from services.permits.store import Store
from tests.support.cluster import SHARDS, Cluster
from tests.support.processes import ROOT, clean_environment
from tests.support.redis_server import RedisServer

GATEWAYS: Final = 100
LEASES: Final = 500
# On a Cluster the library spends more on each call, and the machine is the same: a fifth of the leases.
CLUSTER_PART: Final = 5
FLEETS_PER_SHARD: Final = 4
PROCESSES: Final = 4
RATES: Final = (0.0, 250.0, 500.0, 1_000.0, 2_000.0, 4_000.0, 8_000.0)
STEP_S: Final = 6.0
WARM_S: Final = 3.0
# How long gateways may take to give back what they hold.
END_S: Final = 20.0
# Beyond that the step is not what was asked for.
REACHED: Final = 0.9
PLENTY: Final = 10_000_000
LIMITS: Final = {
    "total": PLENTY,
    "cold": PLENTY,
    "tenant_default": PLENTY,
    "line_max": 1_000,
    "line_max_per_tenant": 100,
    **{f"engine:{name}": PLENTY for name in ENGINES},
}


@dataclass(frozen=True, slots=True)
class Step:
    """Some seconds at one rate.

    redis_share    of a core, the busiest server's main thread
    gateway_share  of a core, the processes with the gateways, together
    """

    offered_per_s: float
    admitted_per_s: float
    redis_share: float
    gateway_share: float
    acquire_p99_ms: float
    late_p99_ms: float

    @property
    def is_reached(self) -> bool:
        """Whether as many were admitted as were offered, and ticks came in time."""
        in_time = self.late_p99_ms < LeaseTimes().tick_ms / 2
        return self.admitted_per_s >= REACHED * self.offered_per_s and in_time


@dataclass(frozen=True, slots=True)
class Scale:
    """One set of gateways, and its steps; the last one was perhaps not reached."""

    name: str
    gateways: int
    leases: int
    fleets: int
    steps: list[Step]

    @property
    def admission_us(self) -> float:
        """Return the microseconds of Redis CPU of one admission more, from the busiest step that was reached.

        Of the busiest server: on a Cluster only its share of them reaches it. 0 when no step was reached.
        """
        idle, *more = self.steps
        reached = [step for step in more if step.is_reached]
        if not reached:
            return 0.0
        busy = reached[-1]
        return (busy.redis_share - idle.redis_share) / busy.admitted_per_s * 1e6


@dataclass(frozen=True, slots=True)
class World:
    """Where the gateways go, what they serve, and whose CPU is Redis's."""

    name: str
    redis_url: str
    redis_pids: Sequence[int]
    fleets_of: Callable[[int], list[str]]
    leases: int


async def one_server(
    gateways: int = GATEWAYS,
    leases: int = LEASES,
    *,
    rates: Sequence[float] = RATES,
    step_s: float = STEP_S,
) -> Scale:
    """Let all gateways serve one fleet on one server."""
    with tempfile.TemporaryDirectory() as folder:
        server = RedisServer(Path(folder)).start()
        try:
            world = World("one server", server.url, [server.pid], lambda _: ["bench"], leases)
            return await _measure(world, gateways, rates, step_s)
        finally:
            server.stop()


async def cluster(gateways: int = GATEWAYS, leases: int = LEASES // CLUSTER_PART) -> Scale:
    """Spread many fleets over three shards; each gateway serves one fleet of each shard."""
    with Cluster() as servers:
        names = [f"fleet{n}" for n in range(100)]
        by_shard = [[name for name in names if servers.shard_of(name) == n] for n in range(SHARDS)]

        def fleets_of(gateway: int) -> list[str]:
            return [fleets[gateway % FLEETS_PER_SHARD] for fleets in by_shard]

        pids = [server.pid for server in servers.servers]
        world = World("three shards", servers.url, pids, fleets_of, leases)
        return await _measure(world, gateways, RATES, STEP_S)


async def _measure(world: World, gateways: int, rates: Sequence[float], step_s: float) -> Scale:
    fleets = {f"v{n}": world.fleets_of(n) for n in range(gateways)}
    served = sorted(set(itertools.chain.from_iterable(fleets.values())))
    await _seed(world.redis_url, served)
    if len(world.redis_pids) == 1:
        keep_apart(world.redis_pids[0])
    async with _workers(world.redis_url, fleets) as workers:
        await workers.order(Order(leases=world.leases))
        # Taking all those at once made ticks late; the first step is not to blame for that.
        await workers.order(Order(seconds=WARM_S))
        steps = []
        for rate in rates:
            steps.append(await _step(world, workers, rate, step_s))
            if not steps[-1].is_reached:
                break
    return Scale(world.name, gateways, world.leases, len(served), steps)


async def _seed(redis_url: str, fleets: Sequence[str]) -> None:
    """Open the fleets at once: this Redis is known to be new."""
    client = connect(redis_url, max_connections=4, timeout_s=10)
    try:
        store = Store(client, times=LeaseTimes())
        for fleet in fleets:
            await store.set_limits(fleet, LIMITS, who="bench", learning_ms=0)
    finally:
        await client.aclose()


class Workers:
    """Processes that obey the same order together."""

    def __init__(self, processes: Sequence[asyncio.subprocess.Process]) -> None:
        """Use processes that others end."""
        self._processes = processes

    def cpu_s(self) -> float:
        """Return the seconds of CPU that they have used."""
        return sum(cpu_s(process.pid) for process in self._processes)

    async def order(self, order: Order) -> list[Answer]:
        """Give all the same order and return what each answers."""
        line = msgspec.json.encode(order) + b"\n"
        for process in self._processes:
            cast("asyncio.StreamWriter", process.stdin).write(line)
        return await self.answers()

    async def answers(self) -> list[Answer]:
        """Read one line of each; RuntimeError when one has ended instead."""
        lines = await asyncio.gather(*(_line(process) for process in self._processes))
        return [msgspec.json.decode(line, type=Answer) for line in lines]

    @property
    def count(self) -> int:
        return len(self._processes)


async def _line(process: asyncio.subprocess.Process) -> bytes:
    line = await cast("asyncio.StreamReader", process.stdout).readline()
    if not line:
        raise RuntimeError("a process of gateways has ended; what it said is above")
    return line


@asynccontextmanager
async def _workers(redis_url: str, fleets: dict[str, list[str]]) -> AsyncIterator[Workers]:
    """Start the processes, each with its share of the gateways; at the end they give back what they hold."""
    environment = {**clean_environment(), "PYTHONPATH": str(ROOT)}
    async with AsyncExitStack() as stack:
        started = []
        for number in range(min(PROCESSES, len(fleets))):
            ours = {name: of for n, (name, of) in enumerate(fleets.items()) if n % PROCESSES == number}
            plan = msgspec.json.encode(Plan(redis_url=redis_url, limits=LIMITS, fleets=ours)).decode()
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-m", "bench.scale_worker", plan),
                env=environment,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                limit=1 << 24,
            )
            stack.push_async_callback(_end, process)
            started.append(process)
        workers = Workers(started)
        await workers.answers()
        yield workers


async def _end(process: asyncio.subprocess.Process) -> None:
    cast("asyncio.StreamWriter", process.stdin).close()
    try:
        async with asyncio.timeout(END_S):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()


async def _step(world: World, workers: Workers, rate_per_s: float, seconds: float) -> Step:
    redis_us = [main_thread_us(pid) for pid in world.redis_pids]
    gateways_s, began_s = workers.cpu_s(), monotonic()
    answers = await workers.order(Order(rate_per_s=rate_per_s / workers.count, seconds=seconds))
    took_s = monotonic() - began_s
    busiest_us = max(main_thread_us(pid) - us for pid, us in zip(world.redis_pids, redis_us, strict=True))
    late_ms = [late for answer in answers for late in answer.late_ms]
    return Step(
        offered_per_s=rate_per_s,
        admitted_per_s=sum(answer.admitted for answer in answers) / took_s,
        redis_share=busiest_us / 1e6 / took_s,
        gateway_share=(workers.cpu_s() - gateways_s) / took_s,
        acquire_p99_ms=max(answer.p99_ms for answer in answers),
        late_p99_ms=quantile(late_ms, 0.99),
    )
