"""downgrade gives the cold place back and nothing else."""

from __future__ import annotations

from tests.lua.fleet import RawFleet, held


def test_only_the_cold_place_goes(fleet: RawFleet) -> None:
    fleet.acquire("a")
    record = fleet.record("a")
    assert fleet.downgrade("a") == ["DOWNGRADED", fleet.meta("epoch"), 1, 1]
    assert fleet.live("cold") == set()
    for pool in ("total", "tenant:acme", "engine:e1"):
        assert fleet.live(pool) == {"a"}
    assert fleet.record("a") == record


def test_twice_counts_once_and_release_afterwards_frees_no_second_cold_place(fleet: RawFleet) -> None:
    fleet.set_limits({"cold": 1})
    fleet.acquire("a")
    assert fleet.downgrade("a", "a")[3] == 1
    assert fleet.downgrade("a")[3] == 0
    assert fleet.acquire("b")[0] == "GRANTED"
    fleet.release("a")
    assert fleet.acquire("c")[0:4:3] == ["FULL", "cold"], "b has the cold place"


def test_warm_and_unknown_leases_are_passed_over(fleet: RawFleet) -> None:
    fleet.witness("e1", {"p": True})
    fleet.acquire("warm", prefixes=("p",))
    fleet.acquire("cold")
    assert fleet.downgrade("warm", "never", "cold")[3] == 1
    assert fleet.downgrade()[3] == 0
    assert fleet.live() == {"warm", "cold"}


def test_four_cold_requests_run_through_two_cold_places_one_first_token_after_another(
    fleet: RawFleet,
) -> None:
    fleet.set_limits({"total": 4, "cold": 2})
    assert [fleet.acquire(lease)[0] for lease in "abc"] == ["GRANTED", "GRANTED", "FULL"]
    fleet.downgrade("a", "b")
    assert [fleet.acquire(lease)[0] for lease in "cde"] == ["GRANTED", "GRANTED", "FULL"]
    fleet.tick(*(held(lease, cold=lease in "cd") for lease in "abcd"))
    assert fleet.live("cold") == {"c", "d"}
    assert len(fleet.live()) == 4
