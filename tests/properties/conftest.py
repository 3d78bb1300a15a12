"""Budgets. A larger one: `pytest tests/properties --hypothesis-profile thorough`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import redis
from hypothesis import settings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.redis_server import RedisServer

settings.register_profile(
    "thorough", deadline=None, max_examples=2000, stateful_step_count=120, print_blob=True
)
_BOUNDED = settings(deadline=None, max_examples=60, stateful_step_count=50, print_blob=True)


@pytest.fixture
def budget() -> settings:
    """How much to try: little in every run, much when asked for."""
    if settings.get_current_profile_name() == "thorough":
        return settings.get_profile("thorough")
    return _BOUNDED


@pytest.fixture
def client(redis_server: RedisServer, redis_url: str) -> Iterator[redis.Redis]:
    with redis.Redis(unix_socket_path=str(redis_server.socket_path), decode_responses=True) as client:
        yield client
        client.flushall()
