"""Liveness and readiness while a replica is as busy as it can be, and while Redis is away as well."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import pytest

from tests.nodes.places import LONG, Ends, looking_at, nothing_runs
from tests.support.client import Call
from tests.support.config_file import FLEET
from tests.support.redis_shim import RedisShim
from tests.support.rig import rig
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.support.redis_server import RedisServer
    from tests.support.scripted_engine import ScriptedEngine

pytestmark = pytest.mark.timeout(120)

TOTAL: Final = 4
WAITING: Final = 50
PROBES: Final = 200
# One of a hundred may take longer; what is looked for waits behind traffic or behind Redis, much longer.
USUAL_S: Final = 0.3


@dataclass
class Probed:
    """What the probes of one path were answered."""

    statuses: list[int] = field(default_factory=list)
    waits_s: list[float] = field(default_factory=list)

    @property
    def changes(self) -> int:
        """Return how often the answer was another one than before."""
        return sum(one != other for one, other in pairwise(self.statuses))

    @property
    def usual_s(self) -> float:
        """Return how long 99 of 100 took at the most."""
        return sorted(self.waits_s)[int(len(self.waits_s) * 0.99) - 1]


async def probed(url: str, path: str) -> Probed:
    """Probe as an orchestrator does, again and again."""
    found = Probed()
    for _ in range(PROBES):
        with await Call.start(url, method="GET", path=path) as call:
            found.statuses.append(await call.head())
            found.waits_s.append(call.head_at - call.sent_at)
        await asyncio.sleep(0.01)
    return found


@asynccontextmanager
async def refusals(ends: Ends, url: str) -> AsyncIterator[list[int]]:
    """Let clients come that are sent away at once, as fast as they are; yields their statuses."""
    statuses: list[int] = []

    async def client() -> None:
        while True:
            with await ends.call(url, headers=(("tenure-patience-ms", "0"),)) as call:
                statuses.append(await call.head())

    clients = [asyncio.create_task(client()) for _ in range(4)]
    try:
        yield statuses
    finally:
        for task in clients:
            task.cancel()
        for end in await asyncio.gather(*clients, return_exceptions=True):
            if isinstance(end, Exception):
                raise end


async def test_probes_are_answered_beside_traffic_and_without_redis_and_do_not_flap(
    redis_server: RedisServer, redis_url: str, engine: ScriptedEngine, tmp_path: Path
) -> None:
    """A probe that queues behind requests gets a busy and sound replica restarted, and then the next one."""
    engine.answer = LONG
    with RedisShim(redis_server.port) as shim:
        async with (
            rig(
                tmp_path,
                shim.url,
                engines=[engine.url],
                gateways=1,
                fleet={"total": TOTAL, "cold": TOTAL, "line_max": WAITING},
                budgets={"queue_ms": 60_000, "idle_ms": 90_000, "total_ms": 90_000},
            ) as replicas,
            looking_at(replicas.configs[0], redis_url) as eye,
        ):
            (url,), ends = replicas.urls, Ends([])
            with ExitStack() as opened:
                for _ in range(TOTAL + WAITING):
                    opened.enter_context(await ends.call(url))
                line = f"tenure:{{{FLEET}}}:line:waiting"
                await wait_until(lambda: redis_server.cli("HLEN", line) == WAITING, "all stand in line", 15)
                assert engine.open == TOTAL
                async with AsyncExitStack() as load:
                    statuses = await load.enter_async_context(refusals(ends, url))
                    grants = await eye.grants()
                    alive, ready = await asyncio.gather(probed(url, "/healthz"), probed(url, "/readyz"))
                    assert set(alive.statuses) == set(ready.statuses) == {200}
                    assert max(alive.usual_s, ready.usual_s) < USUAL_S
                    # Neither took a place, and there was traffic.
                    assert await eye.grants() == grants
                    assert set(statuses) == {429}
                    assert len(statuses) > PROBES / 2
                    shim.blackhole()
                    alive, ready = await asyncio.gather(probed(url, "/healthz"), probed(url, "/readyz"))
                    assert set(alive.statuses) == {200}
                    assert alive.usual_s < USUAL_S
                    assert ready.statuses[-1] == 503
                    assert ready.changes <= 1
                    assert ready.usual_s < USUAL_S
                    shim.healthy()
                assert replicas.gateways[0].alive
                await replicas.gateways[0].ready()
            await nothing_runs(eye, engine)
