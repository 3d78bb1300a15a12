"""The lease clock: wall clocks that step and outages of any length age leases by two ticks at the most.

Redis's TIME cannot be set from outside; what a script compares it with can: `meta.last`. A `last` one hour in
the past is what a wall clock stepped forward by an hour, a paused server or an outage of an hour looks like.
"""

from __future__ import annotations

import pytest

from tests.lua.fleet import SLACK_MS, TIMES, RawFleet, Told, held, told

HOUR_MS = 3_600_000


@pytest.mark.parametrize("gap_ms", [HOUR_MS, 1000 * HOUR_MS])
def test_a_gap_ages_leases_by_two_ticks_and_no_more(fleet: RawFleet, gap_ms: int) -> None:
    fleet.acquire("a")
    fleet.tick(held("a"))
    before = fleet.now
    fleet.client.hincrby(fleet.keys.meta, "last", -gap_ms)
    fleet.acquire("b")
    assert 2 * TIMES.tick_ms <= fleet.now - before <= 2 * TIMES.tick_ms + SLACK_MS
    assert fleet.live() == {"a", "b"}


def test_a_wall_clock_that_was_stepped_back_costs_nothing(fleet: RawFleet) -> None:
    fleet.acquire("a")
    before = fleet.now
    fleet.client.hincrby(fleet.keys.meta, "last", HOUR_MS)
    fleet.acquire("b")
    assert fleet.now == before
    assert fleet.live() == {"a", "b"}
    # From here on it runs at wall speed again.
    assert abs(int(fleet.meta("last")) - _wall_ms(fleet)) < SLACK_MS
    fleet.client.hincrby(fleet.keys.meta, "last", -1000)
    fleet.acquire("c")
    assert 1000 <= fleet.now - before < 1000 + SLACK_MS


def test_neither_step_lets_anybody_in_or_throws_anybody_out(fleet: RawFleet) -> None:
    fleet.set_limits({"total": 20})
    leases = [f"l{n}" for n in range(20)]
    for lease in leases:
        fleet.acquire(lease)
    fleet.tick(*(held(lease) for lease in leases))
    for step_ms in (HOUR_MS, -HOUR_MS):
        fleet.client.hincrby(fleet.keys.meta, "last", step_ms)
        assert fleet.acquire("more")[0:4:3] == ["FULL", "total"]
        assert fleet.live() == set(leases)


def test_a_frozen_clock_keeps_leases_and_releases_still_work(fleet: RawFleet) -> None:
    fleet.set_limits({"total": 1})
    fleet.acquire("a")
    fleet.client.hincrby(fleet.keys.meta, "last", HOUR_MS)
    assert fleet.acquire("b")[0] == "FULL"
    fleet.client.hincrby(fleet.keys.meta, "last", HOUR_MS)
    fleet.release("a")
    assert fleet.acquire("b")[0] == "GRANTED"


def test_the_clock_stays_exact_in_every_digit(fleet: RawFleet) -> None:
    """Lua prints large numbers with 14 digits unless told otherwise."""
    fleet.client.hset(fleet.keys.meta, "clock", 1_890_000_000_123)
    fleet.tick(held("a"))
    expiry = fleet.pool("total")["a"]
    assert str(expiry).startswith("1890000")
    assert expiry == fleet.now + TIMES.ttl_ms
    assert "e" not in fleet.meta("clock")


def test_a_lost_meta_record_starts_an_epoch_with_a_learning_window(fleet: RawFleet) -> None:
    """What an operator does to make everybody say again what it runs: `DEL meta`."""
    fleet.acquire("a")
    fleet.tick(held("a"))
    old = fleet.meta("epoch")
    fleet.client.delete(fleet.keys.meta)
    word, epoch, grant, _ = fleet.acquire("b")
    assert (word, grant) == ("LEARNING", 0)
    assert epoch != old
    assert told(fleet.tick(held("a"))) == Told()
    assert fleet.live() == {"a"}
    fleet.advance(TIMES.learning_ms)
    fleet.tick(held("a"))
    assert fleet.acquire("b")[:3] == ["GRANTED", epoch, 1]


@pytest.mark.parametrize("ahead_ms", [-HOUR_MS, 0, HOUR_MS])
def test_a_lease_that_survived_the_loss_of_meta_does_not_outlive_the_new_clock(
    fleet: RawFleet, ahead_ms: int
) -> None:
    """Were the new clock behind the old one, a dead holder's lease would live longer by the difference."""
    fleet.advance(ahead_ms)
    fleet.tick(held("dead"), holder="dead~d1")
    fleet.client.delete(fleet.keys.meta)
    fleet.tick(holder="g2~b2")
    fleet.expire_all()
    fleet.acquire("new")
    assert "dead" not in fleet.live()


@pytest.mark.parametrize("field", ["epoch", "clock", "last"])
def test_a_meta_record_that_lost_what_the_clock_needs_starts_an_epoch(fleet: RawFleet, field: str) -> None:
    fleet.client.hdel(fleet.keys.meta, field)
    assert fleet.acquire("a")[0] == "LEARNING"


@pytest.mark.parametrize("field", ["epoch", "clock"])
def test_a_release_that_finds_no_clock_starts_an_epoch_too(fleet: RawFleet, field: str) -> None:
    fleet.acquire("a")
    before = fleet.meta("epoch")
    fleet.client.hdel(fleet.keys.meta, field)
    assert fleet.release("a")[3] == 1
    assert fleet.meta("epoch") not in (before, None)
    assert fleet.acquire("b")[0] == "LEARNING"


def test_a_lost_grant_number_or_window_harms_nobody(fleet: RawFleet) -> None:
    fleet.acquire("a")
    fleet.client.hdel(fleet.keys.meta, "grant", "learning_until", "tick_ms", "schema")
    assert fleet.acquire("b")[:3] == ["GRANTED", fleet.meta("epoch"), 1]


def _wall_ms(fleet: RawFleet) -> int:
    return int(fleet.client.time()[0]) * 1000
