"""Administration of real processes: a replica drained from afar, and restarts with older files."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import pytest

from tests.support.admin_client import ADMIN, AdminClient
from tests.support.client import fetch
from tests.support.config_file import key_of
from tests.support.rig import rig
from tests.support.streams import LONG, Streams, end_cleanly, refusal
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.redis_server import RedisServer
    from tests.support.scripted_engine import ScriptedEngine

pytestmark = pytest.mark.timeout(120)

# The default of the tests is shorter than a busy machine needs to look.
DRAIN = {"drain_ms": 20_000}


@pytest.fixture
def streams() -> Iterator[Streams]:
    with Streams() as opened:
        yield opened


async def status(url: str, tenant: str) -> int:
    return (await fetch(url, "/v1/models", key=key_of(tenant))).status


async def test_a_replica_that_is_drained_from_another_finishes_and_stops(
    redis_url: str, engine: ScriptedEngine, streams: Streams, tmp_path: Path
) -> None:
    engine.answer = LONG
    async with rig(
        tmp_path, redis_url, engines=[engine.url], gateways=2, admin=ADMIN, budgets=DRAIN
    ) as replicas:
        (first, second), admin = replicas.gateways, AdminClient(replicas.urls[0])
        (call,) = await streams.running(second.url)
        answer = await admin.ok("POST", "/gateways/g2/drain")
        assert (answer["gateway"], len(answer["holders"])) == ("g2", 1)

        async def refuses() -> bool:
            return await refusal(second.url) == (503, "draining")

        await wait_until(refuses, "it admits nothing more", 1.0)
        row = next(row for row in (await admin.ok("GET", "/gateways"))["gateways"] if row["gateway"] == "g2")
        assert (row["draining"], row["live"]) == (True, 1)
        # Told twice is told once: a second word does not cut what may still finish.
        await admin.ok("POST", f"/gateways/{answer['holders'][0]}/drain")
        assert call.ended is None
        engine.finish_all()
        await end_cleanly(call)
        assert await second.wait(15) == 0
        assert [line["reason"] for line in second.log_lines()] == ["completed"]
        assert [row["gateway"] for row in (await admin.ok("GET", "/gateways"))["gateways"]] == ["g1"]
        assert (await admin.fails("POST", "/gateways/g2/drain"))[0] == 404
        assert [event["holder"] for event in await admin.events("drain")] == answer["holders"]
        # Its name is not marked for ever: the next process of that name serves.
        again = await replicas.restart_gateway(1)
        (call,) = await streams.running(again.url)
        engine.finish_all()
        await end_cleanly(call)
        assert first.alive


async def test_a_replica_that_missed_the_message_drains_with_its_next_tick(
    redis_url: str, redis_server: RedisServer, engine: ScriptedEngine, tmp_path: Path
) -> None:
    async with rig(tmp_path, redis_url, engines=[engine.url], gateways=1) as replicas:
        (holder,) = redis_server.cli("ZRANGE", "tenure:{demo}:gateways", 0, -1)
        redis_server.cli("SADD", "tenure:{demo}:draining", holder)
        assert await replicas.gateways[0].wait(15) == 0
        assert redis_server.cli("SMEMBERS", "tenure:{demo}:draining") == set()


async def test_a_restart_with_an_older_file_brings_nothing_back(
    redis_url: str, engine: ScriptedEngine, tmp_path: Path
) -> None:
    """Limits, quotas, keys and tenants: what an administrator changed holds, whatever the files still say."""
    tenants = {"acme": 3, "zeta": 3, "gone": 3}
    async with rig(
        tmp_path, redis_url, engines=[engine.url], gateways=2, admin=ADMIN, tenants=tenants
    ) as replicas:
        admin = AdminClient(replicas.urls[0])
        await admin.set_limits(total=9, cold=0, tenant_default=7)
        await admin.ok("PUT", "/tenants/acme", {"weight": 5, "quotas": {"demo": 1}})
        await admin.ok("PUT", "/tenants/zeta", {"quotas": {"demo": None}})
        (key,) = (await admin.ok("GET", "/tenants/zeta"))["keys"]
        await admin.ok("DELETE", f"/tenants/zeta/keys/{key['key_id']}")
        await admin.ok("DELETE", "/tenants/gone")
        await asyncio.gather(replicas.restart_gateway(0), replicas.restart_gateway(1))
        admin = AdminClient(replicas.urls[1])
        pools = (await admin.ok("GET", "/fleets/demo"))["pools"]
        assert (pools["total"]["limit"], pools["cold"]["limit"]) == (9, 0)
        assert {name: pool["limit"] for name, pool in pools["tenants"].items()} == {"acme": 1, "zeta": 7}
        assert (await admin.ok("GET", "/tenants/acme"))["weight"] == 5
        assert (await admin.ok("GET", "/tenants"))["tenants"] == ["acme", "zeta"]
        assert (await admin.ok("GET", "/tenants/zeta"))["keys"] == []
        for url in replicas.urls:
            assert [await status(url, tenant) for tenant in ("acme", "zeta", "gone")] == [200, 401, 401]
            assert await refusal(url) == (429, "cold_pool_full")


async def test_what_an_administrator_changed_survives_a_redis_that_loses_its_data(
    redis_url: str, redis_server: RedisServer, engine: ScriptedEngine, tmp_path: Path
) -> None:
    async with rig(
        tmp_path, redis_url, engines=[engine.url], gateways=2, admin=ADMIN, tenants={"acme": 3}
    ) as replicas:
        admin = AdminClient(replicas.urls[0])
        await admin.set_limits(total=9, cold=1, shadow=["cold"])
        await admin.ok("PUT", "/tenants/acme", {"quotas": {"demo": None}})
        await admin.ok("PUT", "/tenants/new", {"quotas": {"demo": 0}})
        made = await admin.ok("POST", "/tenants/new/keys")

        async def models(count: int) -> bool:
            answers = [await fetch(url, "/v1/models", key=made["key"]) for url in replicas.urls]
            return all(answer.status == 200 for answer in answers) and all(
                len(json.loads(answer.body)["data"]) == count for answer in answers
            )

        await wait_until(lambda: models(0), "the key is known everywhere, and that its fleet is shut")
        await admin.ok("PUT", "/tenants/new", {"quotas": {"demo": 2}})
        await wait_until(lambda: models(1), "a tick of each replica has seen the last change")
        redis_server.cli("FLUSHALL")

        async def whole() -> bool:
            status, shown = await admin.call("GET", "/fleets/demo")
            pools = shown["pools"] if status == 200 else {}
            return bool(pools) and {name: one["limit"] for name, one in pools["tenants"].items()} == {
                "acme": 1000,
                "new": 2,
            }

        await wait_until(whole, "tenants and quotas are back", 10)
        shown = await admin.ok("GET", "/fleets/demo")
        assert (shown["pools"]["total"]["limit"], shown["shadow"]) == (9, ["cold"])
        keys = (await admin.ok("GET", "/tenants/new"))["keys"]
        assert [(key["key_id"], key["last4"]) for key in keys] == [(made["key_id"], made["key"][-4:])]
        assert await models(1)
