"""Every way a request can end, over and over, on replicas of one fleet: each gives its place back once.

One stream runs through each test as the intact control: a way out that frees somebody else's place would free
its, one that frees too little would leave more than it.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio

from tests.nodes.places import Ends, admits_exactly, control_arm, each_ended_once, nothing_runs
from tests.support.answers import Dies, Stream, failure
from tests.support.rig import Rig, rig
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence

    from tests.nodes.places import Eye
    from tests.support.client import Call
    from tests.support.redis_server import RedisServer
    from tests.support.reply import Reply, Script
    from tests.support.scripted_engine import ScriptedEngine

pytestmark = [
    pytest.mark.xdist_group("nodes_ways_out"),
    pytest.mark.usefixtures("leaves_nothing"),
    pytest.mark.timeout(120),
]

TOTAL = 40
BATCH = 20
# Engines for ever: nothing but the way out under test ends them.
ENDLESS = Stream(tokens=None, gap_s=0.02)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def replicas(
    lasting_redis: RedisServer, lasting_engine: ScriptedEngine, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Rig]:
    engine = {"url": lasting_engine.url, "name": "e1", "slots": 1000}
    folder = tmp_path_factory.mktemp("ways_out")
    limits = {"total": TOTAL, "cold": TOTAL}
    async with rig(folder, lasting_redis.url, engines=[engine], gateways=2, fleet=limits) as started:
        yield started


async def says_502_and_never_ends(reply: Reply) -> None:
    """The head of an error, and of its body a piece."""
    await reply.head(502, (("content-type", "application/json"),))
    await reply.piece(b'{"error": ')
    await reply.hold()


@dataclass(frozen=True)
class Way:
    """How the engine answers, what the client does with that, and how such requests are said to end."""

    script: Script
    leave: Callable[[Call, ScriptedEngine, asyncio.Barrier], Awaitable[None]]
    ends: frozenset[tuple[str, int | None]]


async def reads_to_the_end(call: Call, engine: ScriptedEngine, together: asyncio.Barrier) -> None:
    await call.head()
    await call.rest()
    call.close()


async def leaves_before_the_headers(call: Call, engine: ScriptedEngine, together: asyncio.Barrier) -> None:
    await wait_until(lambda: engine.held == BATCH, "all wait at the engine")
    await together.wait()
    call.reset()


async def leaves_after_the_head(call: Call, engine: ScriptedEngine, together: asyncio.Barrier) -> None:
    await call.head()
    call.reset()


async def leaves_after_the_first_token(call: Call, engine: ScriptedEngine, together: asyncio.Barrier) -> None:
    assert await call.first_token() is not None
    call.reset()


async def leaves_after_some_tokens(call: Call, engine: ScriptedEngine, together: asyncio.Barrier) -> None:
    await call.head()
    for _ in range(random.randrange(20)):
        assert await call.next_event() is not None
    call.reset()


async def leaves_with_the_last_byte(call: Call, engine: ScriptedEngine, together: asyncio.Barrier) -> None:
    await call.head()
    while await call.next_event() != b"data: [DONE]":
        assert call.ended is None
    call.reset()


async def leaves_at_random(call: Call, engine: ScriptedEngine, together: asyncio.Barrier) -> None:
    await asyncio.sleep(random.uniform(0, 0.03))
    call.reset()


def one_of(*reasons: str, status: int | None = 200) -> frozenset[tuple[str, int | None]]:
    return frozenset((reason, status) for reason in reasons)


GONE_EARLY = one_of("client_disconnect", status=None)
WAYS = {
    "eof": Way(Stream(), reads_to_the_end, one_of("completed")),
    "engine_answers_429": Way(failure(429), reads_to_the_end, one_of("completed", status=429)),
    "engine_answers_500": Way(failure(500), reads_to_the_end, one_of("completed", status=500)),
    "engine_answers_502": Way(failure(502), reads_to_the_end, one_of("completed", status=502)),
    "engine_answers_504": Way(failure(504), reads_to_the_end, one_of("completed", status=504)),
    "client_leaves_an_error_without_end": Way(
        says_502_and_never_ends, leaves_after_the_head, one_of("client_disconnect", status=502)
    ),
    "engine_dies_before_headers": Way(
        Dies("before_head"), reads_to_the_end, one_of("engine_error", status=502)
    ),
    "engine_dies_in_headers": Way(Dies("within_head"), reads_to_the_end, one_of("engine_error", status=502)),
    "engine_dies_after_headers": Way(Dies("after_head"), reads_to_the_end, one_of("engine_error")),
    "engine_resets_between_events": Way(Stream(ending="reset"), reads_to_the_end, one_of("engine_error")),
    "engine_resets_in_an_event": Way(Stream(ending="torn"), reads_to_the_end, one_of("engine_error")),
    "engine_breaks_off": Way(Stream(ending="cut"), reads_to_the_end, one_of("engine_error")),
    "client_leaves_before_headers": Way(Stream(hold_before_head=True), leaves_before_the_headers, GONE_EARLY),
    "client_leaves_after_first_token": Way(
        ENDLESS, leaves_after_the_first_token, one_of("client_disconnect")
    ),
    "client_leaves_after_some_tokens": Way(ENDLESS, leaves_after_some_tokens, one_of("client_disconnect")),
    "client_leaves_with_the_last_byte": Way(
        Stream(), leaves_with_the_last_byte, one_of("completed", "client_disconnect")
    ),
    "client_leaves_as_the_engine_dies": Way(
        Stream(tokens=2, ending="reset"),
        leaves_after_the_first_token,
        one_of("client_disconnect", "engine_error"),
    ),
}


@pytest.mark.parametrize("name", WAYS)
async def test_each_way_out_gives_the_place_back_once(
    replicas: Rig, lasting_engine: ScriptedEngine, name: str
) -> None:
    """A place that is kept starves the fleet, one that returns twice lets too many in."""
    way, rounds = WAYS[name], 200
    lasting_engine.answer = way.script
    async with control_arm(replicas, lasting_engine) as eye:
        ends, grants, seen = Ends(replicas.gateways), await eye.grants(), len(lasting_engine.requests)
        for _ in range(rounds // BATCH):
            await _batch(replicas, lasting_engine, way, ends)
            await nothing_runs(eye, lasting_engine, but=1)
            # Kept connections may be used again; they are never more than requests ran at once.
            await wait_until(
                lambda: lasting_engine.sockets <= BATCH + 1, "the engine's connections are closed"
            )
        lines = await ends.reach(rounds)
        assert await eye.grants() - grants == rounds
        assert len(lasting_engine.requests) - seen == rounds
        await _all_written_down(eye, lines)
    each_ended_once(lines)
    said = Counter((line["reason"], line["status"]) for line in lines)
    assert set(said) <= way.ends, said
    await admits_exactly(TOTAL, replicas, lasting_engine)


async def test_a_client_may_leave_at_any_instant(replicas: Rig, lasting_engine: ScriptedEngine) -> None:
    """Before the body is read, while Redis is asked, while the engine connects: nobody waits for a place."""
    way = Way(Stream(tokens=2, gap_s=0.005), leaves_at_random, frozenset())
    lasting_engine.answer = way.script
    async with control_arm(replicas, lasting_engine) as eye:
        ends = Ends(replicas.gateways)
        for _ in range(10):
            await _batch(replicas, lasting_engine, way, ends)
            await nothing_runs(eye, lasting_engine, but=1)
        # A request whose client left before it was read is in no log: one more of each replica ends the list.
        last = {await _completed(ends, url) for url in replicas.urls}
        await wait_until(
            lambda: last <= {line["request_id"] for line in ends.all()}, "all before it are logged"
        )
    each_ended_once([line for line in ends.lines if line["lease"] is not None])
    assert {line["reason"] for line in ends.lines} <= {"client_disconnect", "completed"}
    await admits_exactly(TOTAL, replicas, lasting_engine)


async def _all_written_down(eye: Eye, lines: Sequence[Mapping[str, Any]]) -> None:
    """Whoever looks at the event stream finds each end of the log once, with the same reason."""
    logged = Counter((line["lease"], line["reason"]) for line in lines)

    async def there() -> bool:
        return logged.keys() <= {*await eye.ended()}

    await wait_until(there, "every end is in the event stream")
    leases = {line["lease"] for line in lines}
    assert Counter(end for end in await eye.ended() if end[0] in leases) == logged


async def _completed(ends: Ends, url: str) -> str:
    with await ends.call(url) as call:
        assert await call.head() == 200
        await call.rest()
        return call.headers["x-request-id"]


async def _batch(replicas: Rig, engine: ScriptedEngine, way: Way, ends: Ends) -> None:
    together = asyncio.Barrier(BATCH)

    async def once(number: int) -> None:
        with await ends.call(replicas.urls[number % len(replicas.urls)]) as call:
            await way.leave(call, engine, together)

    await asyncio.gather(*(once(number) for number in range(BATCH)))
