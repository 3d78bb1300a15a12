"""count says what is live per pool and which limits hold, at one instant, and changes nothing."""

from __future__ import annotations

from tests.lua.fleet import SLACK_MS, TIMES, RawFleet, held


def test_live_leases_per_pool_and_the_limits(fleet: RawFleet) -> None:
    fleet.acquire("a")
    fleet.acquire("b", "other", engines=("e2",))
    fleet.tick(held("a"))
    fleet.downgrade("b")
    word, epoch, clock, learning_ms, gateways, total, cold, waiting, *rest = fleet.count(
        "tenant:other", "engine:e1", "tenant:nobody"
    )
    assert (word, epoch, learning_ms, gateways) == ("COUNTED", fleet.meta("epoch"), 0, 1)
    assert fleet.now <= clock <= fleet.now + SLACK_MS
    assert (total, cold, waiting, rest[:3]) == (2, 1, 0, [1, 1, 0])
    limits = dict(zip(rest[3::2], rest[4::2], strict=True))
    assert limits == {"total": "100", "cold": "100", "tenant_default": "100"}


def test_it_changes_nothing(fleet: RawFleet) -> None:
    fleet.acquire("a")
    fleet.expire_provisional()
    before = fleet.dump()
    assert fleet.count("tenant:acme")[5] == 0, "an overdue lease counts for nothing"
    assert fleet.dump() == before


def test_of_a_fleet_that_redis_does_not_know_it_makes_none(new_fleet: RawFleet) -> None:
    reply = new_fleet.count("tenant:acme")
    assert reply[1] == ""
    assert reply[3:] == [0, 0, 0, 0, 0, 0]
    assert new_fleet.dump() == {}


def test_the_rest_of_a_learning_window_is_told(new_fleet: RawFleet) -> None:
    new_fleet.tick()
    left_ms = new_fleet.count()[3]
    assert TIMES.learning_ms - SLACK_MS < left_ms <= TIMES.learning_ms


def test_its_clock_is_the_one_the_next_script_would_see(fleet: RawFleet) -> None:
    """A dead fleet's clock stands: two ticks after its last value at the most."""
    fleet.tick()
    written = fleet.now
    fleet.client.hincrby(fleet.keys.meta, "last", -3_600_000)
    assert fleet.count()[2] == written + 2 * TIMES.tick_ms
    assert fleet.now == written
