"""One worker with many live streams: how long a cancel takes, their weight, how late ticks are; start-up."""

import asyncio
import contextlib
import json
import math
import re
import socket
import tempfile
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Final

from bench import load
from bench.cpu import cpu_s, resident_bytes
from bench.targets import LEASE, engine, tenure
from tests.support import processes
from tests.support.client import fetch
from tests.support.config_file import FLEET
from tests.support.processes import Process
from tests.support.redis_server import RedisServer
from tests.support.rig import Rig
from tests.support.waiting import wait_until

CANCEL_LIVE: Final = 500
PER_MINUTE: Final = 500
CANCEL_GAP_MS: Final = 50
CANCEL_S: Final = 60.0

MANY_LIVE: Final = 2_000
MANY_GAP_MS: Final = 200
MANY_S: Final = 30.0
# Five times the ticks of the defaults: half a minute has enough of them for a p99, and each hurts more.
QUICK_LEASE: Final = {"ttl_ms": 3_000, "tick_ms": 500, "provisional_ms": 2_000, "learning_ms": 1_000}

STARTS: Final = 5
_OPENING: Final = 50
_ENDLESS: Final = 1_000_000
_FREE_WITHIN_S: Final = 2.0
_BUCKET: Final = re.compile(r'^tenure_tick_lateness_seconds_bucket\{le="([^"]+)"\} (\S+)$', re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Cancels:
    """Milliseconds from a client's RST: until its lease, and its engine connection, are gone."""

    redis_ms: list[float]
    engine_ms: list[float]


@dataclass(frozen=True, slots=True)
class Crowd:
    """A worker with `live` streams.

    per_stream_bytes   resident memory that came with them, over their number
    late_p99_ms        a bound of the histogram, and so at least the p99; `ticks` were seen
    cpu_share          of a core, with `tokens_per_s` passing through
    """

    live: int
    per_stream_bytes: float
    late_p99_ms: float
    ticks: int
    tick_ms: int
    cpu_share: float
    tokens_per_s: float


@dataclass(frozen=True, slots=True)
class Bed:
    """An engine, a gateway and its Redis."""

    engine: Process
    rig: Rig
    server: RedisServer

    @property
    def gateway(self) -> Process:
        return self.rig.gateways[0]


@contextlib.asynccontextmanager
async def _bed(gap_ms: float, *, lease: Mapping[str, int] = LEASE) -> AsyncIterator[Bed]:
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        at = await stack.enter_async_context(engine(folder, gap_ms=gap_ms))
        made, server = await stack.enter_async_context(tenure(folder, at.url, lease=lease))
        yield Bed(at, made, server)


async def _begin(url: str, mark: str, opened: deque[load.Line]) -> None:
    line = await load.Line.open(url)
    opened.append(line)
    await line.begin(load.request_bytes(url, _ENDLESS, mark))


async def _open(url: str, count: int, opened: deque[load.Line]) -> None:
    """Open so many streams, some at once, and return when each has had a token."""
    for first in range(0, count, _OPENING):
        numbers = range(first, min(count, first + _OPENING))
        await asyncio.gather(*(_begin(url, f"n{number}", opened) for number in numbers))


async def _leave(opened: deque[load.Line]) -> None:
    for line in opened:
        line.reset()
    await asyncio.gather(*(line.gone for line in opened))


class Watcher:
    """Asks Redis on a connection of its own, as fast as it answers, whether a lease is gone."""

    def __init__(self, server: RedisServer) -> None:
        """Connect."""
        self._sock = socket.socket(socket.AF_UNIX)
        self._sock.connect(str(server.socket_path))
        self._key = f"tenure:{{{FLEET}}}:pool:total".encode()

    def close(self) -> None:
        self._sock.close()

    def is_held(self, lease: str) -> bool:
        words = (b"ZSCORE", self._key, lease.encode())
        self._sock.sendall(b"*3\r\n" + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words))
        return not self._sock.recv(4096).startswith(b"$-1")

    def gone_s(self, lease: str) -> float:
        """Return when the lease was gone. Blocks the event loop: nothing of ours delays the answer."""
        until_s = monotonic() + _FREE_WITHIN_S
        while self.is_held(lease):
            if monotonic() > until_s:
                raise load.FailedError(
                    f"the lease {lease} was held {_FREE_WITHIN_S} s after its client had left"
                )
        return monotonic()


async def cancels(seconds: float = CANCEL_S) -> Cancels:
    """Let clients leave one after the other while as many arrive, among CANCEL_LIVE streams."""
    opened: deque[load.Line] = deque()
    redis_ms: list[float] = []
    left_s: list[float] = []
    async with _bed(CANCEL_GAP_MS) as bed:
        url = bed.gateway.url
        watcher = Watcher(bed.server)
        try:
            await _open(url, CANCEL_LIVE, opened)
            began_s = monotonic()
            for number in range(int(seconds * PER_MINUTE / 60)):
                await asyncio.sleep(max(0.0, began_s + number * 60 / PER_MINUTE - monotonic()))
                await _begin(url, f"n{CANCEL_LIVE + number}", opened)
                line = opened.popleft()
                if not watcher.is_held(line.lease):
                    raise load.FailedError(f"{line.lease} is not in the pool of all leases")
                line.reset()
                left_s.append(await line.gone)
                redis_ms.append((watcher.gone_s(line.lease) - left_s[-1]) * 1e3)
            closed = await _all_closed(bed, len(left_s))
        finally:
            watcher.close()
            await _leave(opened)
    engine_ms = [(closed[f"n{number}"] - at_s) * 1e3 for number, at_s in enumerate(left_s)]
    return Cancels(redis_ms, engine_ms)


async def _all_closed(bed: Bed, count: int) -> dict[str, float]:
    """Return when the engine's connection of each stream was closed, once the first `count` of them are."""
    closed: dict[str, float] = {}

    async def told() -> bool:
        closed.update(json.loads((await fetch(bed.engine.url, "/closed")).body))
        return all(f"n{number}" in closed for number in range(count))

    await wait_until(told, "the engine's connections of all that left are closed")
    return closed


async def crowd(live: int = MANY_LIVE, seconds: float = MANY_S) -> Crowd:
    """Open `live` streams on one worker and look at it for so long."""
    opened: deque[load.Line] = deque()
    async with _bed(MANY_GAP_MS, lease=QUICK_LEASE) as bed:
        pid, url = bed.gateway.pid, bed.gateway.url
        async with load.lines(url, _OPENING) as few:
            await load.each_in_turn(few, load.request_bytes(url, 1), 10 * _OPENING, 1)
        empty_bytes = resident_bytes(pid)
        try:
            await _open(url, live, opened)
            before, cpu, tokens, began_s = await _lateness(bed), cpu_s(pid), _tokens(opened), monotonic()
            await asyncio.sleep(seconds)
            took_s = monotonic() - began_s
            cpu, tokens = cpu_s(pid) - cpu, _tokens(opened) - tokens
            late = await _lateness(bed)
            full_bytes = resident_bytes(pid)
            if any(line.gone.done() for line in opened):
                raise load.FailedError("some of the streams have ended")
        finally:
            await _leave(opened)
    seen = {bound: count - before[bound] for bound, count in late.items()}
    return Crowd(
        live=live,
        per_stream_bytes=(full_bytes - empty_bytes) / live,
        late_p99_ms=_bound_of(seen, 0.99) * 1e3,
        ticks=int(seen[math.inf]),
        tick_ms=QUICK_LEASE["tick_ms"],
        cpu_share=cpu / took_s,
        tokens_per_s=tokens / took_s,
    )


def _tokens(opened: deque[load.Line]) -> int:
    return sum(line.tokens for line in opened)


async def _lateness(bed: Bed) -> dict[float, float]:
    """Return how many ticks were late by no more than each bound of the histogram, in seconds."""
    page = (await fetch(bed.gateway.url, "/metrics")).body.decode()
    return {float(bound): float(count) for bound, count in _BUCKET.findall(page)}


def _bound_of(seen: dict[float, float], share: float) -> float:
    """Return the least bound that at least `share` of all stay within."""
    return min(bound for bound, count in seen.items() if count >= share * seen[math.inf])


async def start_ups(starts: int = STARTS) -> list[float]:
    """Return the seconds from starting a gateway's process until it is ready, each time."""
    took_s = []
    async with _bed(MANY_GAP_MS) as bed:
        for number in range(starts):
            began_s = monotonic()
            process = processes.gateway(bed.rig.folder, bed.rig.configs[0], name=f"s{number}")
            try:
                await process.ready()
                took_s.append(monotonic() - began_s)
            finally:
                await process.end()
    return took_s
