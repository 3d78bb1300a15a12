"""Some gateways of a large fleet in one process: the real library, without HTTP and engines.

`python -m bench.scale_worker PLAN`, where PLAN is JSON (see `Plan`). Orders come as lines of JSON on
stdin, each is answered by one line (see `Answer`); at the end of stdin all permits are given back.
"""

import asyncio
import itertools
import logging
import random
import sys
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from time import monotonic

import msgspec
import structlog
import uvloop

from bench.stats import quantile
from services.permits import Demand, FleetPolicy, Gate, LeaseTimes, Permit, PermitError, open_gate
from services.permits.events import Silent
from tests.support.waiting import wait_until

# Requests of one process that are under way; what comes beyond is not asked for, and missing in the count.
UNDER_WAY_MAX = 256
TENANTS = 20
ENGINES = ("e1", "e2", "e3", "e4")
READY_S = 60.0
_OPENING = 25


class Plan(msgspec.Struct):
    """The gateways of this process: `fleets` has the fleets of each, by name."""

    redis_url: str
    limits: dict[str, int]
    fleets: dict[str, list[str]]


class Order(msgspec.Struct):
    """Hold `leases` more on each gateway, or admit `rate_per_s` requests for `seconds`."""

    leases: int = 0
    rate_per_s: float = 0.0
    seconds: float = 0.0


class Answer(msgspec.Struct):
    """What came of an order: admitted requests, milliseconds of their acquires, how late ticks were."""

    admitted: int
    failed: int
    p50_ms: float
    p99_ms: float
    late_ms: list[float]


class Book(Silent):
    """Notes how long one gateway is without a tick, beyond what its schedule allows.

    What `tick` is told is not enough: a tick that is made at once after trouble counts there as in time.
    Called in the ticker's thread and read from another; each step is one of the interpreter.
    """

    def __init__(self, tick_ms: float) -> None:
        """Expect a tick at least so often."""
        self._tick_ms = tick_ms
        self._last_s: dict[str, float] = {}
        self._late_ms: list[float] = []

    def tick(self, fleet: str, lateness_s: float) -> None:
        """Take note of an acknowledged tick."""
        del lateness_s
        now_s = monotonic()
        last_s = self._last_s.get(fleet, now_s)
        self._last_s[fleet] = now_s
        self._late_ms.append(self._beyond(now_s - last_s))

    def take(self) -> list[float]:
        """Return the milliseconds of the ticks since the last call, and of those that are overdue now."""
        taken, self._late_ms = self._late_ms, []
        now_s = monotonic()
        return taken + [late for last_s in self._last_s.values() if (late := self._beyond(now_s - last_s))]

    def _beyond(self, gap_s: float) -> float:
        return max(0.0, gap_s * 1e3 - self._tick_ms)


class Gateways:
    """The gates of this process, and the demands that are made of them in turn."""

    def __init__(self, gates: dict[str, Gate], fleets: dict[str, list[str]], books: Sequence[Book]) -> None:
        """Use gates that others own."""
        self._gates = gates
        self._fleets = fleets
        self._books = books
        self._held: list[Permit] = []
        self._numbers = itertools.count()
        self._turns: Iterator[tuple[Gate, str]] = itertools.cycle(
            [(gates[name], fleet) for name in gates for fleet in fleets[name]]
        )

    async def hold(self, leases: int) -> Answer:
        """Take so many permits on each gateway and keep them."""
        wanted = iter(range(leases * len(self._gates)))
        took_ms: list[float] = []

        async def some() -> None:
            for _ in wanted:
                permit = await self._take(took_ms)
                self._held.append(permit)

        await asyncio.gather(*(some() for _ in range(_OPENING)))
        return self._answer(took_ms, 0)

    async def admit(self, rate_per_s: float, seconds: float) -> Answer:
        """Take permits at random moments and give them back; return when the time is over."""
        took_ms: list[float] = []
        failed = 0
        under_way: set[asyncio.Task[None]] = set()

        async def once() -> None:
            nonlocal failed
            try:
                (await self._take(took_ms)).close()
            except PermitError:
                failed += 1

        began_s, at_s = monotonic(), 0.0
        while rate_per_s:
            at_s += random.expovariate(rate_per_s)
            if at_s > seconds:
                break
            await asyncio.sleep(max(0.0, began_s + at_s - monotonic()))
            if monotonic() - began_s > seconds:
                break
            if len(under_way) < UNDER_WAY_MAX:
                task = asyncio.create_task(once())
                under_way.add(task)
                task.add_done_callback(under_way.discard)
        await asyncio.sleep(max(0.0, began_s + seconds - monotonic()))
        await asyncio.gather(*under_way)
        return self._answer(took_ms, failed)

    def close(self) -> None:
        """Give back all that is held."""
        for permit in self._held:
            permit.close()

    async def _take(self, took_ms: list[float]) -> Permit:
        gate, fleet = next(self._turns)
        number = next(self._numbers)
        demand = Demand(
            fleet=fleet,
            tenant=f"t{number % TENANTS}",
            request_id=f"{number:032x}",
            engines=ENGINES,
        )
        began_s = monotonic()
        permit = await gate.take(demand)
        took_ms.append((monotonic() - began_s) * 1e3)
        return permit

    def _answer(self, took_ms: list[float], failed: int) -> Answer:
        p50, p99 = (quantile(took_ms, share) if took_ms else 0.0 for share in (0.5, 0.99))
        late_ms = [late for book in self._books for late in book.take()]
        return Answer(admitted=len(took_ms), failed=failed, p50_ms=p50, p99_ms=p99, late_ms=late_ms)


async def _serve(plan: Plan) -> None:
    # stdout is for answers; that Redis was too slow now and then is one of them.
    structlog.configure(
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR),
    )
    times = LeaseTimes()
    books: list[Book] = []
    async with AsyncExitStack() as stack:
        gates = {}
        for name, fleets in plan.fleets.items():
            books.append(Book(times.tick_ms))
            gates[name] = await stack.enter_async_context(
                open_gate(
                    redis_url=plan.redis_url,
                    name=name,
                    times=times,
                    fleets={fleet: FleetPolicy(limits=plan.limits) for fleet in fleets},
                    keys={"0" * 64: "t0"},
                    listener=books[-1],
                    loop_factory=uvloop.new_event_loop,
                )
            )
        await wait_until(
            lambda: all(gate.ready()[0] for gate in gates.values()), "all gates are ready", READY_S
        )
        gateways = Gateways(gates, plan.fleets, books)
        stack.callback(gateways.close)
        orders = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(orders), sys.stdin
        )
        _say(await gateways.hold(0))
        async for line in orders:
            order = msgspec.json.decode(line, type=Order)
            if order.leases:
                answer = await gateways.hold(order.leases)
            else:
                answer = await gateways.admit(order.rate_per_s, order.seconds)
            _say(answer)


def _say(answer: Answer) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    uvloop.run(_serve(msgspec.json.decode(sys.argv[1].encode(), type=Plan)))
