"""tick renews what one gateway runs, adds what Redis does not know, and says what that was."""

from __future__ import annotations

import pytest

from tests.lua.fleet import HOLDER, TIMES, RawFleet, Told, held, told

POOLS = ("total", "cold", "tenant:acme", "engine:e1")


def test_every_place_of_a_lease_is_renewed_for_one_ttl(fleet: RawFleet) -> None:
    fleet.acquire("a")
    word, epoch, grant, clock, learning_ms, gateways, *lists = fleet.tick(held("a"))
    assert (word, epoch, grant) == ("TICKED", fleet.meta("epoch"), 1)
    assert (clock, learning_ms, gateways, lists) == (fleet.now, 0, 1, [0, 0, 0])
    for pool in POOLS:
        assert fleet.pool(pool) == {"a": clock + TIMES.ttl_ms}


def test_a_gateway_that_holds_nothing_has_a_session_too(fleet: RawFleet) -> None:
    assert fleet.tick(holder="g1~a1")[5] == 1
    assert fleet.tick(holder="g2~b2")[5] == 2
    assert fleet.client.zscore(fleet.keys.gateways, "g2~b2") == fleet.now + 3 * TIMES.tick_ms


def test_a_gateway_that_missed_three_ticks_is_counted_and_kept_no_more(fleet: RawFleet) -> None:
    for n in range(40):
        fleet.tick(holder=f"old{n}~x")
    fleet.advance(3 * TIMES.tick_ms + 1)
    assert fleet.tick()[5] == 1
    fleet.tick()
    assert fleet.client.zrange(fleet.keys.gateways, 0, -1) == [HOLDER]


@pytest.mark.parametrize("pool", POOLS)
def test_a_place_that_is_missing_is_added(fleet: RawFleet, pool: str) -> None:
    """Somebody deleted one key: work that runs must be counted again within one tick."""
    fleet.acquire("a")
    fleet.tick(held("a"))
    fleet.client.delete(fleet.keys.pool(pool))
    assert told(fleet.tick(held("a"))).missing == (["a"] if pool == "total" else [])
    for each in POOLS:
        assert fleet.live(each) == {"a"}


def test_everything_is_rebuilt_from_the_facts_of_the_tick(fleet: RawFleet) -> None:
    fleet.acquire("a")
    fleet.acquire("b")
    before = fleet.record("a")
    fleet.client.flushall()
    assert told(fleet.tick(held("a"), held("b", cold=False))).missing == ["a", "b"]
    assert fleet.live() == fleet.live("tenant:acme") == fleet.live("engine:e1") == {"a", "b"}
    assert fleet.live("cold") == {"a"}
    after = fleet.record("a")
    for field in ("request_id", "tenant", "class", "engine", "holder"):
        assert after[field] == before[field]
    assert (after["phase"], after["acquired_at"]) == ("prefill", "1700000000000")


def test_a_record_that_is_missing_is_written_again(fleet: RawFleet) -> None:
    for lease in "ab":
        fleet.acquire(lease)
    fleet.client.delete(fleet.keys.lease("b"))
    assert told(fleet.tick(held("a"), held("b"))) == Told(), (
        "its place was there: nothing was lost that counts"
    )
    assert fleet.record("b")["tenant"] == "acme"


def test_each_record_that_is_missing_gets_its_own_facts(fleet: RawFleet) -> None:
    """Leases go in groups, their facts line by line: who counts wrongly gives one the facts of another."""
    leases = [
        held("a"),
        held("b"),
        held("c", "other", phase="decode"),
        held("d", engine="e2", class_="warm", cold=False),
        held("e", news=True),
        held("f", "other", phase="decode"),
    ]
    fleet.tick(*leases)
    lost = "bdf"
    before = {lease: fleet.record(lease) for lease in "abcdef"}
    fleet.client.delete(*map(fleet.keys.lease, lost))
    fleet.tick(*leases)
    assert {lease: fleet.record(lease) for lease in "abcdef"} == before
    facts = [before[lease] for lease in "abcdef"]
    assert [one["request_id"] for one in facts] == [f"req-{lease}" for lease in "abcdef"]
    assert [one["tenant"] for one in facts] == ["acme", "acme", "other", "acme", "acme", "other"]
    assert [one["class"] for one in facts] == ["cold", "cold", "cold", "warm", "cold", "cold"]
    assert [one["engine"] for one in facts] == ["e1", "e1", "e1", "e2", "e1", "e1"]
    assert [one["phase"] for one in facts] == ["prefill", "prefill", "decode", "prefill", "prefill", "decode"]


@pytest.mark.parametrize("field", ["tenant", "engine", "class", "acquired_at"])
def test_a_record_that_lost_a_field_is_whole_again(fleet: RawFleet, field: str) -> None:
    fleet.acquire("a")
    fleet.tick(held("a"))
    fleet.client.hdel(fleet.keys.lease("a"), field)
    fleet.tick(held("a"))
    assert fleet.record("a").get(field), fleet.record("a")


def test_a_record_that_was_rebuilt_and_damaged_again_is_rebuilt_again(fleet: RawFleet) -> None:
    fleet.tick(held("a"))
    fleet.client.hdel(fleet.keys.lease("a"), "holder")
    fleet.tick(held("a"))
    assert fleet.record("a")["holder"] == HOLDER


def test_a_lease_that_ran_out_is_reported_missing_also_before_it_was_dropped(fleet: RawFleet) -> None:
    """Its place may have gone to somebody else: the holder has to know that it is over-commit."""
    fleet.acquire("a")
    fleet.expire_provisional()
    assert told(fleet.tick(held("a"))).missing == ["a"]
    assert [event["lease"] for event in fleet.events("reasserted")] == ["a"]
    assert fleet.live() == {"a"}


def test_over_commit_is_counted_and_shuts_admission_until_it_drained(fleet: RawFleet) -> None:
    fleet.set_limits({"total": 1})
    fleet.acquire("a")
    fleet.expire_provisional()
    assert fleet.acquire("b")[0] == "GRANTED"
    fleet.tick(held("a"))
    assert fleet.live() == {"a", "b"}
    assert fleet.acquire("c")[3:6] == ["total", 2, 1]
    fleet.release("b")
    assert fleet.acquire("c")[0] == "FULL"
    fleet.release("a")
    assert fleet.acquire("c")[0] == "GRANTED"


def test_what_the_tick_does_not_name_is_not_renewed(fleet: RawFleet) -> None:
    """The progress rule: a hung stream is left out, and loses its lease in a healthy process."""
    fleet.acquire("a")
    fleet.acquire("b")
    fleet.tick(held("b"))
    fleet.expire_provisional()
    fleet.tick(held("b"))
    assert fleet.live() == {"b"}


def test_a_tick_without_the_cold_place_does_not_bring_it_back(fleet: RawFleet) -> None:
    fleet.acquire("a")
    fleet.downgrade("a")
    fleet.tick(held("a", cold=False))
    assert fleet.live("cold") == set()
    assert fleet.live() == {"a"}


def test_the_phase_is_written_when_it_is_news(fleet: RawFleet) -> None:
    fleet.acquire("a")
    fleet.tick(held("a", phase="prefill", news=False))
    assert fleet.record("a")["phase"] == "granted"
    fleet.tick(held("a", phase="decode", news=True))
    assert fleet.record("a")["phase"] == "decode"


def test_the_same_tick_again_changes_nothing_but_expiries(fleet: RawFleet) -> None:
    facts = [held("a"), held("b", "other", engine="e2", class_="warm", cold=False)]
    fleet.tick(*facts)
    before = fleet.dump()
    assert told(fleet.tick(*facts)) == Told()
    after = fleet.dump()
    assert before.keys() == after.keys()
    assert before[fleet.keys.lease("b")] == after[fleet.keys.lease("b")]
    assert fleet.live("engine:e2") == fleet.live("tenant:other") == {"b"}


def test_five_hundred_leases_are_renewed_in_one_call(fleet: RawFleet) -> None:
    facts = [held(f"l{n}", f"tenant{n % 50}") for n in range(500)]
    assert len(told(fleet.tick(*facts)).missing) == 500
    assert told(fleet.tick(*facts)) == Told()
    assert len(fleet.live()) == len(fleet.live("cold")) == 500
    assert len(fleet.live("tenant:tenant7")) == 10


def test_a_tick_starts_an_epoch_when_redis_is_empty(new_fleet: RawFleet) -> None:
    reply = new_fleet.tick(held("a"))
    assert reply[:3] == ["TICKED", "epoch1", 0]
    assert reply[4] == TIMES.learning_ms
    assert new_fleet.acquire("b")[0] == "LEARNING"
