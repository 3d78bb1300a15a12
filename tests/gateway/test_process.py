"""The gateway as a process: how it starts, drains and stops."""

import asyncio
import json
import signal
import socket
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from tests.nodes.places import looking_at
from tests.support import processes
from tests.support.answers import Stream
from tests.support.client import Call, chat_body, fetch
from tests.support.config_file import LEASE, key_of, write_config
from tests.support.redis_server import RedisServer
from tests.support.rig import Rig, rig
from tests.support.scripted_engine import ScriptedEngine
from tests.support.waiting import wait_until

KEY = key_of("acme")


async def start(url: str, **fields: Any) -> Call:
    return await Call.start(url, key=KEY, body=chat_body(**fields))


def alone(
    folder: Path, redis_url: str, engine: ScriptedEngine, *, drain_ms: int
) -> AbstractAsyncContextManager[Rig]:
    return rig(folder, redis_url, engines=[engine.url], gateways=1, budgets={"drain_ms": drain_ms})


async def test_sigterm_drains(redis_url: str, engine: ScriptedEngine, tmp_path: Path) -> None:
    """Live streams finish, newcomers go elsewhere, the exit is clean."""
    async with (
        rig(tmp_path, redis_url, engines=[engine.url], gateways=1, budgets={"drain_ms": 10_000}) as made,
        looking_at(made.configs[0]) as eye,
    ):
        gateway = made.gateways[0]
        engine.answer = Stream(tokens=5, hold_after=2)
        calls = [await start(gateway.url) for _ in range(3)]
        for call in calls:
            await call.first_token()
        gateway.sigterm()

        async def refuses() -> bool:
            return (await fetch(gateway.url, "/readyz")).status == 503

        await wait_until(refuses, "readiness is off", 1)
        assert (await fetch(gateway.url, "/healthz")).status == 200
        late = await fetch(gateway.url, "/v1/chat/completions", method="POST", key=KEY, body=chat_body())
        assert late.status == 503
        assert json.loads(late.body)["error"]["code"] == "draining"
        assert 1 <= int(late.headers["retry-after"]) <= 60
        assert late.headers["connection"] == "close"
        leases = {row.lease for row in await eye.leases()}
        until = (await eye.counts()).clock + LEASE["ttl_ms"] + LEASE["tick_ms"]

        async def is_over() -> bool:
            return (await eye.counts()).clock >= until

        await wait_until(is_over, "more than a lease's time passes", 8)
        assert gateway.alive
        # Their places are still theirs: nobody else may have them while they finish.
        assert {row.lease for row in await eye.leases()} == leases
        assert len(leases) == 3
        engine.finish_all()
        for call in calls:
            assert (await call.rest()).endswith(b"data: [DONE]\n\n")
            call.close()
        assert await gateway.wait() == 0
        lines = [line for line in gateway.log_lines() if line["reason"]]
        assert [line["reason"] for line in lines] == ["completed"] * 3
        assert all(line["released_at"] for line in lines)


async def test_what_does_not_finish_in_time_ends_as_shutdown(
    redis_url: str, engine: ScriptedEngine, tmp_path: Path
) -> None:
    async with alone(tmp_path, redis_url, engine, drain_ms=300) as made:
        gateway = made.gateways[0]
        engine.answer = Stream(hold_after=1)
        live = await start(gateway.url)
        await live.first_token()
        engine.answer = Stream(hold_before_head=True)
        silent = await start(gateway.url)
        await wait_until(lambda: engine.open == 2, "both run")
        gateway.sigterm()
        assert await silent.head() == 503
        assert await silent.error_code() == "draining"
        assert b'"code":"draining"' in await live.rest()
        assert live.ended == "clean"
        live.close()
        silent.close()
        assert await gateway.wait() == 0
        assert sorted(line["reason"] for line in gateway.log_lines()) == ["shutdown"] * 2
        assert all(line["released_at"] for line in gateway.log_lines())
        assert engine.open == 0


async def test_a_second_signal_does_not_wait(redis_url: str, engine: ScriptedEngine, tmp_path: Path) -> None:
    async with rig(
        tmp_path, redis_url, engines=[engine.url], gateways=1, budgets={"drain_ms": 60_000}
    ) as made:
        gateway = made.gateways[0]
        engine.answer = Stream(hold_after=1)
        call = await start(gateway.url)
        await call.first_token()
        gateway.sigterm()
        await wait_until(lambda: '"draining"' in gateway.log_text(), "draining has begun")
        gateway.signal(signal.SIGINT)
        assert await gateway.wait(5) == 0
        call.close()
        assert [line["reason"] for line in gateway.log_lines()] == ["shutdown"]


async def test_signals_that_go_on_until_it_is_gone_do_not_spoil_a_clean_end(
    redis_url: str, engine: ScriptedEngine, tmp_path: Path
) -> None:
    """An orchestrator that is told -15 takes a drained replica for one that crashed."""
    async with alone(tmp_path, redis_url, engine, drain_ms=300) as made:
        gateway = made.gateways[0]
        while gateway.alive:
            gateway.sigterm()
            await asyncio.sleep(0)
        assert await gateway.wait() == 0
        assert '"stopped"' in gateway.log_text()


async def test_a_drain_without_redis_still_ends(
    redis_server: RedisServer, redis_url: str, engine: ScriptedEngine, tmp_path: Path
) -> None:
    async with rig(tmp_path, redis_url, engines=[engine.url], gateways=1) as made:
        gateway = made.gateways[0]
        engine.answer = Stream(hold_after=1)
        call = await start(gateway.url)
        await call.first_token()
        redis_server.stop()
        engine.finish_all()
        await call.rest()
        assert call.ended == "clean"
        call.close()
        gateway.sigterm()
        assert await gateway.wait(15) == 0
        assert [(line["reason"], line["released_at"]) for line in gateway.log_lines()] == [
            ("completed", None)
        ]


def fails_to_start(folder: Path, config: Path, *, port: int = 0) -> tuple[int, str]:
    failing = processes.gateway(folder, config, port=port or None)
    code = asyncio.run(failing.wait())
    return code, failing.log_text()


@pytest.mark.parametrize(
    ("sections", "field"),
    [
        ({"gateway": {"prot": 1}}, "prot"),
        ({"lease": {"ttl_ms": 2000}}, "ttl_ms"),
        ({"redis": {"url": "http://x"}}, "redis.url"),
        ({"tenants": {"a}:b": None}}, "tenant"),
        ({"fleet": {"cold": 9}}, "cold"),
    ],
)
def test_a_wrong_configuration_stops_the_start_with_one_line(
    tmp_path: Path, sections: dict[str, Any], field: str
) -> None:
    redis_url = "redis://127.0.0.1:1/0"
    if "redis" in sections:
        redis_url = sections.pop("redis")["url"]
    config = write_config(tmp_path, redis_url, ["http://127.0.0.1:1"], **sections)
    code, log = fails_to_start(tmp_path, config)
    assert code == 1
    assert len(log.splitlines()) == 1
    assert field in log


def test_a_port_in_use_stops_the_start_with_one_line(tmp_path: Path, redis_url: str) -> None:
    config = write_config(tmp_path, redis_url, ["http://127.0.0.1:1"])
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, log = fails_to_start(tmp_path, config, port=port)
    assert code == 1
    assert len(log.splitlines()) == 1
    assert f"127.0.0.1:{port}" in log
    assert "in use" in log


def test_a_redis_that_evicts_stops_the_start_with_one_line(tmp_path: Path, spare_redis: Any) -> None:
    redis = spare_redis("--maxmemory", "50mb", "--maxmemory-policy", "allkeys-lru")
    config = write_config(tmp_path, redis.url, ["http://127.0.0.1:1"])
    code, log = fails_to_start(tmp_path, config)
    assert code == 1
    assert len([line for line in log.splitlines() if not line.startswith("{")]) == 1
    assert "maxmemory-policy" in log


async def test_it_starts_without_redis_and_serves_once_redis_is_there(
    redis_server: RedisServer, redis_url: str, engine: ScriptedEngine, tmp_path: Path
) -> None:
    config = write_config(tmp_path, redis_url, [engine.url])
    redis_server.stop()
    gateway = processes.gateway(tmp_path, config)
    try:
        await wait_until(lambda: '"listening"' in gateway.log_text(), "it listens", 10)
        answer = await fetch(gateway.url, "/v1/chat/completions", method="POST", key=KEY, body=chat_body())
        assert answer.status == 503
        redis_server.start()
        await gateway.ready()
        answer = await fetch(gateway.url, "/v1/chat/completions", method="POST", key=KEY, body=chat_body())
        assert answer.status == 200
    finally:
        await gateway.end()


async def test_workers_share_a_port_and_are_holders_of_their_own(
    redis_url: str, redis_server: RedisServer, engine: ScriptedEngine, tmp_path: Path
) -> None:
    """A limit that each worker kept for itself would let in twice as many."""
    async with rig(tmp_path, redis_url, engines=[engine.url], gateways=1, gateway={"workers": 2}) as made:
        gateway = made.gateways[0]
        await wait_until(lambda: gateway.log_text().count('"listening"') == 2, "both listen")
        engine.answer = Stream(hold_after=1)
        calls = [await start(gateway.url) for _ in range(12)]
        statuses = sorted([await call.head() for call in calls])
        assert statuses == [200] * 4 + [429] * 8
        holders = redis_server.cli("ZRANGE", "tenure:{demo}:gateways", 0, -1)
        assert sorted(holder.partition("~")[0] for holder in holders) == ["g1-w1", "g1-w2"]
        gateway.sigterm()
        await wait_until(lambda: gateway.log_text().count('"draining"') == 2, "both drain")
        engine.finish_all()
        for call in calls:
            await call.rest()
            call.close()
        assert await gateway.wait() == 0
        reasons = [line["reason"] for line in gateway.log_lines() if line["reason"]]
        assert reasons == ["completed"] * 4


async def test_workers_end_with_a_parent_that_was_killed(
    redis_url: str, engine: ScriptedEngine, tmp_path: Path
) -> None:
    async with rig(tmp_path, redis_url, engines=[engine.url], gateways=1, gateway={"workers": 2}) as made:
        gateway = made.gateways[0]
        await wait_until(lambda: gateway.log_text().count('"listening"') == 2, "both listen")
        gateway.kill9()
        await wait_until(lambda: gateway.log_text().count('"stopped"') == 2, "both have drained")
