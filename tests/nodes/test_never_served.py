"""What never gets a reply of an engine gives its place back, or takes none; with one place a leak shows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio

from tests.nodes.places import Ends, Eye, looking_at
from tests.support import processes
from tests.support.answers import failure
from tests.support.client import chat_body
from tests.support.config_file import write_config
from tests.support.rig import Rig, rig
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.support.redis_server import RedisServer
    from tests.support.reply import Script, Seen
    from tests.support.scripted_engine import ScriptedEngine

pytestmark = [
    pytest.mark.xdist_group("nodes_never_served"),
    pytest.mark.usefixtures("leaves_nothing"),
    pytest.mark.timeout(120),
]

ONE_PLACE = {"total": 1, "cold": 1}
ROUNDS = 20


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def replicas(
    lasting_redis: RedisServer, lasting_engine: ScriptedEngine, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Rig]:
    """One good replica, and two whose engine cannot be had: no route to it, or no TLS spoken there."""
    folder = tmp_path_factory.mktemp("never_served")
    good = {"url": lasting_engine.url, "name": "e1"}
    async with rig(folder, lasting_redis.url, engines=[good], gateways=1, fleet=ONE_PLACE) as started:
        for name, url in {
            # Nobody can connect to the broadcast address; the kernel says so at once.
            "no_route": "http://255.255.255.255:9",
            "no_tls": lasting_engine.url.replace("http://", "https://"),
        }.items():
            engine = {"url": url, "name": "e1"}
            config = write_config(folder, lasting_redis.url, [engine], name=f"{name}.toml", fleet=ONE_PLACE)
            started.gateways.append(processes.gateway(folder, config, name=name))
            await started.gateways[-1].ready()
        yield started


@dataclass(frozen=True)
class Ask:
    """A request that is not served, the replica that it is sent to, and how it is refused."""

    status: int
    body: Any
    code: str | None = None
    headers: tuple[tuple[str, str], ...] = ()
    replica: int = 0


ASKS = {
    "malformed": Ask(400, b'{"model": "demo", "messages": [', "bad_request"),
    "array": Ask(400, [chat_body()], "bad_request"),
    "unknown_model": Ask(404, chat_body("unknown"), "unknown_model"),
    "without_model": Ask(400, {"messages": []}, "bad_request"),
    # What the engine thinks of these is its own business.
    "without_messages": Ask(400, {"model": "demo"}),
    "no_json": Ask(400, b"model=demo&stream=true", headers=(("content-type", "text/plain"),)),
    "no_route": Ask(502, chat_body(), "engine_unreachable", replica=1),
    "no_tls": Ask(502, chat_body(), "engine_unreachable", replica=2),
}


def wants_messages(seen: Seen) -> Script | None:
    return None if b'"messages"' in seen.body else failure(400)


@pytest.mark.parametrize("name", ASKS)
async def test_what_is_never_served_leaves_the_only_place_free(
    replicas: Rig, lasting_engine: ScriptedEngine, name: str
) -> None:
    """An early way out that skips the end of the request would keep the place for good."""
    ask = ASKS[name]
    lasting_engine.reset()
    lasting_engine.choose = wants_messages
    async with looking_at(replicas.configs[0]) as eye:
        lapsed, ends = await eye.lapsed(), Ends(replicas.gateways)
        for _ in range(ROUNDS):
            with await ends.call(replicas.urls[ask.replica], body=ask.body, headers=ask.headers) as call:
                assert await call.head() == ask.status
                assert call.headers.get("tenure-refused") == ask.code
                await call.rest()
            await eye.see(0, "the place is free")
        await _is_served(ends, replicas, eye)
        assert await eye.lapsed() == lapsed
        await wait_until(lambda: len(ends.all()) == ROUNDS + 1, "each request has its line")
    lasting_engine.reset()


async def _is_served(ends: Ends, replicas: Rig, eye: Eye) -> None:
    with await ends.call(replicas.urls[0]) as call:
        assert await call.head() == 200
        assert (await call.rest()).endswith(b"data: [DONE]\n\n")
    await eye.see(0, "the place is free")
