"""Gateway CPU per request and per streamed token, with admission on, next to HAProxy in the same run."""

import asyncio
import shutil
import statistics
import subprocess
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import aiohttp

from bench.cpu import cpu_s
from tests.support import processes
from tests.support.config_file import key_of
from tests.support.redis_server import RedisServer, free_port
from tests.support.rig import rig

REQUESTS: Final = 2_000
CALLERS: Final = 16
STREAMS: Final = 100
TOKENS: Final = 100
ROUNDS: Final = 3
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
    """Measure Tenure, and HAProxy where it is installed, on one simulated engine."""
    with tempfile.TemporaryDirectory() as folder_name:
        folder = Path(folder_name)
        options = ("--slots", "1000", "--token-ms", "10", "--prefill-ms", "0", "--tokens", str(TOKENS))
        engine = processes.simulated_engine(folder, *options)
        redis = RedisServer(folder).start()
        try:
            await engine.ready()
            slots = {"url": engine.url, "slots": 10_000}
            async with rig(folder, redis.url, engines=[slots], gateways=1, fleet=PLENTY) as made:
                targets = [Target("tenure", made.gateways[0].url, made.gateways[0].pid)]
                return await _with_haproxy(folder, engine.url, targets)
        finally:
            await engine.end()
            redis.stop()


async def _with_haproxy(folder: Path, engine_url: str, targets: list[Target]) -> list[Cost]:
    binary = shutil.which("haproxy")
    if binary is None:
        return [await _cost(target) for target in targets]
    port = free_port()
    config = folder / "haproxy.cfg"
    config.write_text(
        "global\n  nbthread 1\n"
        "defaults\n  mode http\n  timeout connect 5s\n  timeout client 60s\n  timeout server 60s\n"
        f"frontend front\n  bind 127.0.0.1:{port}\n  default_backend engine\n"
        f"backend engine\n  server e1 {engine_url.removeprefix('http://')}\n"
    )
    # Starting a process blocks the loop for a millisecond, before anything is measured.
    haproxy = subprocess.Popen([binary, "-q", "-f", str(config)])  # noqa: ASYNC220
    try:
        target = Target("haproxy", f"http://127.0.0.1:{port}", haproxy.pid)
        return [await _cost(each) for each in (*targets, target)]
    finally:
        haproxy.terminate()
        haproxy.wait()


async def _cost(target: Target) -> Cost:
    connector = aiohttp.TCPConnector(limit=0)
    headers = {"Authorization": f"Bearer {key_of('acme')}"}
    async with aiohttp.ClientSession(target.url, connector=connector, headers=headers) as session:
        await _many(session, CALLERS, CALLERS, tokens=1)
        requests = [
            await _charged(target, lambda: _many(session, REQUESTS, CALLERS, 1)) for _ in range(ROUNDS)
        ]
        request_s = statistics.median(requests) / REQUESTS
        streams = [
            await _charged(target, lambda: _many(session, STREAMS, STREAMS, TOKENS)) for _ in range(ROUNDS)
        ]
    token_s = (statistics.median(streams) - STREAMS * request_s) / (STREAMS * TOKENS)
    return Cost(target.name, request_s * 1e6, token_s * 1e6)


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
