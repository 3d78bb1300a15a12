"""The calls that take no permit."""

import json
from typing import Any

from tests.support.answers import Stream
from tests.support.client import CHAT, Answer, chat_body, fetch
from tests.support.config_file import key_of
from tests.support.redis_server import RedisServer
from tests.support.scripted_engine import ScriptedEngine
from tests.support.waiting import wait_until


async def ask(gateway: Any, body: dict[str, Any], **request: Any) -> Answer:
    return await fetch(gateway.url, CHAT, method="POST", key=key_of("acme"), body=body, **request)


async def test_a_healthy_gateway_is_alive_and_ready(gateway: Any) -> None:
    for path in ("/healthz", "/readyz"):
        assert (await fetch(gateway.url, path)).status == 200
        head = await fetch(gateway.url, path, method="HEAD")
        assert (head.status, head.body) == (200, b"")


async def test_without_redis_it_is_alive_but_not_ready_and_says_why(
    gateway: Any, redis_server: RedisServer
) -> None:
    redis_server.stop()

    async def unready() -> bool:
        return (await fetch(gateway.url, "/readyz")).status == 503

    await wait_until(unready, "not ready")
    assert json.loads((await fetch(gateway.url, "/readyz")).body)["reason"] == "redis unavailable"
    assert (await fetch(gateway.url, "/healthz")).status == 200
    metrics = (await fetch(gateway.url, "/metrics")).body.decode()
    assert "tenure_redis_up 0.0" in metrics
    assert "tenure_pool_in_use{" not in metrics


async def test_redis_away_is_a_503_within_a_moment(
    open_gateway: Any, redis_server: RedisServer, engine: ScriptedEngine
) -> None:
    """Nobody waits, nothing reaches the engine, and it is not called a quota."""
    gateway = await open_gateway(fleet={"redis_loss": "closed"})
    redis_server.stop()
    for _ in range(5):
        answer = await fetch(
            gateway.url,
            "/v1/chat/completions",
            method="POST",
            key=key_of("acme"),
            body=chat_body(),
            patience_s=1.5,
        )
        assert answer.status == 503
        assert json.loads(answer.body)["error"]["code"] == "admission_unavailable"
        assert 1 <= int(answer.headers["retry-after"]) <= 60
    assert not engine.requests


async def test_a_full_fleet_does_not_hold_up_health(gateway: Any, engine: ScriptedEngine) -> None:
    engine.answer = Stream(hold_after=1)
    calls = [await gateway.call() for _ in range(20)]
    for call in calls:
        await call.head()
    assert sorted(call.status for call in calls) == [200] * 4 + [429] * 16
    assert (await fetch(gateway.url, "/healthz")).status == 200
    assert (await fetch(gateway.url, "/readyz")).status == 200
    text = (await fetch(gateway.url, "/metrics")).body.decode()
    assert 'tenure_pool_in_use{fleet="demo",pool="total"} 4.0' in text
    assert 'tenure_pool_limit{fleet="demo",pool="total"} 4.0' in text
    assert 'tenure_tenant_in_use{fleet="demo",tenant="acme"} 4.0' in text
    assert 'tenure_admissions_total{fleet="demo",outcome="granted"} 4.0' in text
    assert 'tenure_admissions_total{fleet="demo",outcome="total_pool_full"} 16.0' in text
    for call in calls:
        call.reset()
    await gateway.is_idle()


async def test_every_refusal_for_want_of_room_says_when_to_return(
    gateway: Any, engine: ScriptedEngine
) -> None:
    engine.answer = Stream(hold_after=1)
    calls = [await gateway.call() for _ in range(4)]
    for call in calls:
        assert await call.head() == 200
    waits = set()
    for _ in range(30):
        refused = await gateway.call()
        assert await refused.head() == 429
        assert refused.headers["content-type"] == "application/json"
        waits.add(int(refused.headers["retry-after"]))
        assert await refused.error_code() == "total_pool_full"
        refused.close()
    assert len(waits) >= 2
    assert waits <= set(range(1, 61))
    for call in calls:
        call.reset()
    await gateway.is_idle()


async def test_models_are_listed_for_whoever_may_use_them(open_gateway: Any) -> None:
    gateway = await open_gateway(fleet={"models": ["demo", "demo-*"]}, tenants={"acme": None, "closed": 0})

    async def listed(key: str | None) -> tuple[int, list[str]]:
        answer = await fetch(gateway.url, "/v1/models", key=key)
        return answer.status, [model["id"] for model in json.loads(answer.body).get("data", [])]

    assert await listed(key_of("acme")) == (200, ["demo", "demo-*"])
    assert await listed(key_of("closed")) == (200, [])
    assert await listed("wrong") == (401, [])
    assert await listed(None) == (401, [])


async def test_a_glob_serves_what_no_name_does(open_gateway: Any, engine: ScriptedEngine) -> None:
    gateway = await open_gateway(fleet={"models": ["demo", "llama-*"]})
    for model, status in (("llama-3", 200), ("llama-", 200), ("llama", 404), ("demo", 200), ("demo2", 404)):
        answer = await ask(gateway, chat_body(model))
        assert answer.status == status
    assert [seen.json()["model"] for seen in engine.requests] == ["llama-3", "llama-", "demo"]


async def test_a_closed_fleet_serves_nobody(open_gateway: Any, engine: ScriptedEngine) -> None:
    gateway = await open_gateway(tenants={"acme": 0})
    call = await gateway.call()
    assert await call.head() == 429
    assert await call.error_code() == "tenant_quota"
    call.close()
    assert not engine.requests


async def test_the_cold_place_goes_back_at_the_first_token_when_the_fleet_says_so(
    open_gateway: Any, engine: ScriptedEngine
) -> None:
    gateway = await open_gateway(fleet={"cold": 1, "cold_until": "first_token"})
    engine.answer = Stream(hold_after=1)
    calls = []
    for _ in range(4):
        call = await gateway.call()
        assert await call.first_token() == " token0"
        calls.append(call)

        async def cold_is_free() -> bool:
            return bool((await gateway.app.gate.count("demo")).cold == 0)

        await wait_until(cold_is_free, "the cold place went back")
    fifth = await gateway.call()
    assert await fifth.head() == 429
    fifth.close()
    assert (await gateway.app.gate.count("demo")).total == 4
    for call in calls:
        call.reset()
    await gateway.is_idle()


async def test_nothing_is_served_elsewhere(gateway: Any) -> None:
    answer = await fetch(gateway.url, "/admin")
    assert answer.status == 404
    assert json.loads(answer.body)["error"]["code"] == "not_found"
