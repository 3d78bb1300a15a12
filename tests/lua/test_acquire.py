"""acquire grants a place in every pool of a demand, or changes nothing and says why."""

from __future__ import annotations

import pytest

from tests.lua.fleet import EPOCH, GRANT, HOLDER, SLACK_MS, TIMES, RawFleet, Told, held, told

POOLS = ("total", "cold", "tenant:acme", "engine:e1")


def test_a_grant_takes_a_place_in_every_pool_and_says_what_it_is(fleet: RawFleet) -> None:
    assert fleet.acquire("a") == ["GRANTED", fleet.meta("epoch"), 1, "cold", "e1"]
    for pool in POOLS:
        assert fleet.live(pool) == {"a"}
    facts = fleet.record("a")
    assert abs(int(facts.pop("acquired_at")) - int(fleet.client.time()[0]) * 1000) < SLACK_MS
    assert facts == {
        "request_id": "req-a",
        "tenant": "acme",
        "class": "cold",
        "engine": "e1",
        "holder": HOLDER,
        "phase": "granted",
        "grant": "1",
    }


def test_grants_are_numbered_within_an_epoch(fleet: RawFleet) -> None:
    assert [fleet.acquire(lease)[GRANT] for lease in "abc"] == [1, 2, 3]


def test_the_same_id_again_gets_the_same_answer_and_takes_nothing(fleet: RawFleet) -> None:
    """A reply that was lost on the way must not cost a second place."""
    fleet.set_limits({"total": 1, "cold": 1, "tenant:acme": 1, "engine:e1": 1})
    first = fleet.acquire("a")
    before = {pool: set(fleet.pool(pool)) for pool in POOLS}
    assert fleet.acquire("a", engines=("e2", "e1")) == first
    assert {pool: set(fleet.pool(pool)) for pool in POOLS} == before
    assert fleet.meta("grant") == "1"


def test_a_grant_that_is_told_again_lasts_anew(fleet: RawFleet) -> None:
    """Its gateway counts from before the call that was answered, not from before the one that was lost."""
    fleet.acquire("a")
    fleet.acquire("b")
    fleet.downgrade("b")
    fleet.advance(TIMES.provisional_ms - SLACK_MS)
    for lease in "ab":
        assert fleet.acquire(lease)[0] == "GRANTED"
    assert set(fleet.pool("cold")) == {"a"}, "what was given back stays so"
    for pool in POOLS:
        assert all(
            until >= fleet.now + TIMES.provisional_ms - SLACK_MS for until in fleet.pool(pool).values()
        )


def test_a_renewed_lease_is_not_cut_short_by_asking_again(fleet: RawFleet) -> None:
    fleet.acquire("a")
    fleet.tick(held("a"))
    before = fleet.pool("total")
    fleet.acquire("a")
    assert fleet.pool("total") == before


def test_an_id_whose_lease_ran_out_is_asked_for_anew(fleet: RawFleet) -> None:
    fleet.acquire("a")
    fleet.expire_provisional()
    assert fleet.acquire("a")[GRANT] == 2
    assert fleet.live() == {"a"}


def test_the_first_lease_is_provisional(fleet: RawFleet) -> None:
    """A gateway that dies between the grant and its first tick costs less than a ttl."""
    fleet.acquire("a")
    for pool in POOLS:
        assert fleet.pool(pool)["a"] == fleet.now + TIMES.provisional_ms
    fleet.expire_provisional()
    fleet.acquire("b")
    assert fleet.live() == {"b"}
    assert fleet.no_trace_of("a")


def test_a_renewed_lease_outlives_the_provisional_one(fleet: RawFleet) -> None:
    fleet.acquire("a")
    fleet.tick(held("a"))
    fleet.expire_provisional()
    fleet.acquire("b")
    assert fleet.live() == {"a", "b"}


@pytest.mark.parametrize(
    ("limits", "pool"),
    [
        ({"tenant:acme": 2, "total": 2, "cold": 2, "engine:e1": 2}, "tenant:acme"),
        ({"total": 2, "cold": 2, "engine:e1": 2}, "total"),
        ({"cold": 2, "engine:e1": 2}, "engine:e1"),
        ({"cold": 2}, "cold"),
        ({"tenant_default": 2}, "tenant:acme"),
    ],
)
def test_a_full_pool_is_named_with_its_figures_the_most_specific_first(
    fleet: RawFleet, limits: dict[str, int], pool: str
) -> None:
    fleet.set_limits(limits)
    fleet.acquire("a")
    fleet.acquire("b")
    before = fleet.dump()
    assert fleet.acquire("c") == ["FULL", fleet.meta("epoch"), 2, pool, 2, 2, 0]
    after = fleet.dump()
    for clock in ("clock", "last"):
        before[fleet.keys.meta].pop(clock)
        after[fleet.keys.meta].pop(clock)
    assert after == before, "a refusal changes nothing"


@pytest.mark.parametrize("pool", ["total", "cold", "tenant:acme", "tenant_default", "engine:e1"])
def test_a_limit_of_zero_blocks_admission_and_touches_nothing_live(fleet: RawFleet, pool: str) -> None:
    fleet.acquire("a")
    fleet.set_limits({pool: 0})
    assert fleet.acquire("b")[0] == "FULL"
    assert fleet.live() == {"a"}
    assert told(fleet.tick(held("a"))) == Told()


@pytest.mark.parametrize("limit", [1, 2, -1])
def test_a_limit_lowered_below_use_cuts_nobody_and_admits_nobody_until_it_drained(
    fleet: RawFleet, limit: int
) -> None:
    for lease in "abc":
        fleet.acquire(lease)
    fleet.set_limits({"total": limit})
    assert fleet.acquire("d")[0:4:3] == ["FULL", "total"]
    assert fleet.live() == {"a", "b", "c"}
    fleet.release(*"abc"[: 3 - max(0, limit)])
    assert fleet.acquire("d")[0] == "FULL"
    fleet.release("c")
    assert fleet.acquire("d")[0] == ("GRANTED" if limit > 0 else "FULL")


def test_a_raised_limit_counts_at_once(fleet: RawFleet) -> None:
    fleet.set_limits({"total": 1})
    fleet.acquire("a")
    assert fleet.acquire("b")[0] == "FULL"
    fleet.client.hset(fleet.keys.limits, "total", 2)
    assert fleet.acquire("b")[0] == "GRANTED"


@pytest.mark.parametrize("limits", [None, {"cold": 3}])
def test_a_fleet_without_limits_is_closed(new_fleet: RawFleet, limits: dict[str, int] | None) -> None:
    new_fleet.set_limits(limits or {}, mode="seed", args={"learning_ms": 0})
    assert new_fleet.acquire("a") == ["CLOSED", new_fleet.meta("epoch"), 0]
    assert new_fleet.live() == set()


@pytest.mark.parametrize(("field", "open_"), [("total", False), ("cold", False), ("tenant_default", True)])
def test_a_typing_error_in_a_limit_closes_that_pool_or_leaves_it_to_the_total(
    fleet: RawFleet, field: str, open_: bool
) -> None:
    """`HSET ... total 1O` at 3 a.m. must not mean "unlimited"."""
    fleet.client.hset(fleet.keys.limits, field, "1O")
    assert (fleet.acquire("a")[0] == "GRANTED") is open_


def test_missing_optional_limits_fall_back_to_the_total(fleet: RawFleet) -> None:
    fleet.client.hdel(fleet.keys.limits, "tenant_default")
    fleet.set_limits({"total": 1})
    assert fleet.acquire("a")[0] == "GRANTED"
    assert fleet.acquire("b")[0:4:3] == ["FULL", "tenant:acme"]


def test_a_tenant_at_its_quota_does_not_block_another(fleet: RawFleet) -> None:
    fleet.set_limits({"tenant:acme": 1})
    fleet.acquire("a")
    assert fleet.acquire("b")[0] == "FULL"
    assert fleet.acquire("b", "other")[0] == "GRANTED"


def test_overdue_leases_are_not_counted_even_before_anybody_dropped_them(fleet: RawFleet) -> None:
    fleet.set_limits({"total": 40, "cold": 40})
    for n in range(40):
        fleet.acquire(f"old{n}")
    fleet.expire_provisional()
    granted = [fleet.acquire(f"new{n}")[0] for n in range(41)]
    assert granted == ["GRANTED"] * 40 + ["FULL"]


# --- engines


def test_the_engine_with_the_fewest_live_permits_is_picked_then_the_callers_order(fleet: RawFleet) -> None:
    picked = [fleet.acquire(f"l{n}", engines=("e2", "e1", "e3"))[4] for n in range(6)]
    assert picked == ["e2", "e1", "e3"] * 2


def test_an_engine_without_room_is_passed_over(fleet: RawFleet) -> None:
    fleet.set_limits({"engine:e1": 1, "engine:e2": 3})
    picked = [fleet.acquire(f"l{n}", engines=("e1", "e2"))[4] for n in range(4)]
    assert picked == ["e1", "e2", "e2", "e2"]
    # Of several full ones the least loaded is named.
    assert fleet.acquire("l4", engines=("e2", "e1"))[3:6] == ["engine:e1", 1, 1]


# --- cold and warm


def test_only_evidence_makes_a_request_warm(fleet: RawFleet) -> None:
    assert fleet.acquire("a", prefixes=("p1", "p2"))[3] == "cold"
    fleet.witness("e1", {"p2": True})
    assert fleet.acquire("b", prefixes=("p1", "p2"))[3] == "warm"
    assert fleet.acquire("c", prefixes=("p1",))[3] == "cold"
    assert fleet.live("cold") == {"a", "c"}
    assert fleet.record("b")["class"] == "warm"


def test_the_engine_that_holds_the_prefix_comes_before_a_less_loaded_one(fleet: RawFleet) -> None:
    fleet.acquire("a", engines=("e1",))
    fleet.witness("e1", {"p": True})
    assert fleet.acquire("b", engines=("e2", "e1"), prefixes=("p",))[3:] == ["warm", "e1"]


def test_a_warm_engine_without_room_leaves_the_request_cold_elsewhere(fleet: RawFleet) -> None:
    fleet.set_limits({"engine:e1": 1})
    fleet.witness("e1", {"p": True})
    fleet.acquire("a")
    assert fleet.acquire("b", engines=("e1", "e2"), prefixes=("p",))[3:] == ["cold", "e2"]


def test_a_full_cold_pool_does_not_stop_warm_requests(fleet: RawFleet) -> None:
    fleet.set_limits({"cold": 1})
    fleet.witness("e1", {"p": True})
    fleet.acquire("a")
    assert fleet.acquire("b")[3] == "cold"
    assert fleet.acquire("c", prefixes=("p",))[3] == "warm"


def test_evidence_that_expired_or_was_contradicted_counts_for_nothing(fleet: RawFleet) -> None:
    fleet.witness("e1", {"p": True, "q": True}, keep_ms=300_000)
    fleet.witness("e1", {"q": False})
    assert fleet.acquire("a", prefixes=("q",))[3] == "cold"
    fleet.advance(300_001)
    assert fleet.acquire("b", prefixes=("p",))[3] == "cold"


# --- learning


def test_a_fleet_that_redis_does_not_know_learns_before_it_grants(new_fleet: RawFleet) -> None:
    """After data loss, what runs must be heard of before anything new is let in."""
    reply = new_fleet.acquire("a")
    assert reply == ["LEARNING", "epoch1", 0, TIMES.learning_ms]
    assert new_fleet.live() == set()
    assert new_fleet.acquire("b")[:3] == ["LEARNING", "epoch1", 0], "one nonce per epoch"


def test_learning_ends_with_its_window(new_fleet: RawFleet) -> None:
    new_fleet.set_limits({"total": 1, "cold": 1}, mode="seed")
    new_fleet.advance(TIMES.learning_ms - SLACK_MS)
    word, _, _, left_ms = new_fleet.acquire("a")
    assert (word, 0 < left_ms <= SLACK_MS) == ("LEARNING", True)
    new_fleet.advance(SLACK_MS)
    assert new_fleet.acquire("a")[0] == "GRANTED"


def test_a_lease_that_was_reasserted_while_learning_answers_its_own_id(new_fleet: RawFleet) -> None:
    new_fleet.tick(held("a", class_="warm", cold=False))
    assert new_fleet.acquire("a") == ["GRANTED", "epoch1", 0, "warm", "e1"]
    assert new_fleet.acquire("b")[0] == "LEARNING"


def test_every_reply_carries_the_epoch(fleet: RawFleet) -> None:
    epoch = fleet.meta("epoch")
    replies = [
        fleet.acquire("a"),
        fleet.tick(held("a")),
        fleet.downgrade("a"),
        fleet.move("a", "e2"),
        fleet.witness("e1", {}),
        fleet.set_limits({"total": 1}),
        fleet.count(),
        fleet.reap(),
        fleet.release("a"),
    ]
    assert {reply[EPOCH] for reply in replies} == {epoch}
