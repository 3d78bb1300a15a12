"""The reaper process: builds the parts, turns the loop, and ends cleanly on a signal."""

import asyncio
import contextlib
import json
import socket
import sys
from collections.abc import AsyncIterator
from dataclasses import asdict
from typing import Final

import structlog

from services.permits.connect import connect
from services.permits.errors import Unavailable, Unusable
from services.permits.probe import probe
from services.permits.store import Store
from services.reaper.health import HealthServer, health_app, listen
from services.reaper.loop import Loop, in_one_line
from services.reaper.metrics import Metrics
from services.reaper.pulse import Pulse
from services.reaper.report import Report, json_log
from services.reaper.survey import Survey
from services.reaper.sweep import FleetPass, Sweep
from services.settings.schema import Settings
from services.settings.seed import lease_times
from services.settings.stop_signals import stop_signals

# A pass under way at SIGTERM may finish, or its report would be lost; a stuck one may not delay us.
LAST_PASS_S: Final = 2.0


def run(settings: Settings, *, host: str, port: int) -> int:
    """Reap until SIGTERM or SIGINT and return 0.

    Returns 1 with one line when the health port is taken or this Redis can never hold leases. A Redis that
    is away is no reason to stop: it may come.
    """
    try:
        health_socket = listen(host, port)
    except OSError as error:
        complain(
            f"cannot listen on {host}:{port} ({error.strerror}): choose another with --port or reaper.port"
        )
        return 1
    with contextlib.closing(health_socket):
        try:
            asyncio.run(_reap_until_told(settings, health_socket))
        except Unusable as error:
            complain(str(error))
            return 1
    return 0


def run_once(settings: Settings, *, as_json: bool) -> int:
    """Make one whole pass, print what it did, and return 0; 1 when it could not be finished."""
    try:
        passes = asyncio.run(_sweep_whole(settings))
    except Exception as error:  # noqa: BLE001  (whatever it was, a command ends with one line)
        complain(in_one_line(error))
        return 1
    _print_passes(passes, as_json=as_json)
    return 0


def complain(why: str) -> None:
    """Say in one line on stderr why this process ends."""
    sys.stderr.write(f"tenure reaper: {why}\n")


async def _reap_until_told(settings: Settings, health_socket: socket.socket) -> None:
    log = json_log(sys.stdout)
    pulse = Pulse(every_ms=settings.reaper.every_ms)
    metrics = Metrics(last_pass_age_s=pulse.last_pass_age_s)
    health = HealthServer(health_app(pulse, metrics))
    told = asyncio.Event()
    with stop_signals(lambda _: told.set()):
        async with _sweep(settings, log, metrics) as sweep:
            loop = Loop(sweep, every_ms=settings.reaper.every_ms, pulse=pulse, metrics=metrics, log=log)
            port = health_socket.getsockname()[1]
            log.info("started", fleets=sorted(settings.fleets), health_port=port)
            passes = asyncio.create_task(loop.run(), name="passes")
            serving = asyncio.create_task(health.serve(sockets=[health_socket]), name="health")
            await told.wait()
            await loop.end(passes, within_s=LAST_PASS_S)
            health.should_exit = True
            await serving
        log.info("stopped")


async def _sweep_whole(settings: Settings) -> list[FleetPass]:
    pulse = Pulse(every_ms=settings.reaper.every_ms)
    metrics = Metrics(last_pass_age_s=pulse.last_pass_age_s)
    async with _sweep(settings, json_log(sys.stderr), metrics) as sweep:
        return await sweep.once(whole=True)


@contextlib.asynccontextmanager
async def _sweep(
    settings: Settings, log: structlog.typing.FilteringBoundLogger, metrics: Metrics
) -> AsyncIterator[Sweep]:
    """Yield a sweep over a connection of its own, closed on the way out. Raises Unusable."""
    client = connect(settings.redis.url, max_connections=2)
    try:
        with contextlib.suppress(Unavailable):
            await probe(client, prefix=settings.redis.prefix)
        store = Store(client, prefix=settings.redis.prefix, times=lease_times(settings), listener=metrics)
        survey = Survey(client.scan_keys, prefix=settings.redis.prefix)
        yield Sweep(store, survey, fleets=sorted(settings.fleets), reporter=Report(log, metrics))
    finally:
        await client.aclose()


def _print_passes(passes: list[FleetPass], *, as_json: bool) -> None:
    if as_json:
        sys.stdout.write(json.dumps({"fleets": [asdict(done) for done in passes]}) + "\n")
        return
    for done in passes:
        sys.stdout.write(
            f"{done.fleet}: {len(done.reclaimed)} reclaimed, {done.settled} settled, {done.drift} repaired\n"
        )
        for lease in done.reclaimed:
            sys.stdout.write(
                f"  {lease.lease}  tenant {lease.tenant}  holder {lease.holder}  {lease.class_}"
                f"  engine {lease.engine}  age {lease.age_ms / 1000:.1f} s\n"
            )
