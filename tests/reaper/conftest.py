"""A fleet on the worker's Redis, and holders that acquire and then die without a word."""

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from services.permits.connect import connect
from services.permits.model import Demand, Granted, LeaseTimes
from services.permits.store import Store
from services.settings.load import load
from services.settings.seed import lease_times
from tests.support.config_file import FLEET, write_config
from tests.support.rig import begin_without_learning

Orphan = Callable[[str], Awaitable[str]]


@pytest.fixture
def config(tmp_path: Path, redis_url: str) -> Path:
    return write_config(
        tmp_path,
        redis_url,
        [{"name": "e1", "url": "http://127.0.0.1:9"}],
        fleet={"total": 100, "cold": 100},
        lease={"ttl_ms": 1200, "tick_ms": 100, "provisional_ms": 1200, "learning_ms": 200},
        reaper={"every_ms": 100},
    )


@pytest.fixture
async def store(config: Path) -> AsyncIterator[Store]:
    """A store like a gateway's, on a fleet that does not learn."""
    await begin_without_learning(config)
    settings = load(config, {})
    client = connect(settings.redis.url)
    yield Store(client, times=lease_times(settings))
    await client.aclose()


@pytest.fixture
def times(config: Path) -> LeaseTimes:
    return lease_times(load(config, {}))


@pytest.fixture
def orphan(store: Store) -> Orphan:
    """Acquire a permit under the given lease id for a holder that nobody will hear of again."""

    async def acquire(lease: str) -> str:
        demand = Demand(fleet=FLEET, tenant="acme", request_id=f"r-{lease}", engines=("e1",))
        answer = await store.acquire(demand, lease=lease, holder="dead~nonce")
        assert isinstance(answer, Granted)
        return lease

    return acquire
