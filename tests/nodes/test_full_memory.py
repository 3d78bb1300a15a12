"""Redis is full and evicts nothing: nobody new is admitted, what runs is renewed, and places come back."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from tests.nodes.places import SLOW, Ends, admits_exactly, all_left, leases_left, looking_at, nothing_runs
from tests.support.client import fetch
from tests.support.config_file import LEASE
from tests.support.rig import rig
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.redis_server import RedisServer
    from tests.support.scripted_engine import ScriptedEngine

pytestmark = pytest.mark.timeout(90)


@pytest.mark.parametrize("policy", ["closed", "share"])
async def test_a_full_redis_admits_nobody_and_still_renews_and_takes_back(
    spare_redis: Callable[..., RedisServer], engine: ScriptedEngine, tmp_path: Path, policy: str
) -> None:
    """Were a release refused for want of memory, the place would be gone just when nothing else helps."""
    server = spare_redis("--maxmemory-policy", "noeviction")
    engine.answer = SLOW
    fleet = {"total": 8, "cold": 8, "redis_loss": policy}
    async with (
        rig(tmp_path, server.url, engines=[engine.url], gateways=2, fleet=fleet) as replicas,
        looking_at(replicas.configs[0]) as eye,
    ):
        ends = Ends(replicas.gateways)
        with ExitStack() as opened:
            calls = [opened.enter_context(await ends.call(url)) for url in replicas.urls * 2]
            for call in calls:
                assert await call.first_token() is not None
            server.cli("CONFIG", "SET", "maxmemory", 1)
            until = (await eye.counts()).clock + 1.5 * LEASE["ttl_ms"]

            async def is_over() -> bool:
                return (await eye.counts()).clock >= until

            async def refused() -> None:
                for url in replicas.urls:
                    with await ends.call(url) as call:
                        assert await call.head() == 503
                        assert await call.error_code() == "admission_unavailable"
                        assert 1 <= int(call.headers["retry-after"]) <= 60

            await refused()
            await wait_until(is_over, "every lease has run out unless it was renewed", 10)
            await refused()
            for replica in replicas.gateways:
                # Redis is not away: a probe must not send the traffic elsewhere and back.
                assert (await fetch(replica.url, "/readyz")).status == 200
                assert "redis_unavailable" not in replica.log_text()
            assert {row.lease for row in await eye.leases()} == {
                call.headers["tenure-lease"] for call in calls
            }
            assert engine.max_open == len(engine.requests) == len(calls)
        await nothing_runs(eye, engine)
        assert not leases_left(server)
        await all_left(ends, len(calls))
        server.cli("CONFIG", "SET", "maxmemory", 0)
        await admits_exactly(8, replicas, engine)
