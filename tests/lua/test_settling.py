"""Every script settles, and none does more of it than its bound: counted in commands, not in time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.lua.fleet import RawFleet, held

if TYPE_CHECKING:
    from collections.abc import Callable

OVERDUE = 10_000
# A settled lease costs its record, five removals and an event; the rest is what the verb itself does.
PER_LEASE, OWN = 8, 400

CALLS: dict[str, tuple[Callable[[RawFleet], Any], int]] = {
    "acquire": (lambda fleet: fleet.acquire("new"), 32),
    "tick": (lambda fleet: fleet.tick(held("new")), 32),
    "downgrade": (lambda fleet: fleet.downgrade("new"), 32),
    "release": (lambda fleet: fleet.release("new"), 32),
    "move": (lambda fleet: fleet.move("new", "e2"), 32),
    "reap": (lambda fleet: fleet.reap(("tenant:acme", "engine:e1")), 128),
}


@pytest.fixture
def crowded(fleet: RawFleet) -> RawFleet:
    """Ten thousand holders died together."""
    for start in range(0, OVERDUE, 500):
        fleet.tick(*(held(f"dead~d1~{n}") for n in range(start, start + 500)), holder="dead~d1")
    fleet.expire_all()
    return fleet


@pytest.mark.parametrize("verb", CALLS)
def test_ten_thousand_overdue_leases_make_no_script_long(crowded: RawFleet, verb: str) -> None:
    call, most = CALLS[verb]
    members = len(crowded.pool("total"))
    crowded.client.config_resetstat()
    call(crowded)
    stats = crowded.client.info("commandstats")
    commands = sum(row["calls"] for name, row in stats.items() if not name.startswith("cmdstat_eval"))
    dropped = OVERDUE - len([lease for lease in crowded.pool("total") if lease.startswith("dead")])
    print(f"{verb}: {commands} commands, {stats['cmdstat_evalsha']['usec'] / 1000:.1f} ms")  # noqa: T201
    assert members == OVERDUE
    assert dropped == most
    assert commands <= PER_LEASE * most + OWN + (2 if verb == "reap" else 0) * 200


def test_admission_is_right_at_once_however_many_are_overdue(crowded: RawFleet) -> None:
    crowded.set_limits({"total": 2})
    assert [crowded.acquire(lease)[0] for lease in "abc"] == ["GRANTED", "GRANTED", "FULL"]


def test_every_call_goes_on_where_the_last_one_stopped(crowded: RawFleet) -> None:
    calls = 0
    while crowded.client.zcard(crowded.keys.total):
        crowded.reap(("tenant:acme", "engine:e1"))
        calls += 1
    assert calls == -(-OVERDUE // 128)
    assert crowded.client.keys("*:lease:*") == crowded.client.keys("*:pool:*") == []
