"""set_limits: a file seeds, an admin sets, a gateway restores; who beats whom."""

from __future__ import annotations

from tests.lua.fleet import TIMES, RawFleet


def limits(fleet: RawFleet) -> dict[str, str]:
    found: dict[str, str] = fleet.client.hgetall(fleet.keys.limits)
    return found


def test_a_file_seeds_only_what_has_no_value(new_fleet: RawFleet) -> None:
    assert new_fleet.set_limits({"total": 8, "cold": 2}, mode="seed")[3] == 2
    assert new_fleet.set_limits({"total": 4, "cold": 1, "tenant:acme": 3}, mode="seed")[3] == 1
    assert limits(new_fleet) == {"total": "8", "cold": "2", "tenant:acme": "3"}
    assert new_fleet.events("limit_seed") == []


def test_a_restart_with_an_older_file_does_not_bring_an_old_value_back(fleet: RawFleet) -> None:
    fleet.set_limits({"tenant:acme": 3}, mode="seed")
    fleet.set_limits({"tenant:acme": 6})
    fleet.set_limits({"tenant:acme": 3}, mode="seed")
    assert limits(fleet)["tenant:acme"] == "6"


def test_setting_overwrites_and_each_change_is_in_the_event_stream(fleet: RawFleet) -> None:
    assert fleet.set_limits({"total": 100, "cold": 7, "tenant:acme": 3}, who="ann")[3] == 2
    assert fleet.events("limit_set") == [
        {"kind": "limit_set", "who": "ann", "field": "cold", "old": "100", "new": "7"},
        {"kind": "limit_set", "who": "ann", "field": "tenant:acme", "old": "", "new": "3"},
    ]


def test_setting_the_same_again_changes_nothing(fleet: RawFleet) -> None:
    fleet.set_limits({"total": 7})
    assert fleet.set_limits({"total": 7})[3] == 0
    assert len(fleet.events("limit_set")) == 1


def test_a_fleet_that_is_known_to_be_new_starts_without_learning(new_fleet: RawFleet) -> None:
    new_fleet.set_limits({"total": 1, "cold": 1}, mode="seed", args={"learning_ms": 0})
    assert new_fleet.acquire("a")[0] == "GRANTED"


def test_a_fleet_that_may_have_lost_its_data_learns(new_fleet: RawFleet) -> None:
    new_fleet.set_limits({"total": 1, "cold": 1}, mode="seed")
    assert new_fleet.acquire("a")[0] == "LEARNING"


# --- after Redis lost its data


def test_what_a_gateway_remembers_beats_the_file_whichever_comes_first(fleet: RawFleet) -> None:
    for restored_first in (True, False):
        fleet.client.flushall()
        restore = {"total": 9, "tenant:acme": 6}
        seed = {"total": 4, "tenant:acme": 3, "cold": 1}
        steps = [
            lambda restore=restore: fleet.set_limits(restore, mode="restore", seen=5000),
            lambda seed=seed: fleet.set_limits(seed, mode="seed"),
        ]
        for step in steps if restored_first else reversed(steps):
            step()
        assert limits(fleet) == {"total": "9", "tenant:acme": "6", "cold": "1"}


def test_of_two_memories_the_later_one_holds_whichever_comes_first(fleet: RawFleet) -> None:
    for older_first in (True, False):
        fleet.client.flushall()
        memories = [(5000, {"total": 8}), (7000, {"total": 9})]
        for seen, fields in memories if older_first else reversed(memories):
            fleet.set_limits(fields, mode="restore", seen=seen)
        assert limits(fleet) == {"total": "9"}


def test_the_same_memory_restored_twice_changes_nothing(fleet: RawFleet) -> None:
    fleet.client.flushall()
    assert fleet.set_limits({"total": 8}, mode="restore", seen=5000)[3] == 1
    assert fleet.set_limits({"total": 8}, mode="restore", seen=5000)[3] == 0


def test_what_an_admin_sets_while_learning_beats_an_older_memory(new_fleet: RawFleet) -> None:
    new_fleet.tick()
    seen = new_fleet.now - TIMES.tick_ms
    new_fleet.set_limits({"total": 3}, who="ann")
    new_fleet.set_limits({"total": 9}, mode="restore", seen=seen)
    assert limits(new_fleet)["total"] == "3"


def test_what_an_admin_sets_while_learning_keeps_no_other_limit_from_being_restored(
    new_fleet: RawFleet,
) -> None:
    """One `tenure quota` right after the loss must not leave every other limit to an old file."""
    new_fleet.tick()
    seen = new_fleet.now - TIMES.tick_ms
    new_fleet.set_limits({"tenant:acme": 3}, who="ann")
    new_fleet.set_limits({"total": 4, "tenant:acme": 1}, mode="seed")
    new_fleet.set_limits({"total": 9, "tenant:acme": 6}, mode="restore", seen=seen)
    assert limits(new_fleet) == {"total": "9", "tenant:acme": "3"}


def test_what_a_gateway_saw_after_an_admins_change_is_restored(fleet: RawFleet) -> None:
    """The hash alone was deleted; the memory is newer than the change."""
    fleet.set_limits({"total": 5})
    fleet.client.delete(fleet.keys.limits)
    fleet.set_limits({"total": 5, "cold": 2}, mode="restore", seen=fleet.now + 1)
    assert limits(fleet) == {"total": "5", "cold": "2"}


def test_what_is_restored_is_told_in_the_event_stream(fleet: RawFleet) -> None:
    fleet.client.flushall()
    fleet.set_limits({"total": 8}, mode="restore", seen=5000, who="g1~a1")
    assert fleet.events("limit_restore")[0]["who"] == "g1~a1"
