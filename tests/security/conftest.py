"""One gateway process for each file of attacks, and the check that none of them did any harm."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio

from tests.security.target import Target
from tests.support.answers import as_asked
from tests.support.redis_server import RedisServer, a_redis
from tests.support.rig import rig
from tests.support.scripted_engine import ScriptedEngine
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

ENGINE_KEY = "engine-key-9876543210"
ENDS = "tenure:{demo}:ends"


@pytest.fixture(scope="module")
def lasting_redis() -> Iterator[RedisServer]:
    """The Redis of a file's gateway; nobody empties it between two tests."""
    with a_redis() as server:
        yield server


@pytest.fixture(scope="module")
def lasting_engine() -> Iterator[ScriptedEngine]:
    """The engine behind a file's gateway; it wants a key of its own."""
    with ScriptedEngine() as scripted:
        yield scripted


@pytest.fixture(scope="module")
def settings() -> dict[str, Any]:
    """What a file lays over the configuration of its gateway; see `write_config`."""
    return {}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def lasting_target(
    lasting_redis: RedisServer,
    lasting_engine: ScriptedEngine,
    settings: dict[str, Any],
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[Target]:
    engine = {"url": lasting_engine.url, "name": "e1", "api_key": ENGINE_KEY}
    folder = tmp_path_factory.mktemp("target")
    async with rig(folder, lasting_redis.url, engines=[engine], gateways=1, **settings) as started:
        made = Target(started.gateways[0], lasting_engine, lasting_redis)
        # The first end that a tick tells makes a key: before any test looks at what its own doing leaves.
        await made.good_request()
        await wait_until(lambda: ENDS in lasting_redis.cli("KEYS", "*"), "the first end is told")
        yield made


@pytest_asyncio.fixture
async def target(lasting_target: Target, lasting_engine: ScriptedEngine) -> AsyncIterator[Target]:
    """The file's gateway. After the test nothing runs, nothing is held, and a good request is served."""
    lasting_engine.answer, lasting_engine.choose = as_asked, None
    lasting_target.mark()
    yield lasting_target
    lasting_engine.answer, lasting_engine.choose = as_asked, None
    await lasting_target.is_unharmed()
