"""A real redis-server for each worker, and the check that no test leaves a lease behind."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tests.support.redis_server import RedisServer, a_redis


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    """This worker's server. A test that only needs an address asks for `redis_url`."""
    with a_redis() as server:
        yield server


@pytest.fixture
def redis_url(redis_server: RedisServer) -> Iterator[str]:
    """The address of an empty Redis. The server may be stopped or paused: it is revived after the test."""
    redis_server.revive()
    redis_server.cli("FLUSHALL")
    yield redis_server.url
    redis_server.revive()


@pytest.fixture
def spare_redis() -> Iterator[Callable[..., RedisServer]]:
    """Start further servers: `spare_redis("--maxmemory", "3mb")`. They are not checked for leases."""
    with ExitStack() as made:
        yield lambda *options: made.enter_context(a_redis(*options))


@pytest.fixture(autouse=True)
def no_lease_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """After each test on Redis: every permit went back, so no pool has a member and no record is left.

    Runs after the fixtures of the test ended (gateways drained, gates closed). A test that leaves
    leases on purpose says so: `@pytest.mark.leaves_leases("why")`.
    """
    if "redis_server" not in request.fixturenames:
        yield
        return
    request.getfixturevalue("redis_url")
    server: RedisServer = request.getfixturevalue("redis_server")
    yield
    if request.node.get_closest_marker("leaves_leases"):
        return
    server.revive()
    left = _leases_left(server)
    assert not left, f"the test left leases in Redis: {left}"


def _leases_left(server: RedisServer) -> list[str]:
    left: list[str] = [f"record {key}" for key in server.cli("KEYS", "*:lease:*")]
    for key in server.cli("KEYS", "*:pool:*"):
        left += [f"{member} in {key}" for member in server.cli("ZRANGE", key, 0, -1)]
    return left
