"""One connection for many callers: each gets its own reply, whoever else leaves, fails or is slow."""

from __future__ import annotations

import asyncio
import hashlib
import random
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from services.permits.cluster import ClusterPipe
from services.permits.connect import connect
from services.permits.pipe import Pipe
from services.permits.scripts import Header, Script
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.permits.scene import Seen
    from tests.support.redis_shim import RedisShim


def script(text: str) -> Script:
    sha = hashlib.sha1(text.encode()).hexdigest()  # noqa: S324  (what EVALSHA is defined by)
    return Script("test", text, sha, Header((), (), variadic=True, replies=()))


ECHO = script("return ARGV[1]")
COUNT = script("return redis.call('INCRBY', KEYS[1], ARGV[1])")
FAIL = script("return redis.error_reply('NOPE ' .. ARGV[1])")
NESTED = script("return {ARGV[1], {1, 'two'}, false}")


async def echo(pipe: Pipe | ClusterPipe, word: str) -> Any:
    return await pipe.run(ECHO, (), (word,))


@asynccontextmanager
async def a_pipe(url: str, *, timeout_s: float = 5.0) -> AsyncIterator[Pipe]:
    client = connect(url, timeout_s=timeout_s)
    assert isinstance(client.pipe, Pipe)
    try:
        yield client.pipe
    finally:
        await client.aclose()


def connections(seen: Seen) -> int:
    made: int = seen.client.info("stats")["total_connections_received"]
    return made


async def test_a_thousand_calls_at_once_share_a_connection_and_get_their_own_replies(
    url: str, seen: Seen
) -> None:
    before = connections(seen)
    async with a_pipe(url) as pipe:
        replies = await asyncio.gather(*(echo(pipe, f"w{n}") for n in range(1000)))
        assert replies == [f"w{n}" for n in range(1000)]
        assert connections(seen) == before + 1
    await wait_until(lambda: len(seen.client.client_list()) == 1, "the connection is closed")


async def test_replies_come_as_redis_sent_them(url: str) -> None:
    async with a_pipe(url) as pipe:
        assert await pipe.run(NESTED, (), ("é",)) == ["é", [1, "two"], None]
        assert await pipe.run(COUNT, ("n",), (3,)) == 3


async def test_an_error_reply_is_raised_for_its_own_caller_only(url: str, seen: Seen) -> None:
    before = connections(seen)
    async with a_pipe(url) as pipe:
        calls = (echo(pipe, "a"), pipe.run(FAIL, (), ("x",)), echo(pipe, "b"))
        replies = await asyncio.gather(*calls, return_exceptions=True)
        assert (replies[0], replies[2]) == ("a", "b")
        assert isinstance(replies[1], ResponseError)
        assert str(replies[1]) == "NOPE x"
        assert connections(seen) == before + 1


async def test_callers_who_leave_at_any_moment_disturb_nobody(url: str, seen: Seen) -> None:
    rng = random.Random(11)
    before = connections(seen)
    async with a_pipe(url) as pipe:
        for _ in range(20):
            tasks = [asyncio.create_task(echo(pipe, f"w{n}")) for n in range(60)]
            for leaver in tasks[::3]:
                for _ in range(rng.randrange(4)):
                    await asyncio.sleep(0)
                leaver.cancel()
            replies = await asyncio.gather(*tasks, return_exceptions=True)
            stayed = [reply for n, reply in enumerate(replies) if n % 3]
            assert stayed == [f"w{n}" for n in range(60) if n % 3]
        assert connections(seen) == before + 1


async def test_a_script_that_redis_does_not_know_is_sent_along(url: str, seen: Seen) -> None:
    async with a_pipe(url) as pipe:
        for n in range(3):
            seen.client.script_flush()
            assert await echo(pipe, f"w{n}") == f"w{n}"


async def test_one_reply_that_does_not_come_in_time_fails_all_behind_it_and_the_next_call_works(
    shim: RedisShim,
) -> None:
    async with a_pipe(shim.url, timeout_s=0.3) as pipe:
        await echo(pipe, "ready")
        shim.blackhole()
        failed = await asyncio.gather(*(echo(pipe, f"w{n}") for n in range(5)), return_exceptions=True)
        assert [type(error) for error in failed] == [RedisTimeoutError] * 5
        shim.healthy()
        assert await echo(pipe, "again") == "again"


async def test_a_connection_that_breaks_is_replaced_once_in_a_call(shim: RedisShim) -> None:
    async with a_pipe(shim.url) as pipe:
        await echo(pipe, "ready")
        cut = shim.drop_replies(lambda request: b"only-here" in request)
        assert await echo(pipe, "only-here") == "only-here"
        assert cut.hits == 1
        cut = shim.drop_replies(lambda request: b"only-here" in request, count=2)
        with pytest.raises(RedisConnectionError):
            await echo(pipe, "only-here")
        assert cut.hits == 2
        assert await echo(pipe, "w") == "w"


async def test_a_connection_that_breaks_leads_to_a_redis_that_has_forgotten_its_scripts(
    shim: RedisShim, seen: Seen
) -> None:
    """As when it was started again."""
    async with a_pipe(shim.url) as pipe:
        await echo(pipe, "ready")
        seen.client.script_flush()
        cut = shim.drop_replies(lambda request: b"only-here" in request)
        assert await echo(pipe, "only-here") == "only-here"
        assert cut.hits == 1


async def test_a_redis_that_is_away_is_an_error_for_each_who_asks_and_found_again(shim: RedisShim) -> None:
    async with a_pipe(shim.url) as pipe:
        shim.refuse()
        failed = await asyncio.gather(*(echo(pipe, f"w{n}") for n in range(5)), return_exceptions=True)
        assert [isinstance(error, RedisConnectionError) for error in failed] == [True] * 5
        shim.healthy()
        assert await echo(pipe, "back") == "back"


async def test_one_who_leaves_while_connecting_leaves_the_connection_to_the_others(shim: RedisShim) -> None:
    shim.delay(100)
    async with a_pipe(shim.url) as pipe:
        first, second = asyncio.create_task(echo(pipe, "a")), asyncio.create_task(echo(pipe, "b"))
        await wait_until(lambda: shim.open, "it connects")
        first.cancel()
        assert await second == "b"
        assert shim.accepted == 1


async def test_settled_is_done_when_nothing_that_was_sent_can_still_be_carried_out(
    shim: RedisShim, seen: Seen
) -> None:
    async with a_pipe(shim.url) as pipe:
        assert pipe.settled().done()
        await pipe.run(COUNT, ("n",), (1,))
        assert pipe.settled().done()
        shim.stall()
        leaver = asyncio.create_task(pipe.run(COUNT, ("n",), (1,)))
        await asyncio.sleep(0)
        leaver.cancel()
        await asyncio.gather(leaver, return_exceptions=True)
        settled = pipe.settled()
        assert not settled.done()
        assert seen.client.get("n") == "1"
        shim.healthy()
        await asyncio.wait_for(settled, 5)
        assert seen.client.get("n") == "2"


async def test_settled_is_done_when_the_connection_is_lost(shim: RedisShim) -> None:
    async with a_pipe(shim.url, timeout_s=0.3) as pipe:
        await echo(pipe, "ready")
        shim.blackhole()
        leaver = asyncio.create_task(echo(pipe, "w"))
        await asyncio.sleep(0)
        leaver.cancel()
        settled = pipe.settled()
        assert not settled.done()
        await asyncio.wait_for(settled, 5)


async def test_a_dropped_connection_answers_what_is_under_way_and_takes_nothing_new(
    url: str, seen: Seen
) -> None:
    async with a_pipe(url) as pipe:
        await echo(pipe, "ready")
        before = connections(seen)
        under_way = asyncio.create_task(echo(pipe, "old"))
        await asyncio.sleep(0)
        pipe.drop()
        assert await echo(pipe, "new") == "new"
        assert await under_way == "old"
        assert connections(seen) == before + 1
        await wait_until(lambda: len(seen.client.client_list()) == 2, "the old connection is closed")


async def test_closing_ends_what_is_under_way(shim: RedisShim) -> None:
    client = connect(shim.url)
    await echo(client.pipe, "ready")
    shim.stall()
    under_way = asyncio.create_task(echo(client.pipe, "w"))
    await asyncio.sleep(0)
    await client.pipe.close()
    with pytest.raises(RedisConnectionError):
        await under_way
    with pytest.raises(RedisConnectionError):
        await echo(client.pipe, "late")
    shim.healthy()
    await client.aclose()
    await wait_until(lambda: not shim.open, "no connection is left")


@pytest.mark.parametrize("noise", [b"no reply at all\r\n", b"+OK\r\n+OK\r\n"])
async def test_a_server_that_speaks_something_else_is_an_error_and_left(noise: bytes) -> None:
    asked: list[bytes] = []

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while request := await reader.read(65536):
            scripts = request.count(b"EVALSHA")
            asked.append(request)
            writer.write(noise if scripts else b"+OK\r\n" * request.count(b"*"))
        writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    async with server, a_pipe(f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}") as pipe:
        await asyncio.gather(echo(pipe, "a"), return_exceptions=True)
        opened = len(asked)
        await asyncio.gather(echo(pipe, "b"), return_exceptions=True)
        # A new connection, hence a new greeting.
        assert len(asked) > opened + 1
