"""Gateway CPU per request and per streamed token, admission on, next to a bare relay and HAProxy."""

import asyncio
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import aiohttp

from bench.cpu import cpu_s
from tests.support import processes
from tests.support.config_file import key_of
from tests.support.redis_server import RedisServer, free_port
from tests.support.rig import rig
from tests.support.waiting import wait_until

REQUESTS: Final = 1_000
CALLERS: Final = 16
STREAMS: Final = 100
TOKENS: Final = 100
ROUNDS: Final = 5
PLENTY: Final = {"total": 10_000, "cold": 10_000}


@dataclass(frozen=True, slots=True)
class Cost:
    """Microseconds of CPU of one target, medians over the rounds."""

    target: str
    request_us: float
    token_us: float


@dataclass(frozen=True, slots=True)
class Target:
    """Something in front of the engine: where it listens, and the process that is charged."""

    name: str
    url: str
    pid: int


async def measure() -> list[Cost]:
    """Measure Tenure, two bare relays, and HAProxy where it is installed, on one engine."""
    async with AsyncExitStack() as started:
        folder = Path(started.enter_context(tempfile.TemporaryDirectory()))
        options = ("--slots", "1000", "--token-ms", "10", "--prefill-ms", "0", "--tokens", str(TOKENS))
        engine = processes.simulated_engine(folder, *options)
        started.push_async_callback(engine.end)
        redis = RedisServer(folder).start()
        started.callback(redis.stop)
        await engine.ready()
        slots = {"url": engine.url, "slots": 10_000}
        made = await started.enter_async_context(
            rig(folder, redis.url, engines=[slots], gateways=1, fleet=PLENTY)
        )
        targets = [Target("tenure", made.gateways[0].url, made.gateways[0].pid)]
        targets.append(_relay(started, "raw relay, aiohttp", "bench.raw_relay:app", engine.url))
        targets.append(_relay(started, "raw relay, own client", "bench.wire_relay:app", engine.url))
        if binary := shutil.which("haproxy"):
            targets.append(_haproxy(started, folder, binary, engine.url))
        # In turn, round by round: the machine's speed drifts, and so all drift alike.
        rounds = [[await _cost(target) for target in targets] for _ in range(ROUNDS)]
    return [
        Cost(
            target.name,
            statistics.median(costs[n].request_us for costs in rounds),
            statistics.median(costs[n].token_us for costs in rounds),
        )
        for n, target in enumerate(targets)
    ]


def _relay(started: AsyncExitStack, name: str, app: str, engine_url: str) -> Target:
    port = free_port()
    command = (sys.executable, "-m", "uvicorn", app, "--port", str(port))
    quiet = ("--no-access-log", "--log-level", "error", "--loop", "uvloop", "--http", "httptools")
    relay = subprocess.Popen([*command, *quiet], env={**os.environ, "ENGINE": engine_url})
    started.callback(relay.wait)
    started.callback(relay.terminate)
    return Target(name, f"http://127.0.0.1:{port}", relay.pid)


def _haproxy(started: AsyncExitStack, folder: Path, binary: str, engine_url: str) -> Target:
    port = free_port()
    config = folder / "haproxy.cfg"
    config.write_text(
        "global\n  nbthread 1\n"
        "defaults\n  mode http\n  timeout connect 5s\n  timeout client 60s\n  timeout server 60s\n"
        f"frontend front\n  bind 127.0.0.1:{port}\n  default_backend engine\n"
        f"backend engine\n  server e1 {engine_url.removeprefix('http://')}\n"
    )
    haproxy = subprocess.Popen([binary, "-q", "-f", str(config)])
    started.callback(haproxy.wait)
    started.callback(haproxy.terminate)
    return Target("haproxy", f"http://127.0.0.1:{port}", haproxy.pid)


async def _cost(target: Target) -> Cost:
    connector = aiohttp.TCPConnector(limit=0)
    headers = {"Authorization": f"Bearer {key_of('acme')}"}
    async with aiohttp.ClientSession(target.url, connector=connector, headers=headers) as session:
        await _answers(session)
        await _many(session, 4 * CALLERS, CALLERS, tokens=1)
        request_s = await _charged(target, lambda: _many(session, REQUESTS, CALLERS, 1)) / REQUESTS
        streams_s = await _charged(target, lambda: _many(session, STREAMS, STREAMS, TOKENS))
    return Cost(target.name, request_s * 1e6, (streams_s / STREAMS - request_s) / TOKENS * 1e6)


async def _answers(session: aiohttp.ClientSession) -> None:
    """Return when the target accepts connections."""

    async def once() -> bool:
        try:
            await _many(session, 1, 1, tokens=1)
        except aiohttp.ClientConnectionError:
            return False
        return True

    await wait_until(once, "the target accepts connections", 10)


async def _charged(target: Target, work: Callable[[], Awaitable[None]]) -> float:
    began_s = cpu_s(target.pid)
    await work()
    return cpu_s(target.pid) - began_s


async def _many(session: aiohttp.ClientSession, count: int, callers: int, tokens: int) -> None:
    numbers = iter(range(count))

    async def call() -> None:
        for _ in numbers:
            body = {
                "model": "demo",
                "stream": True,
                "max_tokens": tokens,
                "messages": [{"role": "user", "content": "hello"}],
            }
            async with session.post("/v1/chat/completions", json=body) as reply:
                if reply.status != 200:
                    raise RuntimeError(f"{reply.status}: {await reply.text()}")
                async for _ in reply.content.iter_any():
                    pass

    await asyncio.gather(*(call() for _ in range(callers)))
