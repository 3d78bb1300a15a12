"""The proxy in front of Redis harms exactly what it is told to, and Redis itself carries on."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator

import pytest
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from tests.support.redis_server import RedisServer
from tests.support.redis_shim import RedisShim
from tests.support.waiting import wait_until


@pytest.fixture
def shim(redis_server: RedisServer) -> Iterator[RedisShim]:
    with RedisShim(redis_server.port) as proxy:
        yield proxy


@pytest.fixture
async def client(shim: RedisShim) -> AsyncIterator[Redis]:
    no_retry = Retry(NoBackoff(), 0)
    async with Redis.from_url(
        shim.url, socket_timeout=0.6, socket_connect_timeout=0.6, retry=no_retry, decode_responses=True
    ) as redis:
        yield redis


def incr(request: bytes) -> bool:
    return b"INCR" in request


async def test_it_forwards_and_counts_connections(shim: RedisShim, client: Redis) -> None:
    await client.set("a", "x" * 200_000)
    assert await client.get("a") == "x" * 200_000
    assert (shim.accepted, shim.open) == (1, 1)


async def test_delay_holds_requests_back(shim: RedisShim, client: Redis) -> None:
    await client.ping()
    shim.delay(300)
    started = time.monotonic()
    await client.ping()
    assert time.monotonic() - started >= 0.3
    shim.healthy()
    started = time.monotonic()
    await client.ping()
    assert time.monotonic() - started < 0.3


async def test_a_dropped_reply_means_done_and_unknown(
    shim: RedisShim, client: Redis, redis_server: RedisServer
) -> None:
    await client.ping()
    cut = shim.drop_replies(incr)
    with pytest.raises(RedisConnectionError):
        await client.incr("n")
    hung = shim.drop_replies(incr, harm="hang")
    with pytest.raises(RedisTimeoutError):
        await client.incr("n")
    assert (cut.hits, hung.hits) == (1, 1)
    assert redis_server.cli("GET", "n") == "2"
    assert await client.incr("n") == 3


async def test_a_failed_request_never_reaches_redis(
    shim: RedisShim, client: Redis, redis_server: RedisServer
) -> None:
    fault = shim.fail(incr, 2)
    for _ in range(2):
        with pytest.raises(ResponseError, match="injected"):
            await client.incr("m")
    assert await client.incr("m") == 1
    assert fault.hits == 2


async def test_a_black_hole_swallows_and_refusal_refuses(shim: RedisShim, client: Redis) -> None:
    await client.ping()
    shim.blackhole()
    with pytest.raises(RedisTimeoutError):
        await client.incr("k")
    shim.healthy()
    assert await client.get("k") is None

    shim.refuse()
    with pytest.raises(RedisConnectionError):
        await client.ping()
    shim.healthy()
    assert await client.ping()


async def test_a_stall_delivers_late_what_the_client_gave_up_on(
    shim: RedisShim, client: Redis, redis_server: RedisServer
) -> None:
    await client.ping()
    shim.stall()
    with pytest.raises(RedisTimeoutError):
        await client.incr("late")
    assert redis_server.cli("GET", "late") is None
    shim.healthy()
    await wait_until(lambda: redis_server.cli("GET", "late") == "1", "the late request is carried out")


async def test_a_reset_cuts_what_is_open_and_lets_new_connections_pass(
    shim: RedisShim, client: Redis
) -> None:
    subscription = client.pubsub()
    await subscription.subscribe("x")
    await wait_until(lambda: shim.open == 1, "subscribed")
    shim.reset()
    await wait_until(lambda: shim.open == 0, "cut")
    assert await client.ping()
    await subscription.aclose()  # type: ignore[no-untyped-call]


async def test_it_works_on_while_the_loop_of_the_test_is_blocked(shim: RedisShim, client: Redis) -> None:
    await client.ping()
    shim.delay(300)
    pending = asyncio.ensure_future(client.ping())
    await asyncio.sleep(0.01)
    time.sleep(0.5)
    started = time.monotonic()
    await pending
    assert time.monotonic() - started < 0.25
