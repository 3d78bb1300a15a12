"""move takes a live lease to another engine; the permit and its other places stay."""

from __future__ import annotations

from tests.lua.fleet import RawFleet, held


def test_only_the_engine_place_moves(fleet: RawFleet) -> None:
    fleet.acquire("a")
    expiry = fleet.pool("total")["a"]
    assert fleet.move("a", "e2", "e3") == ["MOVED", fleet.meta("epoch"), 1, "e2"]
    assert fleet.pool("engine:e1") == {}
    for pool in ("total", "cold", "tenant:acme", "engine:e2"):
        assert fleet.pool(pool) == {"a": expiry}
    assert fleet.record("a")["engine"] == "e2"
    fleet.tick(held("a", engine="e2"))
    assert fleet.live("engine:e1") == set()


def test_the_least_loaded_candidate_with_room_is_taken(fleet: RawFleet) -> None:
    fleet.set_limits({"engine:e2": 0})
    fleet.acquire("a", engines=("e3",))
    fleet.acquire("b")
    assert fleet.move("b", "e2", "e3", "e4")[3] == "e4"


def test_without_room_elsewhere_it_stays(fleet: RawFleet) -> None:
    fleet.set_limits({"engine:e2": 1})
    fleet.acquire("a", engines=("e2",))
    fleet.acquire("b")
    assert fleet.move("b", "e2")[3:] == ["engine:e2", 1, 1]
    assert fleet.live("engine:e1") == {"b"}
    assert fleet.record("b")["engine"] == "e1"


def test_to_where_it_is_already_changes_nothing(fleet: RawFleet) -> None:
    fleet.acquire("a")
    assert fleet.move("a", "e1")[3] == "e1"
    assert fleet.live("engine:e1") == {"a"}


def test_a_lease_that_is_gone_is_not_revived(fleet: RawFleet) -> None:
    fleet.acquire("a")
    fleet.release("a")
    assert fleet.move("a", "e2") == ["GONE", fleet.meta("epoch"), 1]
    assert fleet.live("engine:e2") == set()
    assert fleet.no_trace_of("a")


def test_an_overdue_lease_is_gone_even_when_nobody_has_dropped_it_yet(fleet: RawFleet) -> None:
    for n in range(80):
        fleet.acquire(f"old{n:02}")
    fleet.acquire("z")
    fleet.expire_provisional()
    assert fleet.move("z", "e2")[0] == "GONE"
    assert "z" in fleet.pool("total"), "this test needs a lease that is overdue and still there"


def test_a_lease_whose_record_is_lost_is_gone_until_its_gateway_ticked(fleet: RawFleet) -> None:
    fleet.acquire("a")
    fleet.client.delete(fleet.keys.lease("a"))
    assert fleet.move("a", "e2")[0] == "GONE"
    fleet.tick(held("a"))
    assert fleet.move("a", "e2")[0] == "MOVED"


def test_a_tick_that_was_sent_before_its_sender_heard_of_the_move_counts_on_one_engine(
    fleet: RawFleet,
) -> None:
    """Tick and move travel on two connections; the lease must not stay behind on the engine it left."""
    fleet.acquire("a")
    fleet.move("a", "e2")
    fleet.tick(held("a", engine="e1"))
    assert (fleet.live("engine:e1"), fleet.live("engine:e2")) == (set(), {"a"})
    assert fleet.record("a")["engine"] == "e2"
