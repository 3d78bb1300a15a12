"""A fleet on the worker's Redis, emptied at the end: scripts called by hand have no holder to give back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import redis

from tests.lua.fleet import RawFleet
from tests.lua.line import Line

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.redis_server import RedisServer


@pytest.fixture
def client(redis_server: RedisServer, redis_url: str) -> Iterator[redis.Redis]:
    with redis.Redis(unix_socket_path=str(redis_server.socket_path), decode_responses=True) as client:
        yield client
        client.flushall()


@pytest.fixture
def new_fleet(client: redis.Redis) -> RawFleet:
    """A fleet of which Redis knows nothing."""
    return RawFleet(client)


@pytest.fixture
def fleet(new_fleet: RawFleet) -> RawFleet:
    """An open fleet with more room than most tests need; `set_limits` narrows it."""
    return new_fleet.open()


@pytest.fixture
def line(client: redis.Redis) -> Line:
    """A fleet with one place, two gateways that live, and nobody in line."""
    return Line(client)
