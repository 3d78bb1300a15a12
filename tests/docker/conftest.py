"""Real servers of three makes in containers, each started once; skipped, with the reason, without Docker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

import pytest
import redis

from services.permits.connect import connect
from services.permits.model import FleetPolicy, LeaseTimes
from services.permits.store import Store
from tests.docker import engine
from tests.support.waiting import wait_until_sync

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

# image -> its server program
SERVERS: Final = {"redis:7": "redis-server", "redis:8": "redis-server", "valkey/valkey:8": "valkey-server"}
PORT: Final = 6379
START_LIMIT_S: Final = 30

FLEET: Final = "demo"
LIMITS: Final = {"total": 4, "cold": 3, "tenant_default": 100, "engine:e1": 100, "engine:e2": 100}
# Long enough that no pause of a busy machine ends a lease; tests about ends bring their own.
TIMES: Final = LeaseTimes(ttl_ms=60_000, tick_ms=500, provisional_ms=30_000, learning_ms=1_000)


@dataclass(frozen=True, slots=True)
class Server:
    """One running server; `client` speaks to it as an operator would."""

    image: str
    url: str
    client: redis.Redis


@pytest.fixture(scope="session", params=SERVERS)
def running_server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """One server of each make. The engine is asked first: without one, testcontainers may hang at import."""
    image: str = request.param
    if why := engine.missing() or engine.missing_image(image):
        pytest.skip(why)
    from testcontainers.core.container import DockerContainer  # noqa: PLC0415  (as said)

    container = DockerContainer(image)
    container.with_command(f"{SERVERS[image]} --bind 0.0.0.0 --protected-mode no --save '' --appendonly no")
    host = container.get_docker_client().host()
    # On loopback only, unless the engine is on another machine.
    published = ("127.0.0.1", None) if host in ("localhost", "127.0.0.1") else None
    container.ports[f"{PORT}/tcp"] = cast("Any", published)
    with container:
        url = f"redis://{host}:{container.get_exposed_port(PORT)}/0"
        with redis.Redis.from_url(url, decode_responses=True, socket_timeout=5) as client:
            wait_until_sync(lambda: _answers(client), f"{image} answers", START_LIMIT_S)
            yield Server(image, url, client)


@pytest.fixture
def server(running_server: Server) -> Server:
    """An empty server as it was configured at its start."""
    running_server.client.config_set("maxmemory", 0)
    running_server.client.config_set("maxmemory-policy", "noeviction")
    running_server.client.flushall()
    return running_server


@pytest.fixture
async def store(server: Server) -> AsyncIterator[Store]:
    """A store on an open fleet that is known to be new, so it does not begin with learning."""
    client = connect(server.url)
    store = Store(client, times=TIMES)
    await store.set_limits(FLEET, LIMITS, seed=True, who="test", learning_ms=0)
    yield store
    await client.aclose()


@pytest.fixture
def policies() -> dict[str, FleetPolicy]:
    return {FLEET: FleetPolicy(limits=LIMITS)}


def _answers(client: redis.Redis) -> bool:
    try:
        return bool(client.ping())
    except redis.ConnectionError:
        return False
