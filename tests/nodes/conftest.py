"""What tests of several processes share: an engine and, for rigs that many tests use, their own Redis."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.nodes.places import leases_left
from tests.support.redis_server import RedisServer, a_redis
from tests.support.scripted_engine import ScriptedEngine

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def engine() -> Iterator[ScriptedEngine]:
    with ScriptedEngine() as scripted:
        yield scripted


@pytest.fixture(scope="module")
def lasting_engine() -> Iterator[ScriptedEngine]:
    """The engine of a rig that all tests of a module use."""
    with ScriptedEngine() as scripted:
        yield scripted


@pytest.fixture(scope="module")
def lasting_redis() -> Iterator[RedisServer]:
    """The Redis of a rig that all tests of a module use; nobody empties it between two tests."""
    with a_redis() as server:
        yield server


@pytest.fixture
def leaves_nothing(lasting_redis: RedisServer, lasting_engine: ScriptedEngine) -> Iterator[None]:
    """The leak check of the tests that share a rig."""
    yield
    lasting_redis.revive()
    assert not leases_left(lasting_redis), "the test left leases in Redis"
    assert lasting_engine.open == 0, "the test left requests open at the engine"
