"""Every kind of route is counted alike: after good ends, departures and failures its count is exactly 0."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio

from tests.nodes.places import LONG, Ends, admits_exactly, each_ended_once, looking_at, nothing_runs
from tests.support.answers import Dies, Stream, Whole, failure
from tests.support.client import chat_body
from tests.support.rig import Rig, rig
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.nodes.places import Eye
    from tests.support.redis_server import RedisServer
    from tests.support.reply import Script
    from tests.support.scripted_engine import ScriptedEngine

pytestmark = [
    pytest.mark.xdist_group("nodes_route_drift"),
    pytest.mark.usefixtures("leaves_nothing"),
    pytest.mark.timeout(60),
]

EACH = 10
TOTAL = 16
FORM = (
    b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\ndemo\r\n'
    b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n'
    b"Content-Type: audio/wav\r\n\r\nRIFF\x00\xff\xfe\x80" + b"\x00\x01" * 500 + b"\r\n--b--\r\n"
)


@dataclass(frozen=True)
class Route:
    """A path and the body that clients send there; `media` is its content type where that is not JSON."""

    path: str
    body: Any
    media: str | None = None

    @property
    def headers(self) -> tuple[tuple[str, str], ...]:
        return (("content-type", self.media),) if self.media else ()


ROUTES = {
    "chat": Route("/v1/chat/completions", chat_body()),
    "chat_whole": Route("/v1/chat/completions", chat_body(stream=False)),
    "completions": Route("/v1/completions", {"model": "demo", "prompt": "hello", "stream": True}),
    "embeddings": Route("/v1/embeddings", {"model": "demo", "input": ["a", "b"]}),
    "responses": Route("/v1/responses", {"model": "demo", "input": "hello", "stream": True}),
    "messages": Route("/v1/messages", {"model": "demo", "max_tokens": 9, "messages": [], "stream": True}),
    "audio": Route("/v1/audio/transcriptions", FORM, "multipart/form-data; boundary=b"),
    "unknown": Route("/v1/things/of/tomorrow?deep=1", {"model": "demo"}),
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def replicas(
    lasting_redis: RedisServer, lasting_engine: ScriptedEngine, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Rig]:
    engine = {"url": lasting_engine.url, "name": "e1", "slots": 100}
    folder = tmp_path_factory.mktemp("route_drift")
    limits = {"total": TOTAL, "cold": TOTAL}
    async with rig(folder, lasting_redis.url, engines=[engine], gateways=2, fleet=limits) as started:
        yield started


@pytest.mark.parametrize("name", ROUTES)
async def test_no_route_drifts(replicas: Rig, lasting_engine: ScriptedEngine, name: str) -> None:
    """One route that is wired differently lets its count creep up, or below zero."""
    engine, route, ends = lasting_engine, ROUTES[name], Ends(replicas.gateways)
    binary = Whole(body=b"\x00\xff" * 5000, headers=(("content-type", "audio/wav"),))
    async with looking_at(replicas.configs[0]) as eye:
        await nothing_runs(eye, engine)
        before, seen = await eye.grants(), len(engine.requests)
        for good in (Stream(), Whole(), binary):
            await _to_the_end(replicas, engine, eye, ends, route=route, script=good)
        await _departures(replicas, engine, eye, ends, route)
        failures: tuple[Script, ...] = (
            failure(500),
            Dies("before_head"),
            Dies("after_head"),
            Stream(ending="torn"),
        )
        for bad in failures:
            await _to_the_end(replicas, engine, eye, ends, route=route, script=bad)
        rounds = (3 + 2 + len(failures)) * EACH
        lines = await ends.reach(rounds)
        each_ended_once(lines)
        assert await eye.grants() - before == rounds
        assert len(engine.requests) - seen == rounds
        assert {request.path for request in engine.requests[seen:]} == {route.path}
        counts = await eye.counts("acme", engines=["e1"])
        assert (counts.total, counts.cold, counts.tenants["acme"], counts.engines["e1"]) == (0, 0, 0, 0)
    await admits_exactly(TOTAL, replicas, engine)


async def _to_the_end(
    replicas: Rig, engine: ScriptedEngine, eye: Eye, ends: Ends, *, route: Route, script: Script
) -> None:
    engine.answer = script

    async def once(number: int) -> None:
        url = replicas.urls[number % 2]
        with await ends.call(url, path=route.path, body=route.body, headers=route.headers) as call:
            await call.head()
            await call.rest()

    await asyncio.gather(*(once(number) for number in range(EACH)))
    await nothing_runs(eye, engine)


async def _departures(replicas: Rig, engine: ScriptedEngine, eye: Eye, ends: Ends, route: Route) -> None:
    """The clients leave while the engine is silent, and again in the middle of its reply."""
    for script in (Stream(hold_before_head=True), LONG):
        engine.answer = script
        calls = [
            await ends.call(replicas.urls[n % 2], path=route.path, body=route.body, headers=route.headers)
            for n in range(EACH)
        ]
        await wait_until(lambda: engine.held == EACH, "all are in the engine's hands")
        counts = await eye.counts("acme", engines=["e1"])
        assert (counts.total, counts.cold, counts.tenants["acme"], counts.engines["e1"]) == (EACH,) * 4
        for call in calls:
            call.reset()
        await nothing_runs(eye, engine)
