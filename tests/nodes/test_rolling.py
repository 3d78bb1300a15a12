"""A new version is rolled out under load: two versions share one Redis, and no request is lost on the way."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.nodes.places import META, Ends, admits_exactly, each_ended_once, looking_at, nothing_runs
from tests.support import processes
from tests.support.answers import Stream
from tests.support.client import HungUpError
from tests.support.edition import edition
from tests.support.rig import Rig, rig
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.redis_server import RedisServer
    from tests.support.scripted_engine import ScriptedEngine

pytestmark = pytest.mark.timeout(180)

CALLERS: Final = 8
# Room also for places whose release is still on its way when their caller comes again.
TOTAL: Final = 4 * CALLERS
# Served while both versions run, before the roll goes on.
EACH_STAGE: Final = 60
# The same protocol under other SHAs, as any change of a comment makes.
NEXT: Final = {"lua/includes/open_fleet.lua": (r"\A", "-- a later edition\n")}


@dataclass
class Traffic:
    """What callers behind a load balancer saw: a replica that drains gets nothing more until it is new."""

    ends: Ends
    urls: list[str]
    outcomes: Counter[str] = field(default_factory=Counter)
    out: set[str] = field(default_factory=set)
    over: bool = False

    async def caller(self) -> None:
        turns = itertools.cycle(self.urls)
        while not self.over:
            url = next(turns)
            if url in self.out:
                await asyncio.sleep(0)
            else:
                self.outcomes[await self._one(url)] += 1

    async def _one(self, url: str) -> str:
        try:
            call = await self.ends.call(url)
        except ConnectionRefusedError:
            # Nothing was sent, so nothing is lost: the next replica gets it.
            self.out.add(url)
            return "elsewhere"
        with call:
            try:
                status = await call.head()
                body = await call.rest()
            except (HungUpError, OSError, TimeoutError) as error:
                return f"lost: {error!r}"
            if status == 200:
                return "served" if body.endswith(b"data: [DONE]\n\n") else f"cut: {body[-80:]!r}"
            if status == 503 and b'"code":"draining"' in body and call.headers["retry-after"].isdigit():
                self.out.add(url)
                return "told to come back"
            return f"{status}: {body[:200]!r}"


async def test_a_roll_through_all_replicas_under_load_loses_no_request_and_no_place(
    tmp_path: Path, redis_url: str, engine: ScriptedEngine
) -> None:
    engine.answer = Stream(tokens=3, gap_s=0.02)
    later = edition(tmp_path / "later", NEXT)
    limits = {"total": TOTAL, "cold": TOTAL}
    budgets = {"drain_ms": 20_000}
    async with rig(
        tmp_path, redis_url, engines=[engine.url], gateways=3, reapers=1, fleet=limits, budgets=budgets
    ) as replicas:
        ends = Ends(replicas.gateways)
        traffic = Traffic(ends, replicas.urls)
        with running(traffic) as callers:
            await more_served(traffic)
            for number in range(3):
                await replace(replicas, number, later)
                traffic.out.clear()
                await more_served(traffic)
            traffic.over = True
            await asyncio.gather(*callers)
        assert set(traffic.outcomes) <= {"served", "told to come back", "elsewhere"}, traffic.outcomes
        assert traffic.outcomes["served"] >= 4 * EACH_STAGE
        print(dict(traffic.outcomes))  # noqa: T201
        async with looking_at(replicas.configs[0]) as eye:
            await nothing_runs(eye, engine)
            assert await eye.lapsed() == 0
        served = traffic.outcomes["served"]
        await wait_until(lambda: len(admitted(ends)) >= served, "all that was served is logged")
        each_ended_once(admitted(ends))
        assert Counter(line["reason"] for line in admitted(ends)) == {"completed": served}
        assert engine.max_open <= TOTAL
        await admits_exactly(TOTAL, replicas, engine)


def admitted(ends: Ends) -> list[dict[str, Any]]:
    return [line for line in ends.all() if line["lease"] is not None]


@contextmanager
def running(traffic: Traffic) -> Iterator[list[asyncio.Task[None]]]:
    """Let the callers call while the block runs."""
    callers = [asyncio.create_task(traffic.caller()) for _ in range(CALLERS)]
    try:
        yield callers
    finally:
        for caller in callers:
            caller.cancel()


async def more_served(traffic: Traffic) -> None:
    """Return when the fleet, as it is now, has served a good many more."""
    wanted = traffic.outcomes["served"] + EACH_STAGE
    await wait_until(lambda: traffic.outcomes["served"] >= wanted, "traffic goes on", 60)


async def replace(replicas: Rig, number: int, root: Path) -> None:
    """Drain one replica as an orchestrator does, and start the other version in its place."""
    old = replicas.gateways[number]
    old.sigterm()
    assert await old.wait(30) == 0
    port = int(old.url.rpartition(":")[2])
    config = replicas.configs[number]
    new = processes.gateway(replicas.folder, config, name=old.name, port=port, root=root)
    replicas.gateways[number] = new
    await new.ready()


async def test_a_gateway_that_meets_a_newer_layout_does_not_start(
    tmp_path: Path, redis_url: str, redis_server: RedisServer, engine: ScriptedEngine
) -> None:
    """It would write in its own old way what newer ones read in theirs."""
    async with rig(tmp_path, redis_url, engines=[engine.url], gateways=1) as replicas:
        redis_server.cli("HSET", META, "schema", 2)
        late = processes.gateway(tmp_path, replicas.configs[0], name="g2")
        assert await late.wait(30) == 1
        said = late.log_text().strip().splitlines()
        assert len(said) == 1
        assert "fleet demo" in said[0]
        assert "newer" in said[0]
