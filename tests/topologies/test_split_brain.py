"""A network splits between a primary and its replica, which is promoted: for a while there are two."""

from __future__ import annotations

import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from tests.nodes.places import LONG, Ends, admits_exactly, looking_at, nothing_runs
from tests.support.islands import Island, islanded
from tests.support.redis_server import RedisServer, a_redis
from tests.support.redis_shim import RedisShim
from tests.support.rig import Rig, rig
from tests.support.scripted_engine import ScriptedEngine
from tests.support.waiting import wait_until, wait_until_sync

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.client import Call

pytestmark = pytest.mark.timeout(120)

LIMIT: Final = 4
# Redis looks at it once a second, and a replica says once a second that it is there.
MAX_LAG_S: Final = 2
SHUT_S: Final = MAX_LAG_S + 3
BACK_S: Final = 3


@pytest.fixture
def island() -> Iterator[Island]:
    with islanded() as made:
        yield made


@contextmanager
def a_server(island: Island, *options: str, there: bool = False) -> Iterator[RedisServer]:
    ends = (island.redis_address, island.address) if there else (island.redis_side,)
    words = ("--bind", "127.0.0.1", *ends, "--protected-mode", "no", *options)
    with a_redis(*words, before=island.before if there else ()) as server:
        yield server


@pytest.fixture
def primary(island: Island) -> Iterator[RedisServer]:
    """Takes writes only while a replica follows, as the README advises."""
    words = ("--min-replicas-to-write", "1", "--min-replicas-max-lag", str(MAX_LAG_S))
    with a_server(island, *words) as server:
        yield server


@pytest.fixture
def replica(island: Island, primary: RedisServer) -> Iterator[RedisServer]:
    with a_server(island, "--replicaof", island.redis_side, str(primary.port), there=True) as server:
        wait_until_sync(
            lambda: primary.cli("INFO", "replication")["min_slaves_good_slaves"] == 1,
            "the replica follows",
            20,
        )
        yield server


async def ask(replicas: Rig, number: int, opened: ExitStack, admitted: list[Call]) -> int:
    """Ask one replica for a place, and keep what is got."""
    call = opened.enter_context(await Ends([]).call(replicas.urls[number]))
    if await call.head() == 200:
        admitted.append(call)
    return call.status


async def test_a_split_exceeds_by_one_limit_at_the_most_until_the_old_primary_knows_that_it_is_alone(
    island: Island, primary: RedisServer, replica: RedisServer, tmp_path: Path
) -> None:
    """Both sides grant; what was granted on the old one is told to the new one, and shows as over-commit."""
    seen_from_here = f"redis://{island.address}:{replica.port}/0"
    with ScriptedEngine() as engine, RedisShim(primary.port) as old, RedisShim(primary.port) as new:
        engine.answer = LONG
        fleet = {"total": LIMIT, "cold": LIMIT, "redis_loss": "closed"}
        async with (
            rig(tmp_path, [old.url, new.url], engines=[engine.url], gateways=2, fleet=fleet) as replicas,
            looking_at(replicas.configs[0], seen_from_here) as eye,
        ):
            with ExitStack() as opened:
                island.pull_the_cable()
                split_s = time.monotonic()
                replica.cli("REPLICAOF", "NO", "ONE")
                new.target = (island.address, replica.port)
                new.reset()
                await replicas.gateways[1].ready(within_s=BACK_S)
                here: list[Call] = []
                there: list[Call] = []
                granted_s: list[float] = []

                async def shut() -> bool:
                    await ask(replicas, 1, opened, there)
                    before = len(here)
                    status = await ask(replicas, 0, opened, here)
                    granted_s.extend([time.monotonic() - split_s] * (len(here) - before))
                    return status == 503

                await wait_until(shut, "the old primary takes no more writes", SHUT_S + 5)
                shut_s = time.monotonic() - split_s
                assert shut_s < SHUT_S
                over = engine.max_open - LIMIT
                assert 0 < over <= LIMIT
                assert engine.open == len(here) + len(there)
                old.target = new.target
                old.reset()
                await eye.see(LIMIT + over, "both sides are counted in one place", BACK_S)
                assert (await eye.counts()).over_commit == over
                await replicas.gateways[0].ready(within_s=BACK_S)
                for number in (0, 1):
                    assert await ask(replicas, number, opened, []) == 429
            await nothing_runs(eye, engine)
            await admits_exactly(LIMIT, replicas, engine)
            print(f"{over} over; the old primary was shut {shut_s:.1f} s after the split")  # noqa: T201
