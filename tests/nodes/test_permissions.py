"""A Redis user that may not do everything: it works, or says so; no limit is kept per process instead."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.nodes.places import LONG, admits_exactly, looking_at, nothing_runs
from tests.support.burst import burst
from tests.support.client import fetch
from tests.support.rig import rig
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.redis_server import RedisServer
    from tests.support.scripted_engine import ScriptedEngine

pytestmark = pytest.mark.timeout(90)


@pytest.fixture
def limited(redis_server: RedisServer, redis_url: str) -> Iterator[str]:
    """The address for a user that may do all but load scripts."""
    redis_server.cli("ACL", "SETUSER", "limited", "on", "nopass", "~*", "&*", "+@all", "-script")
    yield redis_url.replace("redis://", "redis://limited:x@")
    redis_server.cli("ACL", "DELUSER", "limited")


async def test_without_the_right_to_load_scripts_the_limit_is_still_that_of_the_fleet(
    redis_server: RedisServer, limited: str, engine: ScriptedEngine, tmp_path: Path
) -> None:
    async with rig(tmp_path, limited, engines=[engine.url], gateways=3, reapers=1) as replicas:
        for _ in range(3):
            redis_server.cli("SCRIPT", "FLUSH")
            await admits_exactly(4, replicas, engine)
        for replica in (*replicas.gateways, *replicas.reapers):
            assert replica.alive
            assert "no permissions" not in replica.log_text()


@pytest.mark.parametrize("policy", ["closed", "share"])
async def test_rights_that_are_taken_away_are_noticed_and_let_nobody_over_the_limit(
    redis_server: RedisServer, limited: str, engine: ScriptedEngine, tmp_path: Path, policy: str
) -> None:
    engine.answer = LONG
    fleet = {"total": 4, "cold": 4, "redis_loss": policy}
    async with (
        rig(tmp_path, limited, engines=[engine.url], gateways=2, fleet=fleet) as replicas,
        looking_at(replicas.configs[0]) as eye,
    ):
        await eye.all_tick(2)
        redis_server.cli("ACL", "SETUSER", "limited", "-evalsha", "-eval")
        with await burst(20, replicas.urls, key=replicas.key()) as together:
            admitted = 0 if policy == "closed" else 4
            assert together.statuses[200] == admitted
            assert set(together.codes) == (
                {"admission_unavailable"} if policy == "closed" else {"total_pool_full"}
            )
            assert engine.max_open == admitted
            for replica in replicas.gateways:
                assert (await fetch(replica.url, "/readyz")).status == 503
                metrics = (await fetch(replica.url, "/metrics")).body.decode()
                assert "tenure_redis_up 0.0" in metrics
                await wait_until(lambda replica=replica: "no permissions" in replica.log_text(), "why")  # type: ignore[misc]
            redis_server.cli("ACL", "SETUSER", "limited", "+evalsha", "+eval")
            for replica in replicas.gateways:
                await replica.ready()
            await eye.see(admitted, "what was admitted meanwhile is counted")
        await nothing_runs(eye, engine)
        await admits_exactly(4, replicas, engine)
