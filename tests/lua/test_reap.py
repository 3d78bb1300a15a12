"""reap takes back what dead holders left, mends what disagrees, and reports each lease once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.lua.fleet import TIMES, RawFleet, held

if TYPE_CHECKING:
    from collections.abc import Callable

DEAD = "dead~d1"
ALL = ("tenant:acme", "engine:e1")
SETTLED, DRIFT, MORE = 3, 4, 5


def reported(reply: list[Any]) -> list[str]:
    """Return the leases that a reply reports as reclaimed."""
    return list(reply[6::6])


def reap_until_done(fleet: RawFleet) -> list[str]:
    leases = []
    while True:
        reply = fleet.reap(ALL)
        leases += reported(reply)
        if not reply[MORE]:
            return leases


def test_a_healthy_fleet_has_nothing_to_mend(fleet: RawFleet) -> None:
    for n in range(20):
        fleet.acquire(f"g1~a1~{n}")
    fleet.tick(*(held(f"g1~a1~{n}") for n in range(10)))
    fleet.downgrade("g1~a1~3")
    fleet.release("g1~a1~4")
    leases = [f"g1~a1~{n}" for n in range(20)]
    assert fleet.reap(ALL, leases) == ["REAPED", fleet.meta("epoch"), 20, 0, 0, 0]
    assert len(fleet.live()) == 19


def test_a_dead_holders_lease_is_reported_with_its_facts(fleet: RawFleet) -> None:
    fleet.acquire(f"{DEAD}~1", "acme", engines=("e2",), holder=DEAD)
    fleet.expire_provisional()
    reply = fleet.reap()
    assert reply[SETTLED:6] == [1, 0, 0]
    assert reply[6:11] == [f"{DEAD}~1", "acme", DEAD, "cold", "e2"]
    assert 0 <= int(reply[11]) < 60_000
    assert fleet.no_trace_of(f"{DEAD}~1")
    assert fleet.events("reclaimed")[0]["lease"] == f"{DEAD}~1"


def test_a_living_gateways_leases_are_left_alone(fleet: RawFleet) -> None:
    fleet.acquire("dead~d1~1", holder=DEAD)
    fleet.acquire("g1~a1~1")
    fleet.tick(held("g1~a1~1"))
    fleet.expire_provisional()
    assert reported(fleet.reap(ALL)) == ["dead~d1~1"]
    assert fleet.live() == {"g1~a1~1"}


@pytest.mark.parametrize("overdue", [1, 127, 128, 129, 1000])
def test_each_lease_is_reported_exactly_once_however_many_ran_out_together(
    fleet: RawFleet, overdue: int
) -> None:
    leases = [f"{DEAD}~{n}" for n in range(overdue)]
    for start in range(0, overdue, 500):
        fleet.tick(*(held(lease) for lease in leases[start : start + 500]), holder=DEAD)
    fleet.client.delete(fleet.keys.events)
    fleet.expire_all()
    assert sorted(reap_until_done(fleet)) == sorted(leases)
    assert reported(fleet.reap(ALL)) == []
    assert fleet.client.keys("*:lease:*") == fleet.client.keys("*:pool:*") == []


def test_two_reapers_share_the_report(fleet: RawFleet) -> None:
    for n in range(300):
        fleet.acquire(f"{DEAD}~{n}", holder=DEAD)
        if n == 98:
            fleet.set_limits({"total": 1000, "cold": 1000, "tenant_default": 1000})
    fleet.expire_provisional()
    first, second = fleet.reap(ALL), fleet.reap(ALL)
    leases = reported(first) + reported(second) + reap_until_done(fleet)
    assert len(leases) == len(set(leases)) == 300
    assert reported(first)
    assert reported(second)


@pytest.mark.parametrize("verb", ["acquire", "tick", "release", "downgrade", "move"])
def test_what_another_script_settled_is_reported_too(fleet: RawFleet, verb: str) -> None:
    """Whoever drops an overdue lease, the reaper tells of it."""
    fleet.acquire(f"{DEAD}~1", holder=DEAD)
    fleet.expire_provisional()
    calls: dict[str, Callable[[], object]] = {
        "acquire": lambda: fleet.acquire("new"),
        "tick": fleet.tick,
        "release": lambda: fleet.release("none"),
        "downgrade": lambda: fleet.downgrade("none"),
        "move": lambda: fleet.move("none", "e1"),
    }
    calls[verb]()
    assert f"{DEAD}~1" not in fleet.pool("total")
    reply = fleet.reap()
    assert (reply[SETTLED], reported(reply)) == (0, [f"{DEAD}~1"])
    assert reported(fleet.reap()) == []


def test_a_lost_meta_record_does_not_repeat_old_reports(fleet: RawFleet) -> None:
    """`DEL meta` is what an operator does to force a new epoch; it must not count old reclaims again."""
    fleet.acquire(f"{DEAD}~1", holder=DEAD)
    fleet.expire_provisional()
    fleet.reap()
    fleet.client.delete(fleet.keys.meta)
    assert reported(fleet.reap()) == []
    fleet.advance(TIMES.learning_ms)
    fleet.acquire(f"{DEAD}~2", holder=DEAD)
    fleet.expire_provisional()
    assert reported(fleet.reap()) == [f"{DEAD}~2"]


def test_limit_changes_in_the_event_stream_are_passed_over(fleet: RawFleet) -> None:
    fleet.acquire(f"{DEAD}~1", holder=DEAD)
    fleet.expire_provisional()
    fleet.set_limits({"total": 5})
    fleet.reap()
    fleet.set_limits({"total": 6})
    reply = fleet.reap()
    assert reported(reply) == []
    assert reply[MORE] == 0


# --- ghosts: the sets and the records disagree


@pytest.mark.parametrize("pool", ["cold", "tenant:acme", "engine:e1"])
def test_a_member_that_no_lease_accounts_for_is_removed(fleet: RawFleet, pool: str) -> None:
    fleet.client.zadd(fleet.keys.pool(pool), {f"{DEAD}~1": fleet.now + 1000_000_000})
    fleet.client.zadd(fleet.keys.pool(pool), {f"{DEAD}~2": fleet.now + TIMES.ttl_ms // 2})
    assert fleet.reap(ALL)[DRIFT] >= 2
    assert fleet.pool(pool) == {}
    assert fleet.reap(ALL)[DRIFT] == 0


@pytest.mark.parametrize("pool", ["cold", "tenant:acme", "engine:e1"])
def test_a_member_of_a_living_gateway_is_left_to_its_tick(fleet: RawFleet, pool: str) -> None:
    """Only the holder knows whether it still runs; its next tick adds the rest."""
    fleet.acquire("g1~a1~1")
    fleet.tick(held("g1~a1~1"))
    fleet.client.delete(fleet.keys.total)
    assert fleet.reap(ALL)[DRIFT] >= 1
    assert set(fleet.pool(pool)) == {"g1~a1~1"}
    fleet.tick(held("g1~a1~1"))
    assert fleet.reap(ALL, ["g1~a1~1"])[DRIFT] == 0


def test_a_record_without_its_member_is_removed_unless_its_gateway_lives(fleet: RawFleet) -> None:
    fleet.acquire(f"{DEAD}~1", holder=DEAD)
    fleet.acquire("g1~a1~1")
    fleet.tick(held("g1~a1~1"))
    for pool in ("total", "cold", *ALL):
        fleet.client.delete(fleet.keys.pool(pool))
    assert fleet.reap(ALL, [f"{DEAD}~1", "g1~a1~1", "never"])[DRIFT] == 2
    assert fleet.no_trace_of(f"{DEAD}~1")
    assert fleet.record("g1~a1~1")


def test_a_partial_record_without_its_member_is_removed_too(fleet: RawFleet) -> None:
    fleet.client.hset(fleet.keys.lease(f"{DEAD}~1"), "phase", "decode")
    assert fleet.reap(ALL, [f"{DEAD}~1"])[DRIFT] == 1
    assert fleet.no_trace_of(f"{DEAD}~1")


def test_a_member_without_its_record_is_seen_and_ends_with_its_lease(fleet: RawFleet) -> None:
    fleet.acquire(f"{DEAD}~1", holder=DEAD)
    fleet.client.delete(fleet.keys.lease(f"{DEAD}~1"))
    assert fleet.reap(ALL)[DRIFT] == 1
    assert fleet.live() == {f"{DEAD}~1"}
    fleet.expire_provisional()
    assert fleet.reap(ALL)[SETTLED] == 1
    assert fleet.no_trace_of(f"{DEAD}~1")


@pytest.mark.parametrize("pool", ["tenant:acme", "engine:e1"])
def test_a_lease_that_lost_a_place_is_seen_and_whole_after_the_next_tick(fleet: RawFleet, pool: str) -> None:
    fleet.acquire("g1~a1~1")
    fleet.tick(held("g1~a1~1"))
    fleet.client.delete(fleet.keys.pool(pool))
    assert fleet.reap(ALL)[DRIFT] == 1
    fleet.tick(held("g1~a1~1"))
    assert fleet.reap(ALL)[DRIFT] == 0


@pytest.mark.parametrize("pool", ["total", "cold", "tenant:acme", "engine:e1"])
def test_an_expiry_that_no_tick_can_have_written_is_cut_to_one_ttl(fleet: RawFleet, pool: str) -> None:
    """A lease that can never run out would block a place for ever."""
    fleet.acquire(f"{DEAD}~1", holder=DEAD)
    fleet.client.zadd(fleet.keys.pool(pool), {f"{DEAD}~1": 9_000_000_000_000})
    assert fleet.reap(ALL)[DRIFT] == 1
    assert fleet.pool(pool)[f"{DEAD}~1"] <= fleet.now + TIMES.ttl_ms
    fleet.expire_all()
    fleet.reap(ALL)
    assert fleet.no_trace_of(f"{DEAD}~1")


def test_it_starts_an_epoch_when_redis_is_empty(new_fleet: RawFleet) -> None:
    assert new_fleet.reap() == ["REAPED", "epoch1", 0, 0, 0, 0]
    assert new_fleet.acquire("a")[0] == "LEARNING"
