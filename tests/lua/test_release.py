"""release gives every place of a lease back, once, and can free nothing else."""

from __future__ import annotations

from tests.lua.fleet import GRANT, RawFleet, held


def test_all_places_and_the_record_go(fleet: RawFleet) -> None:
    fleet.acquire("a")
    assert fleet.release("a") == ["RELEASED", fleet.meta("epoch"), 1, 1]
    assert fleet.no_trace_of("a")


def test_the_freed_place_can_be_taken_at_once(fleet: RawFleet) -> None:
    fleet.set_limits({"total": 1, "cold": 1, "tenant:acme": 1, "engine:e1": 1})
    for lease in "abcde":
        assert fleet.acquire(lease)[0] == "GRANTED"
        assert fleet.acquire("other")[0] == "FULL"
        fleet.release(lease)


def test_twice_counts_once(fleet: RawFleet) -> None:
    fleet.set_limits({"total": 2})
    fleet.acquire("a")
    fleet.acquire("b")
    assert fleet.release("a", "a")[3] == 1
    assert fleet.release("a")[3] == 0
    assert fleet.acquire("c")[0] == "GRANTED"
    assert fleet.acquire("d")[0] == "FULL", "b still has its place"


def test_after_the_lease_was_reclaimed_nothing_is_returned(fleet: RawFleet) -> None:
    fleet.set_limits({"total": 1})
    fleet.acquire("a")
    fleet.expire_provisional()
    fleet.reap()
    fleet.acquire("b")
    assert fleet.release("a")[3] == 0
    assert fleet.live() == {"b"}
    assert fleet.acquire("c")[0] == "FULL"


def test_an_overdue_lease_frees_no_second_place(fleet: RawFleet) -> None:
    """It was not counted any more, and somebody else may have its place."""
    fleet.set_limits({"total": 1})
    fleet.acquire("a")
    fleet.expire_provisional()
    fleet.acquire("b")
    fleet.release("a")
    assert fleet.acquire("c")[0] == "FULL"


def test_an_unknown_engine_is_looked_up(fleet: RawFleet) -> None:
    """The answer of its acquire was lost: the gateway knows the id and nothing else."""
    fleet.acquire("a", engines=("e2",))
    assert fleet.release("a", engine="")[3] == 1
    assert fleet.no_trace_of("a")


def test_a_lease_that_was_never_granted_is_no_error(fleet: RawFleet) -> None:
    assert fleet.release("never", engine="")[3] == 0
    assert fleet.release()[3] == 0


def test_a_lease_that_moved_meanwhile_leaves_both_engines(fleet: RawFleet) -> None:
    """The release was written before the answer of the move came back."""
    fleet.acquire("a", engines=("e1",))
    fleet.move("a", "e2")
    fleet.release("a", engine="e1")
    assert fleet.no_trace_of("a")


def test_the_rest_of_a_half_deleted_lease_goes_too(fleet: RawFleet) -> None:
    fleet.acquire("a")
    fleet.client.delete(fleet.keys.total, fleet.keys.lease("a"))
    assert fleet.release("a")[3] == 1
    assert fleet.no_trace_of("a")


def test_two_hundred_leases_go_in_one_call(fleet: RawFleet) -> None:
    leases = [f"l{n}" for n in range(200)]
    fleet.tick(*(held(lease) for lease in leases))
    assert fleet.release(*leases)[3] == 200
    assert fleet.live() == set()


def test_it_works_while_learning(new_fleet: RawFleet) -> None:
    new_fleet.tick(held("a"))
    assert new_fleet.release("a")[GRANT + 1] == 1
    assert new_fleet.no_trace_of("a")
