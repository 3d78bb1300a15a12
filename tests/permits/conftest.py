"""Fixtures: a fleet that is known to be new, a look at Redis, and a network that misbehaves."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import redis

from services.permits.admin import Admin
from services.permits.connect import connect
from services.permits.store import Store
from tests.permits.office import LIMITS
from tests.permits.scene import Seen, begin
from tests.support.redis_shim import RedisShim

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from tests.support.redis_server import RedisServer


@pytest.fixture
async def url(redis_url: str) -> str:
    """An empty Redis with fleet `f` open."""
    await begin(redis_url)
    return redis_url


@pytest.fixture
def seen(redis_server: RedisServer, redis_url: str) -> Iterator[Seen]:
    with redis.Redis(unix_socket_path=str(redis_server.socket_path), decode_responses=True) as client:
        yield Seen(client)


@pytest.fixture
def shim(redis_server: RedisServer, url: str) -> Iterator[RedisShim]:
    """A proxy in front of Redis; a gate that shall suffer uses `shim.url`."""
    with RedisShim(redis_server.port) as proxy:
        yield proxy


@pytest.fixture
async def store(redis_url: str) -> AsyncIterator[Store]:
    """A Redis with two fleets, for administration."""
    client = connect(redis_url)
    store = Store(client)
    for fleet in ("demo", "other"):
        await store.set_limits(fleet, LIMITS, who="file", seed=True, learning_ms=0)
    try:
        yield store
    finally:
        await client.aclose()


@pytest.fixture
def admin(store: Store) -> Admin:
    return Admin(store, who="ann")
