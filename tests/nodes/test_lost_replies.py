"""Redis did what it was asked and the answer never came, or the asker was gone by then: no place is lost.

The first replica talks to Redis through a shim that throws answers away; the second one does not.
"""

from __future__ import annotations

import asyncio
import itertools
import re
from collections import Counter
from contextlib import ExitStack
from typing import TYPE_CHECKING, Literal

import pytest
import pytest_asyncio

from services.permits.scripts import load
from tests.nodes.places import Ends, admits_exactly, control_arm, each_ended_once, nothing_runs
from tests.support.admin_client import ADMIN, AdminClient
from tests.support.answers import Stream
from tests.support.client import fetch
from tests.support.redis_shim import RedisShim
from tests.support.rig import Rig, rig
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from tests.support.redis_server import RedisServer
    from tests.support.scripted_engine import ScriptedEngine

pytestmark = [
    pytest.mark.xdist_group("nodes_lost_replies"),
    pytest.mark.usefixtures("leaves_nothing"),
    pytest.mark.timeout(120),
]

TOTAL = 40
BATCH = 20
LEASE = re.compile(rb"g1~[0-9a-f]+~[0-9A-Za-z_-]+")


@pytest.fixture(scope="module")
def shim(lasting_redis: RedisServer) -> Iterator[RedisShim]:
    with RedisShim(lasting_redis.port) as between:
        yield between


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def replicas(
    lasting_redis: RedisServer,
    lasting_engine: ScriptedEngine,
    shim: RedisShim,
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[Rig]:
    engine = {"url": lasting_engine.url, "name": "e1", "slots": 1000}
    folder = tmp_path_factory.mktemp("lost_replies")
    limits = {"total": TOTAL, "cold": TOTAL}
    urls = [shim.url, lasting_redis.url]
    async with rig(folder, urls, engines=[engine], gateways=2, fleet=limits, admin=ADMIN) as started:
        yield started


def first_calls_of(verb: str, seen: Counter[bytes], times: int = 1) -> Callable[[bytes], bool]:
    """Match a script's first calls for each lease, so many `times`, and count all of them in `seen`."""
    sha = load()[verb].sha.encode()

    def is_early(asked: bytes) -> bool:
        if sha not in asked:
            return False
        leases = set(LEASE.findall(asked))
        early = any(seen[lease] < times for lease in leases)
        seen.update(leases)
        return early

    return is_early


@pytest.mark.parametrize(
    ("harm", "times", "rounds"),
    # The client's own second attempt is lost as well when it happens twice.
    [("cut", 1, 200), ("cut", 2, 200), ("hang", 1, 40)],
)
async def test_an_acquire_whose_answer_is_lost_still_admits_its_request_once(
    *,
    replicas: Rig,
    lasting_engine: ScriptedEngine,
    shim: RedisShim,
    harm: Literal["cut", "hang"],
    times: int,
    rounds: int,
) -> None:
    """The same id is asked for again and gets the grant that it has already."""
    lasting_engine.answer = Stream()
    async with control_arm(replicas, lasting_engine, 1) as eye:
        ends, grants = Ends(replicas.gateways), await eye.grants()
        seen: Counter[bytes] = Counter()
        lost = shim.drop_replies(first_calls_of("acquire", seen, times), 1_000_000, harm=harm)
        for _ in range(rounds // BATCH):
            await asyncio.gather(*(_to_the_end(ends, replicas.urls[0]) for _ in range(BATCH)))
            await nothing_runs(eye, lasting_engine, but=1)
        lines = await ends.reach(rounds)
        # Those of a batch share a connection, and lose their answers with it.
        assert lost.hits >= times * rounds / BATCH
        # While the replica takes Redis for gone, a few are admitted from its share and told to Redis later.
        assert sum(calls > times for calls in seen.values()) > 0.9 * rounds
        print(f"{rounds} requests, {lost.hits} answers lost, {await eye.grants() - grants} grants")  # noqa: T201
        assert await eye.grants() - grants == len(seen) <= rounds
    each_ended_once(lines)
    assert {line["reason"] for line in lines} == {"completed"}
    assert {line["lease"].encode() for line in lines} >= set(seen)
    await _is_as_before(replicas, lasting_engine, shim)


@pytest.mark.parametrize(("harm", "times", "rounds"), [("cut", 1, 200), ("cut", 2, 50), ("hang", 1, 4)])
async def test_a_release_whose_answer_is_lost_frees_one_place(
    *,
    replicas: Rig,
    lasting_engine: ScriptedEngine,
    shim: RedisShim,
    harm: Literal["cut", "hang"],
    times: int,
    rounds: int,
) -> None:
    """It is sent again until it is acknowledged, and the second time frees nobody else's place."""
    lasting_engine.answer = Stream()
    async with control_arm(replicas, lasting_engine, 1) as eye:
        ends = Ends(replicas.gateways)
        seen: Counter[bytes] = Counter()
        shim.drop_replies(first_calls_of("release", seen, times), 1_000_000, harm=harm)
        for _ in range(rounds):
            # Both replicas at once: what g1 released twice could be a place of g2.
            await asyncio.gather(*(_to_the_end(ends, url) for url in replicas.urls))
            await nothing_runs(eye, lasting_engine, but=1)
        lines = await ends.reach(2 * rounds)
        # One call may carry several releases, so some were sent more often than they had to be.
        assert len(seen) == rounds
        assert min(seen.values()) > times
        print(f"{rounds} releases, sent {sum(seen.values())} times")  # noqa: T201
    each_ended_once(lines)
    assert {line["reason"] for line in lines} == {"completed"}
    await _is_as_before(replicas, lasting_engine, shim)


async def test_releases_that_redis_refuses_now_and_then_leave_no_place_in_any_view(
    replicas: Rig, lasting_engine: ScriptedEngine, shim: RedisShim
) -> None:
    """A refused release that was only noted would leave one count right and another one wrong."""
    rounds = 300
    lasting_engine.answer = Stream()
    async with control_arm(replicas, lasting_engine, 1) as eye:
        ends = Ends(replicas.gateways)
        refused = shim.fail(_every_fifth("release"), 1_000_000)
        for _ in range(rounds // BATCH):
            await asyncio.gather(*(_to_the_end(ends, replicas.urls[0]) for _ in range(BATCH)))
            # A refused release is sent again in a moment: until then its place is taken.
            await nothing_runs(eye, lasting_engine, but=1)
        each_ended_once(await ends.reach(rounds))
        assert refused.hits > 3
        for url in replicas.urls:
            # Only the control is left.
            assert await _shown(url) == {"total": 1, "cold": 1, "acme": 1, "e1": 1}
    await _is_as_before(replicas, lasting_engine, shim)


def _every_fifth(verb: str) -> Callable[[bytes], bool]:
    sha, calls = load()[verb].sha.encode(), itertools.count(1)
    return lambda asked: sha in asked and next(calls) % 5 == 0


async def _shown(url: str) -> dict[str, float]:
    """Return what is in use in each pool, as a replica's metrics and its administration both have it."""
    pools = (await AdminClient(url).ok("GET", "/fleets/demo"))["pools"]
    told: dict[str, float] = {
        **{name: pools[name]["in_use"] for name in ("total", "cold")},
        **{name: pool["in_use"] for part in ("tenants", "engines") for name, pool in pools[part].items()},
    }
    lines = (await fetch(url, "/metrics")).body.decode().splitlines()
    measured = [line.rsplit(" ", 1) for line in lines if re.match(r"tenure_(pool|tenant)_in_use\{", line)]
    assert {re.split('[":]', name)[-2]: float(count) for name, count in measured} == told
    return told


async def test_a_request_that_is_cancelled_while_redis_is_asked_gives_its_grant_back(
    replicas: Rig, lasting_engine: ScriptedEngine, lasting_redis: RedisServer, shim: RedisShim
) -> None:
    """The call to Redis cannot be unsent: what it brings is given back by its id."""
    rounds = 200
    lasting_engine.answer = Stream()
    async with control_arm(replicas, lasting_engine, 1) as eye:
        ends, grants = Ends(replicas.gateways), await eye.grants()
        seen: Counter[bytes] = Counter()
        # An order that harms nothing and sees every acquire.
        shim.drop_replies(first_calls_of("acquire", seen, times=0), 1)
        asked = 0
        while asked < rounds:
            # With connections to Redis open: a new one would wait for its greeting.
            await asyncio.gather(*(_to_the_end(Ends([]), replicas.urls[0]) for _ in range(BATCH)))
            await nothing_runs(eye, lasting_engine, but=1)
            before = len(seen)
            await _asked_and_left(ends, replicas.urls[0], lasting_redis, seen)
            await nothing_runs(eye, lasting_engine, but=1)
            asked += len(seen) - before
        # A request whose client left before it was read is in no log: one more ends the list.
        last = await _to_the_end(ends, replicas.urls[0])
        await wait_until(lambda: last in {line["request_id"] for line in ends.all()}, "all are logged")
        assert await eye.grants() - grants == len(seen)
    left = [line for line in ends.lines if line["request_id"] != last]
    assert {line["reason"] for line in left} == {"client_disconnect"}
    # The departure may have come after the answer; then the request was admitted, and cut.
    assert sum(line["lease"] is None for line in left) > rounds / 2
    each_ended_once([line for line in left if line["lease"] is not None])
    await _is_as_before(replicas, lasting_engine, shim)


async def _asked_and_left(ends: Ends, url: str, redis: RedisServer, seen: Counter[bytes]) -> None:
    """Send requests, and leave while Redis has been asked for some and is not answering."""
    before = len(seen)
    redis.pause()
    with ExitStack() as leaving:
        leaving.callback(redis.resume)
        for _ in range(BATCH):
            call = await ends.call(url)
            leaving.callback(call.reset)
        await wait_until(lambda: len(seen) > before, "Redis is asked")


async def _to_the_end(ends: Ends, url: str) -> str:
    with await ends.call(url) as call:
        assert await call.head() == 200
        assert (await call.rest()).endswith(b"data: [DONE]\n\n")
        return call.headers["x-request-id"]


async def _is_as_before(replicas: Rig, engine: ScriptedEngine, shim: RedisShim) -> None:
    shim.healthy()
    for replica in replicas.gateways:
        await replica.ready()
    await admits_exactly(TOTAL, replicas, engine)
