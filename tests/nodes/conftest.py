"""What tests of several processes share: an engine and, for rigs that many tests use, their own Redis."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.nodes.places import leases_left
from tests.support.redis_server import RedisServer
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
    # Not pytest's tmp_path: a unix socket's path may not be longer than about 100 bytes.
    folder = Path(tempfile.mkdtemp(prefix="tenure-redis-"))
    server = RedisServer(folder)
    try:
        yield server.start()
    finally:
        server.stop()
        shutil.rmtree(folder)


@pytest.fixture
def leaves_nothing(lasting_redis: RedisServer, lasting_engine: ScriptedEngine) -> Iterator[None]:
    """The leak check of the tests that share a rig."""
    yield
    lasting_redis.revive()
    assert not leases_left(lasting_redis), "the test left leases in Redis"
    assert lasting_engine.open == 0, "the test left requests open at the engine"
