"""Administration without HTTP: what may be written, what is shown, and what is left when somebody errs."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final

import pytest

from services.permits.admin import Admin
from services.permits.directory import Directory
from services.permits.errors import BadLimits, BadName, NotFound, PermitError
from services.permits.store import Store
from tests.permits.office import LIMITS, end, everything, start

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.support.redis_server import RedisServer


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
