"""Three hundred requests in the same instant over three replicas: each limit admits exactly its number."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from tests.nodes.places import LIMITS, LONG, Eye, frozen, looking_at, nothing_runs
from tests.support.burst import burst
from tests.support.rig import Rig, rig
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.support.redis_server import RedisServer
    from tests.support.scripted_engine import ScriptedEngine

pytestmark = [
    pytest.mark.xdist_group("nodes_burst"),
    pytest.mark.usefixtures("leaves_nothing"),
    pytest.mark.timeout(120),
]

ROUNDS = 50
REQUESTS = 300
WIDE = 1000


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def replicas(
    lasting_redis: RedisServer, lasting_engine: ScriptedEngine, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Rig]:
    engine = {"url": lasting_engine.url, "name": "e1", "slots": WIDE}
    folder = tmp_path_factory.mktemp("burst")
    tenants = {"acme": 4, "other": None}
    async with rig(folder, lasting_redis.url, engines=[engine], gateways=3, tenants=tenants) as started:
        yield started


@pytest.mark.parametrize(
    ("limits", "code"),
    [
        ({"total": 4, "cold": 4, "tenant:acme": WIDE}, "total_pool_full"),
        ({"total": WIDE, "cold": 4, "tenant:acme": WIDE}, "cold_pool_full"),
        ({"total": WIDE, "cold": WIDE, "tenant:acme": 4}, "tenant_quota"),
    ],
    ids=["total", "cold", "tenant"],
)
async def test_exactly_as_many_as_the_limit_reach_the_engine_in_every_round(
    replicas: Rig,
    lasting_redis: RedisServer,
    lasting_engine: ScriptedEngine,
    limits: dict[str, int],
    code: str,
) -> None:
    """Counting per replica, or reading before writing, lets a burst through; caution would waste places."""
    engine = lasting_engine
    engine.reset()
    engine.answer = LONG
    lasting_redis.cli("HSET", LIMITS, *(word for pair in limits.items() for word in pair))
    async with looking_at(replicas.configs[0]) as eye:
        spans_s = [
            await _round(replicas, eye, engine, code, let_finish=number % 2 == 0) for number in range(ROUNDS)
        ]
    assert engine.max_open == 4
    assert len(engine.requests) == 4 * ROUNDS
    # Whatever the load here did to the sender, the frozen replicas found all requests at once.
    assert min(spans_s) < 0.010


async def _round(replicas: Rig, eye: Eye, engine: ScriptedEngine, code: str, *, let_finish: bool) -> float:
    """One burst; the places come back by the end of the streams or by the clients' departure."""
    grants = await eye.grants()
    in_one_instant = frozen(replicas.gateways)
    with await burst(REQUESTS, replicas.urls, key=replicas.key(), during=in_one_instant) as together:
        assert dict(together.statuses) == {200: 4, 429: REQUESTS - 4}
        assert dict(together.codes) == {code: REQUESTS - 4}
        await wait_until(lambda: engine.open == 4, "the four are at the engine")
        assert (await eye.counts()).total == 4
        assert await eye.grants() == grants + 4
        if let_finish:
            await wait_until(lambda: engine.held == 4, "the four have sent their first token")
            engine.finish_all()
            for body in await together.drain():
                assert body.endswith(b"data: [DONE]\n\n")
    await nothing_runs(eye, engine)
    return together.span_s
