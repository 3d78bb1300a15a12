"""witness keeps what an engine proved to hold: bounded, expiring, dropped when contradicted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.lua.fleet import RawFleet

if TYPE_CHECKING:
    from tests.support.redis_server import RedisServer


def evidence(fleet: RawFleet, engine: str = "e1") -> list[str]:
    found: list[str] = fleet.client.zrange(fleet.keys.evidence(engine), 0, -1)
    return found


def test_cached_prefixes_are_kept_and_the_others_dropped(fleet: RawFleet) -> None:
    assert fleet.witness("e1", {"p": True, "q": True, "r": False})[3] == 2
    assert fleet.witness("e1", {"p": False, "q": True})[3] == 1
    assert evidence(fleet) == ["q"]
    assert evidence(fleet, "e2") == []


def test_the_same_report_again_only_renews_it(fleet: RawFleet) -> None:
    fleet.witness("e1", {"p": True}, keep_ms=100_000)
    fleet.advance(60_000)
    fleet.witness("e1", {"p": True}, keep_ms=100_000)
    fleet.advance(60_000)
    assert fleet.witness("e1", {})[3] == 1
    fleet.advance(100_001)
    assert fleet.witness("e1", {})[3] == 0


def test_only_the_newest_are_kept(fleet: RawFleet) -> None:
    for n in range(30):
        fleet.advance(1)
        kept = fleet.witness("e1", {f"p{n:02}": True}, most=10)[3]
    assert kept == 10
    assert evidence(fleet) == [f"p{n}" for n in range(20, 30)]


def test_an_empty_report_is_no_error(fleet: RawFleet, redis_server: RedisServer) -> None:
    assert fleet.witness("e1", {}) == ["WITNESSED", fleet.meta("epoch"), 0, 0]
    assert redis_server.cli("EXISTS", fleet.keys.evidence("e1")) == 0
