"""ended writes down why requests ended, beside the other events and never in their way."""

from __future__ import annotations

from typing import Any

from tests.lua.fleet import RawFleet


def ended(fleet: RawFleet, *words: str) -> list[Any]:
    return fleet.run("ended", *words, keys={"ends": fleet.keys.ends})


def test_each_end_is_an_entry_of_a_stream_of_its_own(fleet: RawFleet) -> None:
    assert ended(fleet, "g1~a1~1", "acme", "completed", "g1~a1~2", "zeta", "revoked") == ["NOTED", 2]
    entries = fleet.client.xrange(fleet.keys.ends)
    assert [fields for _, fields in entries] == [
        {"kind": "ended", "lease": "g1~a1~1", "tenant": "acme", "reason": "completed"},
        {"kind": "ended", "lease": "g1~a1~2", "tenant": "zeta", "reason": "revoked"},
    ]
    assert not fleet.client.exists(fleet.keys.events)


def test_the_stream_forgets_its_oldest_and_pushes_no_reclaim_out(fleet: RawFleet) -> None:
    fleet.client.xadd(fleet.keys.events, {"kind": "reclaimed"})
    for _ in range(30):
        ended(fleet, *("g1~a1~1", "acme", "completed") * 400)
    assert 10_000 <= fleet.client.xlen(fleet.keys.ends) < 11_000
    assert fleet.client.xlen(fleet.keys.events) == 1
