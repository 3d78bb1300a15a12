"""Administration without HTTP: what may be written, what is shown, and what is left when somebody errs."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
from typing import TYPE_CHECKING, Any, Final

import pytest

from services.permits.admin import Admin
from services.permits.connect import connect
from services.permits.directory import Directory
from services.permits.errors import BadLimits, BadName, NotFound, PermitError
from services.permits.gate import unhurt
from services.permits.model import Demand, Gone
from services.permits.store import Store

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from tests.support.redis_server import RedisServer

LIMITS: Final = {"total": 4, "cold": 4, "tenant_default": 3, "line_max": 9, "engine:e1": 8}


@pytest.fixture
async def store(redis_url: str) -> AsyncIterator[Store]:
    client = connect(redis_url)
    store = Store(client)
    for fleet in ("demo", "other"):
        await store.set_limits(fleet, LIMITS, who="file", seed=True, learning_ms=0)
    try:
        yield store
    finally:
        await client.aclose()


@pytest.fixture
def admin(store: Store) -> Admin:
    return Admin(store, who="ann")


async def everything(store: Store) -> dict[str, Any]:
    """Return all limits, keys and tenants."""
    return {
        "limits": {fleet: await store.limit_fields(fleet) for fleet in await store.fleets()},
        "keys": (await store.key_copy())[1],
        "tenants": await store.tenants(),
    }


async def start(store: Store, lease: str, tenant: str = "acme", *, fleet: str = "demo") -> None:
    demand = Demand(fleet=fleet, tenant=tenant, request_id=lease.rpartition("~")[2], engines=("e1",))
    await store.acquire(demand, lease=lease, holder=lease.rpartition("~")[0])


async def end(store: Store, *leases: str, tenant: str = "acme", fleet: str = "demo") -> None:
    await store.release(fleet, [Gone(lease=lease, tenant=tenant, engine="e1") for lease in leases])


# --- fleets


async def test_a_fleet_is_shown_in_the_shape_of_the_contract(store: Store, admin: Admin) -> None:
    await admin.put_tenant("acme", quotas={"demo": 2})
    await start(store, "g1~a~1")
    shown = (await admin.fleet("demo")).as_json()
    assert shown["pools"] == {
        "total": {"limit": 4, "in_use": 1},
        "cold": {"limit": 4, "in_use": 1},
        "tenants": {"acme": {"limit": 2, "in_use": 1, "waiting": 0}},
        "engines": {"e1": {"limit": 8, "in_use": 1}},
    }
    assert (shown["fleet"], shown["waiting"], shown["over_commit"], shown["learning_ms"]) == ("demo", 0, 0, 0)
    await end(store, "g1~a~1")


async def test_limits_change_together_and_each_change_is_recorded(store: Store, admin: Admin) -> None:
    state = await admin.set_limits("demo", {"total": 2.0, "engine:e1": "5", "shadow": "cold, total"})
    assert (state.counts.limits["total"], state.counts.limits["engine:e1"]) == (2, 5)
    assert state.shadow == ("total", "cold")
    events = [event for event in (await admin.events("demo")).items if event["kind"] == "limit_set"]
    assert [(event["who"], event["field"], event["old"], event["new"]) for event in events] == [
        ("ann", "total", "4", "2"),
        ("ann", "engine:e1", "8", "5"),
        ("ann", "shadow", "", "total cold"),
    ]


@pytest.mark.parametrize("value", [-1, 1.5, 1_000_001, 10**30, "many", "", "-1", "1e3", None, True, [1], "٣"])
async def test_a_limit_that_is_no_whole_number_in_bounds_changes_nothing(
    store: Store, admin: Admin, value: object
) -> None:
    before = await everything(store)
    with pytest.raises(BadLimits, match=r"^total must be a whole number from 0 to 1000000, not"):
        await admin.set_limits("demo", {"cold": 1, "total": value})
    with pytest.raises(BadLimits, match=r"^quotas\.demo must be"):
        await admin.put_tenant(
            "acme", weight=2, quotas={"other": 1, "demo": value if value is not None else -1}
        )
    assert await everything(store) == before


@pytest.mark.parametrize(
    ("changes", "error", "why"),
    [
        ({"total": 1, "totl": 1}, BadLimits, "'totl' is no limit; those are total, cold"),
        ({"total": 1, "tenant:acme": 1}, BadLimits, "'tenant:acme' is no limit"),
        ({"total": 1, "engine:e9": 1}, NotFound, "there is no engine 'e9' in this fleet; its engines are e1"),
        ({"total": 1, "shadow": "all"}, BadLimits, "shadow must be some of total cold tenant engine"),
        ({"total": 1, "shadow": 3}, BadLimits, "shadow must be some of"),
    ],
)
async def test_a_limit_that_is_unknown_changes_nothing(
    store: Store, admin: Admin, changes: dict[str, object], error: type[PermitError], why: str
) -> None:
    before = await everything(store)
    with pytest.raises(error, match=why):
        await admin.set_limits("demo", changes)
    assert await everything(store) == before


MISSING: Final[list[Callable[[Admin], Awaitable[object]]]] = [
    lambda admin: admin.fleet("nope"),
    lambda admin: admin.set_limits("nope", {"total": 1}),
    lambda admin: admin.leases("nope"),
    lambda admin: admin.line("nope"),
    lambda admin: admin.events("nope"),
    lambda admin: admin.tenant("nobody"),
    lambda admin: admin.put_tenant("acme", weight=3, quotas={"demo": 1, "nope": 1}),
    lambda admin: admin.delete_tenant("nobody"),
    lambda admin: admin.add_key("nobody"),
    lambda admin: admin.revoke_key("nobody", "a" * 12),
    lambda admin: admin.drain("g9"),
    lambda admin: admin.revoke("g1~a~9"),
    lambda admin: admin.revoke("no lease at all\r\n"),
    lambda admin: admin.revoke(""),
]


@pytest.mark.parametrize("call", MISSING)
async def test_what_is_not_there_is_said_to_be_missing_and_nothing_changes(
    store: Store, admin: Admin, call: Callable[[Admin], Awaitable[object]]
) -> None:
    before = await everything(store)
    with pytest.raises(NotFound) as caught:
        await call(admin)
    assert "\n" not in str(caught.value)
    assert await everything(store) == before


# --- tenants and keys


@pytest.mark.parametrize(
    "name", ["", "a b", "a:b", "a}b", "x" * 65, "acme\n", "total", "tenant_default", "ä"]
)
async def test_a_name_that_must_not_reach_a_key_is_refused(store: Store, admin: Admin, name: str) -> None:
    before = await everything(store)
    for call in (admin.put_tenant(name), admin.delete_tenant(name), admin.add_key(name), admin.tenant(name)):
        with pytest.raises(BadName):
            await call
    assert await everything(store) == before


async def test_what_is_not_given_of_a_tenant_stays_as_it_is(admin: Admin) -> None:
    await admin.put_tenant("acme", weight=3, quotas={"demo": 2, "other": 1})
    await admin.put_tenant("acme", quotas={"demo": 5})
    assert (await admin.put_tenant("acme")).quotas == {"demo": 5, "other": 1}
    state = await admin.put_tenant("acme", quotas={"other": None})
    assert (state.weight, state.quotas) == (3, {"demo": 5})


async def test_a_key_is_shown_once_and_only_its_hash_is_kept(
    store: Store, admin: Admin, redis_server: RedisServer
) -> None:
    await admin.put_tenant("acme")
    made = await admin.add_key("acme")
    digest = hashlib.sha256(made.key.encode()).hexdigest()
    assert (await store.key_copy())[1][digest] == "acme"
    (row,) = (await admin.tenant("acme")).keys
    assert (row.key_id, row.last4) == (digest[:12], made.key[-4:])
    assert made.key[:-4] not in str(redis_server.cli("HGETALL", "tenure:keys"))
    assert made.key[:-4] not in str((await admin.events()).items)


async def test_a_revoked_key_stays_revoked_whatever_a_file_says(store: Store, admin: Admin) -> None:
    digest = hashlib.sha256(b"from-the-file").hexdigest()
    file = Directory(store, {digest: "acme"})
    await file.refresh()
    assert file.tenant_of("from-the-file") == "acme"
    assert [row.last4 for row in (await admin.tenant("acme")).keys] == [""]
    await admin.revoke_key("acme", digest[:12])
    await file.refresh()
    assert file.tenant_of("from-the-file") is None
    again = Directory(store, {digest: "acme"})
    await again.refresh()
    assert again.tenant_of("from-the-file") is None
    with pytest.raises(NotFound):
        await admin.revoke_key("acme", digest[:12])


async def test_a_key_cannot_be_revoked_in_the_name_of_another_tenant(admin: Admin) -> None:
    await admin.put_tenant("acme")
    await admin.put_tenant("other")
    made = await admin.add_key("acme")
    for key_id in (made.key_id, made.key_id.upper(), made.key_id[:11], f"{made.key_id}0", "*", ""):
        with pytest.raises(NotFound):
            await admin.revoke_key("other", key_id)
    assert len((await admin.tenant("acme")).keys) == 1


async def test_a_removed_tenant_stays_removed_whatever_a_file_says(store: Store, admin: Admin) -> None:
    digest = hashlib.sha256(b"from-the-file").hexdigest()
    await Directory(store, {digest: "acme"}).refresh()
    await admin.put_tenant("acme", weight=7, quotas={"demo": 0})
    await admin.delete_tenant("acme")
    await Directory(store, {digest: "acme"}).refresh()
    await store.set_limits("demo", {**LIMITS, "tenant:acme": 2, "weight:acme": 4}, who="file", seed=True)
    assert await admin.tenants() == []
    back = await admin.put_tenant("acme")
    assert (back.weight, back.quotas, back.keys) == (1, {}, [])


async def test_what_was_taken_back_stays_so_when_redis_loses_its_data(
    store: Store, admin: Admin, redis_server: RedisServer
) -> None:
    """The gateway that writes its memory back writes keys, notes and removals, not only what is left."""
    digest = hashlib.sha256(b"from-the-file").hexdigest()
    gateway = Directory(store, {digest: "acme"})
    await gateway.refresh()
    kept = await admin.add_key("acme")
    await admin.revoke_key("acme", digest[:12])
    await admin.put_tenant("gone")
    await admin.delete_tenant("gone")
    await gateway.refresh()
    redis_server.cli("FLUSHALL")
    await gateway.refresh()
    state = await admin.tenant("acme")
    assert [(row.key_id, row.last4) for row in state.keys] == [(kept.key_id, kept.key[-4:])]
    assert await admin.tenants() == ["acme"]
    assert gateway.tenant_of(kept.key) == "acme"


async def test_a_removal_that_was_interrupted_is_completed_by_the_next_one(
    store: Store, admin: Admin
) -> None:
    await admin.put_tenant("acme", weight=3, quotas={"demo": 2, "other": 1})
    await store.set_tenant("acme", who="ann", mode="remove")
    await admin.delete_tenant("acme")
    assert not (await store.limit_fields("demo"))["tenant:acme"]
    assert not (await store.limit_fields("other"))["weight:acme"]
    with pytest.raises(NotFound):
        await admin.delete_tenant("acme")


async def test_a_tenant_of_a_file_that_has_no_key_can_be_given_one(store: Store, admin: Admin) -> None:
    await Directory(store, {}, ["acme"]).refresh()
    assert await admin.tenants() == ["acme"]
    await admin.add_key("acme")


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
