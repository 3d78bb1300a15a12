"""Limits, quotas and keys changed through one replica while traffic flows through another."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.admin_client import ADMIN, AdminClient
from tests.support.answers import Stream
from tests.support.client import Call, chat_body, fetch
from tests.support.streams import LONG, Streams, end_cleanly, refusal
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.gateway.conftest import Gateway, OpenGateway
    from tests.support.redis_server import RedisServer
    from tests.support.scripted_engine import ScriptedEngine

PATIENT = {"queue_ms": 20_000}


async def two(open_gateway: OpenGateway, **config: Any) -> tuple[Gateway, Gateway]:
    """Start two replicas of one fleet that can be administered."""
    first = await open_gateway(admin=ADMIN, **config)
    return first, await open_gateway(admin=ADMIN, **config)


@pytest.fixture
def streams() -> Iterator[Streams]:
    with Streams() as opened:
        yield opened


async def in_use(admin: AdminClient, pool: str = "total") -> int:
    return int((await admin.ok("GET", "/fleets/demo"))["pools"][pool]["in_use"])


async def test_a_limit_lowered_below_its_use_cuts_nobody_and_admits_nobody_until_it_is_met(
    open_gateway: OpenGateway, engine: ScriptedEngine, streams: Streams
) -> None:
    engine.answer = LONG
    g1, g2 = await two(open_gateway)
    admin = AdminClient(g1.url)
    calls = [*await streams.running(g1.url, 2), *await streams.running(g2.url, 2)]
    shown = await admin.set_limits(total=2)
    assert shown["pools"]["total"] == {"limit": 2, "in_use": 4}
    assert shown["over_commit"] == 2
    assert await refusal(g2.url) == (429, "total_pool_full")
    for left in (3, 2):
        engine.finish(1)

        async def ended(left: int = left) -> bool:
            return await in_use(admin) == left

        await wait_until(ended, f"{left} are left")
        assert await refusal(g1.url) == (429, "total_pool_full")
    engine.finish(1)
    await wait_until(lambda: engine.open == 1, "one is left")

    async def admitted() -> bool:
        with await g2.call() as call:
            if await call.head() != 200:
                return False
            engine.finish_all()
            await call.rest()
            return True

    await wait_until(admitted, "below the limit a new one is admitted")
    await end_cleanly(*calls)


async def test_a_limit_of_nothing_closes_the_pool_and_touches_nothing_live(
    open_gateway: OpenGateway, engine: ScriptedEngine, streams: Streams
) -> None:
    engine.answer = LONG
    g1, g2 = await two(open_gateway)
    (call,) = await streams.running(g1.url)
    await AdminClient(g2.url).set_limits(total=0)
    assert await refusal(g1.url) == (429, "total_pool_full")
    engine.finish_all()
    await end_cleanly(call)


async def test_who_waits_and_fits_starts_when_the_limit_is_raised(
    open_gateway: OpenGateway, engine: ScriptedEngine, streams: Streams
) -> None:
    """Not with the next release and not with the next tick: at once, on whichever replica it waits."""
    engine.answer = LONG
    g1, g2 = await two(open_gateway, fleet={"total": 1, "cold": 1}, budgets=PATIENT)
    admin = AdminClient(g1.url)
    (first,) = await streams.running(g1.url)
    waiting = await streams.waiting(g2.url, 3)

    async def in_line() -> bool:
        return len((await admin.ok("GET", "/fleets/demo/line"))["line"]) == 3

    await wait_until(in_line, "three stand in line")
    metrics = (await fetch(g1.url, "/metrics")).body.decode()
    assert 'tenure_line_length{fleet="demo"} 3.0' in metrics
    raised_at = time.monotonic()
    await admin.set_limits(total=3, cold=3)
    await wait_until(lambda: engine.open == 3, "two more run", 1.0)
    assert time.monotonic() - raised_at < 1.0
    (waiter,) = (await admin.ok("GET", "/fleets/demo/line"))["line"]
    assert (waiter["tenant"], waiter["class"]) == ("acme", "cold")
    assert 0 < waiter["deadline_in_ms"] <= 20_000
    engine.answer = Stream()
    engine.finish_all()
    await end_cleanly(first, *waiting)
    metrics = (await fetch(g2.url, "/metrics")).body.decode()
    assert 'tenure_admissions_total{fleet="demo",outcome="queued"} 3.0' in metrics
    assert 'tenure_line_length{fleet="demo"} 0.0' in metrics
    assert 'tenure_pool_limit{fleet="demo",pool="total"} 3.0' in metrics


async def test_a_quota_holds_on_every_replica_with_the_next_request(
    open_gateway: OpenGateway, engine: ScriptedEngine, streams: Streams
) -> None:
    engine.answer = LONG
    g1, g2 = await two(open_gateway)
    admin = AdminClient(g1.url)
    (call,) = await streams.running(g1.url)
    for quota, answer in ((1, (429, "tenant_quota")), (0, (429, "tenant_quota"))):
        await admin.ok("PUT", "/tenants/acme", {"quotas": {"demo": quota}})
        for gateway in (g2, g1):
            assert await refusal(gateway.url) == answer
    await admin.ok("PUT", "/tenants/acme", {"quotas": {"demo": 2}})
    (second,) = await streams.running(g2.url)
    await admin.ok("PUT", "/tenants/acme", {"quotas": {"demo": None}})
    (third,) = await streams.running(g2.url)
    engine.finish_all()
    await end_cleanly(call, second, third)
    assert [(event["old"], event["new"]) for event in await admin.events("limit_set")] == [
        ("", "1"), ("1", "0"), ("0", "2"), ("2", ""),
    ]  # fmt: skip
    assert {event["who"] for event in await admin.events("limit_set")} == {"ann@127.0.0.1"}


async def test_a_pool_that_is_only_watched_admits_over_its_limit_and_shows_it(
    open_gateway: OpenGateway, engine: ScriptedEngine, streams: Streams
) -> None:
    engine.answer = LONG
    g1, g2 = await two(open_gateway)
    admin = AdminClient(g2.url)
    await admin.set_limits(total=1, cold=1, shadow=["total", "cold"])
    calls = await streams.running(g1.url, 3)
    shown = await admin.ok("GET", "/fleets/demo")
    assert shown["pools"]["total"] == {"limit": 1, "in_use": 3}
    assert (shown["shadow"], shown["over_commit"]) == (["total", "cold"], 2)
    await admin.set_limits(shadow=[])
    assert await refusal(g2.url) == (429, "total_pool_full")
    engine.finish_all()
    await end_cleanly(*calls)


async def test_two_admins_at_once_on_two_replicas_leave_one_true_history(open_gateway: OpenGateway) -> None:
    g1, g2 = await two(open_gateway)
    ann, bob = AdminClient(g1.url, who="ann"), AdminClient(g2.url, who="bob")
    totals = range(5, 25)
    await asyncio.gather(*((ann if n % 2 else bob).set_limits(total=n, cold=n) for n in totals))
    changes = [event for event in await ann.events("limit_set") if event["field"] == "total"]
    assert {event["who"] for event in changes} == {"ann@127.0.0.1", "bob@127.0.0.1"}
    assert sorted(int(event["new"]) for event in changes) == list(totals)
    assert [event["old"] for event in changes] == ["4", *(event["new"] for event in changes[:-1])]
    pools = (await bob.ok("GET", "/fleets/demo"))["pools"]
    assert pools["total"]["limit"] == pools["cold"]["limit"] == int(changes[-1]["new"])


async def test_whatever_somebody_wrote_into_redis_by_hand_breaks_no_page(
    open_gateway: OpenGateway, redis_server: RedisServer
) -> None:
    """At 3 a.m. people type into redis-cli, and then look."""
    gateway: Gateway = await open_gateway(admin=ADMIN)
    admin = AdminClient(gateway.url)
    fleet = "tenure:{demo}:"
    for command in (
        (
            "HSET",
            f"{fleet}limits",
            "total",
            "many",
            "cold",
            "",
            "tenant:acme",
            "-3",
            "weight:acme",
            "2.5",
            "x",
            "y",
        ),
        ("HSET", f"{fleet}limits", "shadow", "everything", "engine:", "1", "tenant:", "1"),
        ("XADD", f"{fleet}events", "*", "note", "hello", "id", "0-1", "at", "noon", "fleet", "other"),
        ("XADD", "tenure:events", "*", "who", "me"),
        ("ZADD", f"{fleet}pool:total", "9999999999999", "no lease", "9999999999999", "g9~a~1"),
        ("HSET", f"{fleet}lease:g9~a~1", "acquired_at", "yesterday"),
        ("ZADD", f"{fleet}gateways", "9999999999999", "someone"),
        ("HSET", f"{fleet}line:waiting", "g9~a~2", "half a record"),
        ("HSET", "tenure:keys", "short", "acme", "#key:0123456789ab", "junk"),
        ("SADD", "tenure:tenants", "a b"),
    ):
        redis_server.cli(*command)
    for path in (
        "/fleets", "/fleets/demo", "/fleets/demo/leases", "/fleets/demo/line", "/tenants", "/tenants/acme",
        "/gateways", "/events",
    ):  # fmt: skip
        await admin.ok("GET", path)
    (note,) = [event for event in (await admin.ok("GET", "/events"))["events"] if event.get("note")]
    assert (note["fleet"], note["kind"]) == ("demo", "")
    assert (await fetch(gateway.url, "/metrics")).status == 200
    redis_server.cli("DEL", f"{fleet}pool:total", f"{fleet}lease:g9~a~1", f"{fleet}line:waiting")


# --- keys


async def status(gateway: Gateway, key: str) -> int:
    return (await fetch(gateway.url, "/v1/models", key=key)).status


async def test_a_key_opens_and_closes_every_replica_within_a_second(
    open_gateway: OpenGateway, engine: ScriptedEngine, streams: Streams
) -> None:
    g1, g2 = await two(open_gateway)
    admin = AdminClient(g1.url)
    await admin.ok("PUT", "/tenants/new", {"quotas": {"demo": 1}})
    made = await admin.ok("POST", "/tenants/new/keys")

    async def works(gateway: Gateway) -> bool:
        return await status(gateway, made["key"]) == 200

    for gateway in (g2, g1):
        await wait_until(lambda gateway=gateway: works(gateway), "the key is known", 1.0)  # type: ignore[misc]
    engine.answer = LONG
    with await Call.start(g2.url, key=made["key"], body=chat_body()) as call:
        assert await call.first_token() is not None
        shown = await admin.ok("GET", "/tenants/new")
        assert [(key["key_id"], key["last4"]) for key in shown["keys"]] == [
            (made["key_id"], made["key"][-4:])
        ]
        await admin.ok("DELETE", f"/tenants/new/keys/{made['key_id']}")

        async def refused(gateway: Gateway) -> bool:
            return await status(gateway, made["key"]) == 401

        for gateway in (g2, g1):
            await wait_until(lambda gateway=gateway: refused(gateway), "the key is refused", 1.0)  # type: ignore[misc]
        engine.finish_all()
        await end_cleanly(call)
    changes = await all_of(admin, "key_added", "key_revoked")
    assert [(event["kind"], event["tenant"]) for event in changes] == [
        ("key_added", "new"), ("key_revoked", "new"),
    ]  # fmt: skip
    assert (await admin.fails("DELETE", f"/tenants/new/keys/{made['key_id']}"))[0] == 404


async def all_of(admin: AdminClient, *kinds: str) -> list[dict[str, Any]]:
    events = [event for kind in kinds for event in await admin.events(kind)]
    return sorted(events, key=lambda event: int(event["at"]))


async def test_a_removed_tenant_is_refused_and_its_streams_run_on(
    open_gateway: OpenGateway, engine: ScriptedEngine, streams: Streams
) -> None:
    engine.answer = LONG
    g1, g2 = await two(open_gateway, tenants={"acme": 2, "zeta": None})
    admin = AdminClient(g2.url)
    (call,) = await streams.running(g1.url)
    await admin.ok("DELETE", "/tenants/acme")

    async def refused() -> bool:
        return await refusal(g1.url) == (401, "invalid_api_key")

    await wait_until(refused, "its key is refused", 1.0)
    (other,) = await streams.running(g1.url, tenant="zeta")
    engine.finish_all()
    await end_cleanly(call, other)
    assert (await admin.fails("DELETE", "/tenants/acme"))[0] == 404
    assert (await admin.ok("GET", "/tenants"))["tenants"] == ["zeta"]


@pytest.mark.parametrize("page", [1, 3])
async def test_leases_are_listed_in_pages(
    open_gateway: OpenGateway, engine: ScriptedEngine, streams: Streams, page: int
) -> None:
    engine.answer = LONG
    g1, g2 = await two(open_gateway)
    calls = [*await streams.running(g1.url, 2), *await streams.running(g2.url, 2)]
    seen, cursor = [], ""
    while True:
        answer = await AdminClient(g2.url).ok("GET", f"/fleets/demo/leases?limit={page}&cursor={cursor}")
        seen += answer["leases"]
        cursor = answer["cursor"]
        if not cursor:
            break
    assert {lease["lease"] for lease in seen} == {call.headers["tenure-lease"] for call in calls}
    assert {lease["request_id"] for lease in seen} == {call.headers["x-request-id"] for call in calls}
    assert set(seen[0]) == {
        "lease", "request_id", "tenant", "class", "engine", "holder", "phase", "acquired_at", "age_ms",
        "expires_in_ms",
    }  # fmt: skip
    engine.finish_all()
    await end_cleanly(*calls)
