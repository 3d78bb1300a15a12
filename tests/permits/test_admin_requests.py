"""Administration without HTTP: requests, gateways, and the history of it all."""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING, Any

import pytest

from services.permits.admin import Admin
from services.permits.connect import connect
from services.permits.errors import BadLimits, NotFound
from services.permits.gate import unhurt
from services.permits.store import Store
from tests.permits.office import LIMITS, end, start

if TYPE_CHECKING:
    from tests.support.redis_server import RedisServer


# --- requests


async def test_leases_come_in_pages_that_miss_none_and_repeat_none(store: Store, admin: Admin) -> None:
    await admin.set_limits("demo", {"total": 100, "cold": 100, "tenant_default": 100, "engine:e1": 100})
    leases = [f"g1~a~{number:02}" for number in range(25)]
    for lease in leases:
        await start(store, lease, "acme" if int(lease[-2:]) % 2 else "zeta")
    seen, cursor, sizes = [], "", []
    while True:
        page = await admin.leases("demo", limit=10, cursor=cursor)
        seen += [row.lease for row in page.items]
        sizes.append(len(page.items))
        # One that ends between two pages moves nothing.
        if not cursor:
            await end(store, "g1~a~03")
        cursor = page.cursor
        if not cursor:
            break
    assert (seen, sizes) == (leases, [10, 10, 5])
    rows = (await admin.leases("demo", tenant="zeta", limit=1000)).items
    assert [row.lease for row in rows] == leases[::2]
    for tenant in ("acme", "zeta"):
        await end(store, *leases, tenant=tenant)


@pytest.mark.parametrize("limit", [0, -1, 1001])
async def test_a_page_has_bounds(admin: Admin, limit: int) -> None:
    with pytest.raises(BadLimits, match="limit must be a whole number from 1 to 1000"):
        await admin.leases("demo", limit=limit)
    with pytest.raises(BadLimits, match="limit must be"):
        await admin.events(limit=limit)


async def test_a_request_is_stopped_by_its_own_tenant_and_its_exact_id_only(
    store: Store, admin: Admin
) -> None:
    request_id = "0123456789abcdef" * 2
    await store.tick("other", holder="g1~a", leases=[], news=frozenset())
    await start(store, f"g1~a~{request_id}", fleet="other")
    for wrong in (request_id[:-1], request_id.upper(), f"{request_id}0", f"g1~a~{request_id}", "*", ""):
        assert not await admin.stop(wrong, "acme")
    assert not await admin.stop(request_id, "zeta")
    assert await admin.stop(request_id, "acme")
    ticked = await store.tick("other", holder="g1~a", leases=[], news=frozenset())
    assert ticked.cut == {}
    await end(store, f"g1~a~{request_id}", fleet="other")
    assert not await admin.stop(request_id, "acme")


async def test_a_lease_that_has_ended_cannot_be_revoked(store: Store, admin: Admin) -> None:
    await start(store, "g1~a~1")
    await admin.revoke("g1~a~1")
    await end(store, "g1~a~1")
    with pytest.raises(NotFound, match="there is no live lease 'g1~a~1': it has ended, or never was"):
        await admin.revoke("g1~a~1")


# --- gateways


async def test_gateways_are_listed_with_what_they_hold_and_told_to_drain_by_name(
    store: Store, admin: Admin, redis_server: RedisServer
) -> None:
    for fleet, holder in (("demo", "g1~a"), ("other", "g1~a"), ("demo", "g2~b")):
        await store.tick(fleet, holder=holder, leases=[], news=frozenset())
    await start(store, "g1~a~1")
    rows = await admin.gateways()
    assert [(row.gateway, row.holder, row.fleets, row.live, row.draining) for row in rows] == [
        ("g1", "g1~a", ("demo", "other"), 1, False),
        ("g2", "g2~b", ("demo",), 0, False),
    ]
    assert all(0 < row.session_expires_in_ms <= 7_500 for row in rows)
    assert await admin.drain("g1") == ["g1~a"]
    assert await admin.drain("g1~a") == ["g1~a"]
    assert [row.draining for row in await admin.gateways()] == [True, False]
    for fleet, holder, told in (("demo", "g1~a", {"*": "drain"}), ("demo", "g2~b", {})):
        assert (await store.tick(fleet, holder=holder, leases=[], news=frozenset())).cut == told
    events = [event for event in (await admin.events()).items if event["kind"] == "drain"]
    assert [(event["who"], event["holder"], event["fleet"]) for event in events] == [
        ("ann", "g1~a", "demo"),
        ("ann", "g1~a", "other"),
    ]
    await end(store, "g1~a~1")
    # Whoever missed three ticks is gone.
    for fleet in ("demo", "other"):
        redis_server.cli("HINCRBY", f"tenure:{{{fleet}}}:meta", "clock", 7_501)
    assert await admin.gateways() == []


# --- history


async def test_events_are_followed_over_all_streams_without_a_gap(admin: Admin) -> None:
    for number in range(12):
        await admin.put_tenant(f"t{number}", quotas={"demo": number, "other": number})
    everything = (await admin.events(limit=1000)).items
    assert len(everything) == 36
    followed, after = [], "0"
    while (page := await admin.events(after=after, limit=5)).items:
        followed += list(page.items)
        after = page.cursor
    assert followed == everything
    assert [event["id"] for event in await admin.newest_events(limit=36)] == [
        event["id"] for event in sorted(everything, key=event_order, reverse=True)
    ]


def event_order(event: dict[str, Any]) -> tuple[int, int]:
    at_ms, _, number = event["id"].partition("-")
    return int(at_ms), int(number)


@pytest.mark.parametrize("after", ["", "x", "-1", "1-", "1-2-3", "9" * 16, "$", "+"])
async def test_events_are_asked_for_by_id_only(admin: Admin, after: str) -> None:
    with pytest.raises(BadLimits, match="after must be the id of an event"):
        await admin.events(after=after)


async def test_two_admins_at_once_leave_one_history_in_which_each_knew_what_it_replaced(
    store: Store, admin: Admin
) -> None:
    bob = Admin(store, who="bob")
    await asyncio.gather(
        *(
            who.set_limits("demo", {"total": n})
            for n, who in zip(range(5, 45), itertools.cycle((admin, bob)), strict=False)
        ),
        *(
            who.put_tenant("acme", quotas={"demo": n})
            for n, who in zip(range(1, 21), itertools.cycle((admin, bob)), strict=False)
        ),
    )
    events = (await admin.events("demo", limit=1000)).items
    for field, first in (("total", "4"), ("tenant:acme", "")):
        changes = [event for event in events if event.get("field") == field]
        assert {event["who"] for event in changes} == {"ann", "bob"}
        assert [event["old"] for event in changes] == [first, *(event["new"] for event in changes[:-1])]
        assert (await store.limit_fields("demo"))[field] == changes[-1]["new"]
    assert (
        len([event for event in (await admin.events(limit=1000)).items if event["kind"] == "tenant_added"])
        == 1
    )


async def test_a_call_that_is_cancelled_leaves_no_reply_for_the_next_one(redis_url: str) -> None:
    """HTTP shields its calls; on one connection a stray reply would be read by whoever comes next."""
    client = connect(redis_url, max_connections=1)
    try:
        store = Store(client)
        await store.set_limits("demo", LIMITS, who="file", seed=True, learning_ms=0)
        admin = Admin(store, who="ann")
        for turns in range(60):
            calls = [
                asyncio.create_task(unhurt(admin.fleet("demo"))),
                asyncio.create_task(unhurt(admin.tenants())),
            ]
            for _ in range(1 + turns % 12):
                await asyncio.sleep(0)
            for call in calls:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)
            assert await admin.fleets() == ["demo"]
            assert (await admin.fleet("demo")).counts.limits == LIMITS
    finally:
        await client.aclose()


async def test_of_two_admins_that_remove_the_same_tenant_one_is_told_so(store: Store, admin: Admin) -> None:
    await admin.put_tenant("acme")
    ends = await asyncio.gather(
        admin.delete_tenant("acme"), Admin(store, who="bob").delete_tenant("acme"), return_exceptions=True
    )
    assert sorted(type(one).__name__ for one in ends) == ["NoneType", "NotFound"]
