"""Budgets that run out, and a replica that is stopped, many requests at a time beside an untouched stream."""

from __future__ import annotations

import asyncio
import random
import socket
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from tests.nodes.places import Ends, admits_exactly, control_arm, each_ended_once, nothing_runs
from tests.support import processes
from tests.support.answers import Flood, Stream
from tests.support.client import fetch
from tests.support.config_file import write_config
from tests.support.rig import Rig, rig
from tests.support.sockets import LOOPBACK

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from tests.support.client import Call
    from tests.support.processes import Process
    from tests.support.redis_server import RedisServer
    from tests.support.reply import Reply, Script
    from tests.support.scripted_engine import ScriptedEngine

pytestmark = [
    pytest.mark.xdist_group("nodes_budgets"),
    pytest.mark.usefixtures("leaves_nothing"),
    pytest.mark.timeout(120),
]

TOTAL = 50
LIMITS = {"total": TOTAL, "cold": TOTAL}
BATCH = 40
SHORT = {
    "connect_ms": 300,
    "first_token_ms": 600,
    "idle_ms": 600,
    "stall_ms": 600,
    "total_ms": 1200,
    "drain_ms": 300,
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def replicas(
    lasting_redis: RedisServer, lasting_engine: ScriptedEngine, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Rig]:
    """Two replicas: the first has the long budgets of tests, the second short ones."""
    engine = {"url": lasting_engine.url, "name": "e1", "slots": 1000}
    folder = tmp_path_factory.mktemp("budgets")
    async with rig(folder, lasting_redis.url, engines=[engine], gateways=1, fleet=LIMITS) as started:
        short = write_config(
            folder, lasting_redis.url, [engine], name="short.toml", fleet=LIMITS, budgets=SHORT
        )
        await started.add_gateway(config=short)
        yield started


@dataclass(frozen=True)
class Overrun:
    """How the engine answers so that one budget runs out, and what the client then sees."""

    script: Script
    reason: str
    status: int
    receive_buffer: int | None = None


OVERRUNS = {
    "first_token_before_headers": Overrun(Stream(hold_before_head=True), "first_token_timeout", 504),
    "first_token_after_headers": Overrun(Stream(hold_after=0), "first_token_timeout", 200),
    "idle": Overrun(Stream(hold_after=1), "idle_timeout", 200),
    "total": Overrun(Stream(tokens=None, gap_s=0.1), "total_timeout", 200),
    "stalled": Overrun(Flood(), "client_stalled", 200, receive_buffer=4096),
}


@pytest.mark.parametrize("name", OVERRUNS)
async def test_a_budget_that_runs_out_gives_the_place_back_once(
    replicas: Rig, lasting_engine: ScriptedEngine, name: str
) -> None:
    """Whoever waits too long, for the engine or for the client, is let go of by the right name."""
    overrun = OVERRUNS[name]
    lasting_engine.answer = overrun.script
    async with control_arm(replicas, lasting_engine) as eye:
        ends, grants = Ends(replicas.gateways), await eye.grants()
        with ExitStack() as calls:
            for _ in range(BATCH):
                call = await ends.call(replicas.urls[1], receive_buffer=overrun.receive_buffer)
                calls.enter_context(call)
            lines = await ends.reach(BATCH)
            await nothing_runs(eye, lasting_engine, but=1)
        assert await eye.grants() - grants == BATCH
    each_ended_once(lines)
    assert Counter((line["reason"], line["status"]) for line in lines) == {
        (overrun.reason, overrun.status): BATCH
    }
    await admits_exactly(TOTAL, replicas, lasting_engine, by=slice(1))


async def test_four_ends_at_about_the_same_time_are_one(
    replicas: Rig, lasting_engine: ScriptedEngine
) -> None:
    """The total runs out, the client leaves, its user stops it, and the engine dies."""
    total_s = SHORT["total_ms"] / 1000

    async def dies_in_time(reply: Reply) -> None:
        await reply.head(200, (("content-type", "text/event-stream"),))
        while (left_s := _until(reply.seen.opened_at + total_s + random.uniform(-0.025, 0.025))) > 0:
            await reply.piece(b'data: {"choices": [{"delta": {"content": "x"}}]}\n\n')
            await reply.pause(min(left_s, 0.2))
        reply.reset()

    lasting_engine.answer = dies_in_time
    rounds = 200
    async with control_arm(replicas, lasting_engine) as eye:
        ends = Ends(replicas.gateways)

        async def once() -> None:
            with await ends.call(replicas.urls[1]) as call:
                assert await call.first_token() == "x"
                ids = {seen.header("x-request-id"): seen.opened_at for seen in lasting_engine.requests}
                over_s = ids[call.headers["x-request-id"]] + total_s
                # Only half of them, and earlier: it goes to another replica and takes its way through Redis.
                stopping = asyncio.create_task(stop(call, over_s) if random.random() < 0.5 else _no_time())
                await asyncio.sleep(_until(over_s - random.uniform(0, 0.08)))
                call.reset()
                await stopping

        async def stop(call: Call, over_s: float) -> None:
            await asyncio.sleep(_until(over_s - random.uniform(0, 0.1)))
            path = f"/v1/requests/{call.headers['x-request-id']}"
            answer = await fetch(replicas.urls[0], path, method="DELETE", key=replicas.key())
            assert answer.status in (202, 404)

        for _ in range(rounds // BATCH):
            await asyncio.gather(*(once() for _ in range(BATCH)))
            await nothing_runs(eye, lasting_engine, but=1)
        lines = await ends.reach(rounds)
    each_ended_once(lines)
    said = Counter(line["reason"] for line in lines)
    assert set(said) <= {"client_disconnect", "engine_error", "total_timeout", "user_stop"}
    # They did race: none of them was always the first.
    assert len(said) > 1
    await admits_exactly(TOTAL, replicas, lasting_engine, by=slice(1))


def _until(at_s: float) -> float:
    """Return how long it is until then, on the clock by which the engine stamps; 0 when it is past."""
    return max(0.0, at_s - time.monotonic())


async def _no_time() -> None:
    pass


@pytest.fixture
def swallowing_port() -> Iterator[int]:
    """A port on which connecting neither succeeds nor fails: its queue of connections is full."""
    with ExitStack() as opened:
        listener = opened.enter_context(socket.socket())
        listener.bind((LOOPBACK, 0))
        listener.listen(0)
        for _ in range(4):
            filler = opened.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
        yield int(listener.getsockname()[1])


async def test_an_engine_that_cannot_be_connected_to_gives_the_place_back(
    replicas: Rig, lasting_redis: RedisServer, lasting_engine: ScriptedEngine, swallowing_port: int
) -> None:
    """An address that swallows packets costs its own budget and nothing else."""
    hung = {"url": f"http://{LOOPBACK}:{swallowing_port}", "name": "hung", "slots": 1000}
    config = write_config(
        replicas.folder, lasting_redis.url, [hung], name="hung.toml", fleet=LIMITS, budgets=SHORT
    )
    async with control_arm(replicas, lasting_engine) as eye:
        replica = processes.gateway(replicas.folder, config, name="hung")
        try:
            await replica.ready()
            ends, grants = Ends([replica]), await eye.grants()
            calls = [await ends.call(replica.url) for _ in range(BATCH)]
            assert {await call.head() for call in calls} == {502}
            assert {await call.error_code() for call in calls} == {"engine_unreachable"}
            for call in calls:
                call.close()
            lines = await ends.reach(BATCH)
            assert await eye.grants() - grants == BATCH
            await nothing_runs(eye, lasting_engine, but=1)
        finally:
            await replica.end()
    each_ended_once(lines)
    assert {line["reason"] for line in lines} == {"engine_unreachable"}
    await admits_exactly(TOTAL, replicas, lasting_engine, by=slice(1))


async def test_a_replica_that_is_stopped_cuts_what_does_not_finish_and_gives_it_back(
    replicas: Rig, lasting_redis: RedisServer, lasting_engine: ScriptedEngine
) -> None:
    """Every task of the process is cancelled at once; none takes its place with it."""
    lasting_engine.answer = Stream(tokens=None, gap_s=0.05)
    async with control_arm(replicas, lasting_engine) as eye:
        stopping: Process = await _one_more(replicas, lasting_redis, lasting_engine)
        ends = Ends([stopping])
        calls = [await ends.call(stopping.url) for _ in range(BATCH)]
        for call in calls:
            assert await call.first_token() is not None
        await eye.see(BATCH + 1, "all run")
        stopping.sigterm()
        bodies = await asyncio.gather(*(call.rest() for call in calls))
        assert await stopping.wait() == 0
        # Gave back by itself: nothing had to lapse.
        assert await eye.live() == 1
        lines = await ends.reach(BATCH)
    for call, body in zip(calls, bodies, strict=True):
        assert call.ended == "clean"
        assert b'"code":"draining"' in body
        call.close()
    each_ended_once(lines)
    assert {line["reason"] for line in lines} == {"shutdown"}
    await admits_exactly(TOTAL, replicas, lasting_engine, by=slice(1))


async def _one_more(replicas: Rig, redis: RedisServer, engine: ScriptedEngine) -> Process:
    url = {"url": engine.url, "name": "e1", "slots": 1000}
    config = write_config(
        replicas.folder, redis.url, [url], name="stopping.toml", fleet=LIMITS, budgets={"drain_ms": 300}
    )
    started = processes.gateway(replicas.folder, config, name="stopping")
    replicas.gateways.append(started)
    await started.ready()
    return started
