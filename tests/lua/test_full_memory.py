"""With Redis at maxmemory nothing new is let in, and everything that runs is renewed and given back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import redis

from tests.lua.fleet import RawFleet, Told, held, told

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.redis_server import RedisServer


@pytest.fixture
def full(spare_redis: Callable[..., RedisServer]) -> Iterator[RawFleet]:
    """Four live leases, then the limit set just under what is in use."""
    server = spare_redis("--maxmemory-policy", "noeviction")
    with redis.Redis(unix_socket_path=str(server.socket_path), decode_responses=True) as client:
        fleet = RawFleet(client).open()
        for lease in "abcd":
            fleet.acquire(f"g1~a1~{lease}")
        client.config_set("maxmemory", 1)
        with pytest.raises(redis.ResponseError, match="maxmemory"):
            client.set("x", "y")
        yield fleet


def test_an_acquire_is_refused_before_it_wrote_anything(full: RawFleet) -> None:
    before = full.dump()
    with pytest.raises(redis.ResponseError, match="maxmemory"):
        full.acquire("e")
    with pytest.raises(redis.ResponseError, match="maxmemory"):
        full.move("g1~a1~a", "e2")
    with pytest.raises(redis.ResponseError, match="maxmemory"):
        full.witness("e1", {"p": True})
    assert full.dump() == before


def test_what_runs_is_renewed_and_rebuilt(full: RawFleet) -> None:
    full.client.delete(full.keys.cold)
    assert told(full.tick(*(held(f"g1~a1~{lease}") for lease in "abcd"))) == Told()
    assert len(full.live("cold")) == 4
    full.expire_provisional()
    assert len(full.live()) == 4


def test_places_come_back_and_a_reaper_works(full: RawFleet) -> None:
    full.tick(holder="g2~b2")
    assert full.downgrade("g1~a1~a")[3] == 1
    assert full.release("g1~a1~a", "g1~a1~b")[3] == 2
    full.expire_provisional()
    assert full.reap(("tenant:acme", "engine:e1"))[3] == 2
    assert full.live() == set()
    assert full.inspect() == []
    assert full.count()[5] == 0


def test_limits_can_be_changed(full: RawFleet) -> None:
    assert full.set_limits({"total": 1})[3] == 1
