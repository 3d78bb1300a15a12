"""What stands between a client and the engine, started for one run: relays, HAProxy and Tenure."""

import contextlib
import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench import load
from bench.cpu import is_running, keep_apart
from tests.support import processes
from tests.support.redis_server import RedisServer, free_port
from tests.support.rig import Rig, rig
from tests.support.waiting import wait_until

PLENTY: Final = {"total": 100_000, "cold": 100_000, "tenant_default": 100_000}
# The product's own defaults; those of the tests are short.
LEASE: Final = {"ttl_ms": 15_000, "tick_ms": 2_500, "provisional_ms": 6_000, "learning_ms": 6_000}
# How long a program may take to stop before it is killed.
END_S: Final = 5.0
BUDGETS: Final = {"first_token_ms": 60_000, "idle_ms": 60_000, "total_ms": 600_000}

TENURE: Final = "Tenure, admission on"
FLOOR: Final = "raw uvloop relay"
HAPROXY: Final = "HAProxy"


@dataclass(frozen=True, slots=True)
class Target:
    """One of them: where it listens, and the process that is charged with its children.

    redis_pid   the Redis that works for it, whose CPU is shown beside; None where there is none
    """

    name: str
    url: str
    pid: int
    redis_pid: int | None = None


@contextlib.asynccontextmanager
async def engine(folder: Path, *, gap_ms: float = 10) -> AsyncIterator[processes.Process]:
    """Run the benchmarks' engine."""
    port = free_port()
    command = ("-m", "bench.engine", "--port", str(port), "--gap-ms", str(gap_ms))
    process = processes.Process(
        folder, "engine", *command, url=f"http://127.0.0.1:{port}", ready_path="/health"
    )
    try:
        await process.ready()
        yield process
    finally:
        await process.end()


@contextlib.asynccontextmanager
async def tenure(
    folder: Path, engine_url: str, *, lease: Mapping[str, int] = LEASE
) -> AsyncIterator[tuple[Rig, RedisServer]]:
    """Run one gateway on a Redis of its own, with limits that are checked and never reached."""
    server = RedisServer(folder).start()
    slots = {"url": engine_url, "slots": PLENTY["total"]}
    try:
        async with rig(
            folder, server.url, engines=[slots], gateways=1, fleet=PLENTY, lease=lease, budgets=BUDGETS
        ) as made:
            keep_apart(made.gateways[0].pid)
            yield made, server
    finally:
        server.stop()


@contextlib.asynccontextmanager
async def floor_and_tenure(folder: Path, engine_url: str) -> AsyncIterator[list[Target]]:
    """Run everything that needs no installation, and HAProxy where it is installed."""
    async with AsyncExitStack() as stack:
        targets = []
        at = engine_url.removeprefix("http://")
        targets.append(await floor(stack, folder, at))
        for name, module in (("uvicorn, Tenure's client", "wire_relay"), ("uvicorn, aiohttp", "raw_relay")):
            port = str(free_port())
            quiet = ("--no-access-log", "--log-level", "error", "--loop", "uvloop", "--http", "httptools")
            served = ("-m", "uvicorn", f"bench.{module}:app", "--port", port, *quiet)
            targets.append(await _relay(stack, folder, name, port, *served, ENGINE=engine_url))
        if binary := shutil.which("haproxy"):
            targets.append(_haproxy(stack, folder, binary, at))
        made, server = await stack.enter_async_context(tenure(folder, engine_url))
        gateway = made.gateways[0]
        targets.append(Target(TENURE, gateway.url, gateway.pid, server.pid))
        for target in targets:
            await answers(target)
            keep_apart(target.pid)
        yield targets


async def floor(stack: AsyncExitStack, folder: Path, engine_at: str) -> Target:
    """Run the raw relay in front of HOST:PORT until `stack` ends it."""
    port = str(free_port())
    command = ("-m", "bench.uvloop_relay", "--port", port, "--engine", engine_at)
    return await _relay(stack, folder, FLOOR, port, *command)


async def _relay(
    stack: AsyncExitStack, folder: Path, name: str, port: str, *command: str, **environment: str
) -> Target:
    url = f"http://127.0.0.1:{port}"
    process = processes.Process(
        folder, f"relay-{port}", *command, url=url, ready_path="/health", environment=environment
    )
    stack.push_async_callback(process.end)
    await process.ready()
    return Target(name, url, process.pid)


def _haproxy(stack: AsyncExitStack, folder: Path, binary: str, engine_at: str) -> Target:
    port = free_port()
    config = folder / "haproxy.cfg"
    config.write_text(
        "global\n  nbthread 1\n  maxconn 4000\n"
        "defaults\n  mode http\n  timeout connect 5s\n  timeout client 600s\n  timeout server 600s\n"
        "  option http-no-delay\n"
        f"frontend front\n  bind 127.0.0.1:{port}\n  default_backend engine\n"
        f"backend engine\n  server e1 {engine_at}\n"
    )
    pid = spawn(stack, folder / "haproxy.log", (binary, "-f", str(config)), os.environ)
    return Target(HAPROXY, f"http://127.0.0.1:{port}", pid)


def spawn(stack: AsyncExitStack, log: Path, command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Start a program that is not ours, its output going to `log`; `stack` ends it. Return its pid."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            cwd=log.parent,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    stack.callback(_end, process)
    return process.pid


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


async def answers(target: Target, within_s: float = 30) -> None:
    """Return when a request through the target is answered; AssertionError when it ends or none is."""
    request = load.request_bytes(target.url, 1)

    async def once() -> bool:
        if not is_running(target.pid):
            raise AssertionError(f"{target.name} ended as soon as it was started")
        try:
            async with load.lines(target.url, 1) as (line,):
                await line.ask(request)
        except (OSError, load.FailedError):
            return False
        return True

    await wait_until(once, f"{target.name} answers", within_s)
