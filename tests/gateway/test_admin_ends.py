"""A request is ended from afar: by an administrator or its own caller, running or waiting, on any replica."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.admin_client import ADMIN, AdminClient
from tests.support.client import Call, fetch
from tests.support.config_file import key_of
from tests.support.streams import LONG, Streams, end_cleanly
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.gateway.conftest import Gateway, OpenGateway
    from tests.support.redis_server import RedisServer
    from tests.support.scripted_engine import ScriptedEngine

WITHIN_S = 1.0


@pytest.fixture
def streams() -> Iterator[Streams]:
    with Streams() as opened:
        yield opened


@pytest.fixture
async def pair(open_gateway: OpenGateway, engine: ScriptedEngine) -> tuple[Gateway, Gateway]:
    """Two replicas with one place, patience, and streams that only their end from outside ends."""
    engine.answer = LONG
    config: dict[str, Any] = {
        "admin": ADMIN,
        "fleet": {"total": 2, "cold": 2},
        "tenants": {"acme": None, "zeta": None},
        "budgets": {"queue_ms": 20_000},
        # So long that only the message can have been what told it.
        "lease": {"tick_ms": 5_000, "ttl_ms": 30_000, "provisional_ms": 20_000, "learning_ms": 10_000},
    }
    return await open_gateway(**config), await open_gateway(**config)


async def stop(gateway: Gateway, request_id: str, tenant: str = "acme") -> tuple[int, Any]:
    """Ask for a request to be stopped, in the name of a tenant."""
    path = f"/v1/requests/{request_id}"
    answer = await fetch(gateway.url, path, method="DELETE", key=key_of(tenant))
    return answer.status, json.loads(answer.body)


async def in_line(admin: AdminClient) -> list[dict[str, Any]]:
    return list((await admin.ok("GET", "/fleets/demo/line"))["line"])


async def a_waiter(gateway: Gateway, streams: Streams) -> tuple[Call, dict[str, Any]]:
    """Let one stand in line and return it with its row."""
    admin = AdminClient(gateway.url)
    (call,) = await streams.waiting(gateway.url)

    async def stands() -> bool:
        return len(await in_line(admin)) == 1

    await wait_until(stands, "it stands in line")
    return call, (await in_line(admin))[0]


async def test_a_revoked_lease_ends_its_stream_on_whichever_replica_it_runs(
    pair: tuple[Gateway, Gateway], engine: ScriptedEngine, streams: Streams
) -> None:
    g1, g2 = pair
    admin = AdminClient(g1.url)
    revoked, kept = await streams.running(g2.url, 2)
    lease = revoked.headers["tenure-lease"]
    assert await admin.ok("DELETE", f"/leases/{lease}") == {"lease": lease, "reason": "revoked"}
    await revoked.rest(WITHIN_S)
    await wait_until(lambda: engine.open == 1, "the engine has been let go", WITHIN_S)
    assert (await g2.record())["reason"] == "revoked"
    (event,) = await admin.events("revoked")
    assert (event["who"], event["lease"], event["reason"]) == ("ann@127.0.0.1", lease, "revoked")
    status, code, sentence = await admin.fails("DELETE", f"/leases/{lease}")
    assert (status, code) == (404, "not_found")
    assert "it has ended" in sentence
    engine.finish_all()
    await end_cleanly(kept)
    await g2.is_idle()


async def test_a_caller_stops_its_own_request_on_whichever_replica_it_runs(
    pair: tuple[Gateway, Gateway], engine: ScriptedEngine, streams: Streams
) -> None:
    g1, g2 = pair
    stopped, kept = await streams.running(g2.url, 2)
    request_id = stopped.headers["x-request-id"]
    assert await stop(g1, request_id) == (202, {"request_id": request_id, "reason": "user_stop"})
    await stopped.rest(WITHIN_S)
    await wait_until(lambda: engine.open == 1, "the engine has been let go", WITHIN_S)
    assert (await g2.record())["reason"] == "user_stop"
    status, answer = await stop(g1, request_id)
    assert (status, answer["error"]["code"]) == (404, "unknown_request")
    engine.finish_all()
    await end_cleanly(kept)
    await g2.is_idle()


async def test_nobody_stops_what_is_not_exactly_their_own(
    pair: tuple[Gateway, Gateway], engine: ScriptedEngine, streams: Streams
) -> None:
    """A request of another tenant looks like one that never was; part of an id is no id."""
    g1, g2 = pair
    (call,) = await streams.running(g2.url)
    request_id, lease = call.headers["x-request-id"], call.headers["tenure-lease"]
    strange = await stop(g1, request_id, "zeta")
    unknown = await stop(g1, "0" * 32, "zeta")
    assert strange == unknown
    assert strange[1]["error"]["code"] == "unknown_request"
    for wrong in (
        request_id[:-1],
        request_id[:8],
        f"{request_id}0",
        request_id.upper(),
        lease,
        "*",
        "%2A",
        "a/b",
        "",
    ):
        status, answer = await stop(g1, wrong)
        assert (status, answer["error"]["code"]) == (404, "unknown_request"), wrong
    for key in (None, "no-key", ADMIN["token"]):
        answered = await fetch(g1.url, f"/v1/requests/{request_id}", method="DELETE", key=key)
        assert answered.status == 401
    engine.finish_all()
    await end_cleanly(call)


async def test_a_stop_takes_no_permit_and_does_not_wait_behind_traffic(
    pair: tuple[Gateway, Gateway], streams: Streams
) -> None:
    """A full fleet is just when people stop what they no longer need."""
    g1, g2 = pair
    first, second = await streams.running(g1.url, 2)
    _, row = await a_waiter(g2, streams)
    for gateway, call in ((g2, first), (g1, second)):
        assert (await stop(gateway, call.headers["x-request-id"]))[0] == 202
        await call.rest(WITHIN_S)
    await wait_until(lambda: g2.app.gate.live() == 1, "who waited runs", WITHIN_S)
    assert (await stop(g1, row["request_id"]))[0] == 202
    await g2.is_idle()


@pytest.mark.parametrize("by", ["revoke", "stop"])
async def test_one_that_waits_in_line_is_ended_there_and_never_reaches_the_engine(
    pair: tuple[Gateway, Gateway], engine: ScriptedEngine, streams: Streams, by: str
) -> None:
    g1, g2 = pair
    admin = AdminClient(g1.url)
    running = await streams.running(g1.url, 2)
    call, row = await a_waiter(g2, streams)
    assert (await stop(g1, row["request_id"], "zeta"))[0] == 404
    if by == "revoke":
        await admin.ok("DELETE", f"/leases/{row['lease']}")
    else:
        assert (await stop(g1, row["request_id"]))[0] == 202
    assert await call.head(WITHIN_S) in (403, 429)
    assert await in_line(admin) == []
    engine.finish_all()
    await end_cleanly(*running)
    assert len(engine.requests) == 2
    await g2.is_idle()


async def test_a_message_that_is_lost_is_healed_by_the_next_tick(
    open_gateway: OpenGateway, engine: ScriptedEngine, streams: Streams, redis_server: RedisServer
) -> None:
    """What a revoke leaves in Redis is enough, without its message."""
    engine.answer = LONG
    gateway: Gateway = await open_gateway()
    (call,) = await streams.running(gateway.url)
    redis_server.cli("HSET", f"tenure:{{demo}}:lease:{call.headers['tenure-lease']}", "cut", "revoked")
    await call.rest()
    assert (await gateway.record())["reason"] == "revoked"
    await gateway.is_idle()
