"""The tests' own server: what other tests rely on."""

import pytest
import redis

from tests.support.redis_server import RedisServer
from tests.support.waiting import wait_until, wait_until_sync


def test_the_server_answers_on_both_addresses(redis_server: RedisServer, redis_url: str) -> None:
    for url in (redis_url, redis_server.unix_url):
        with redis.Redis.from_url(url) as client:
            assert client.incr("calls") > 0
    assert redis_server.cli("GET", "calls") == "2"


def test_a_stopped_server_is_back_for_the_next_test(redis_server: RedisServer, redis_url: str) -> None:
    redis_server.stop()
    assert not redis_server.running()
    redis_server.revive()
    assert redis_server.cli("DBSIZE") == 0


async def test_waiting_says_what_it_waited_for() -> None:
    with pytest.raises(AssertionError, match="the sun rises"):
        await wait_until(lambda: False, "the sun rises", timeout_s=0.02)
    with pytest.raises(AssertionError, match="the sun rises"):
        wait_until_sync(lambda: False, "the sun rises", timeout_s=0.02)


async def test_waiting_takes_plain_and_async_predicates() -> None:
    async def true() -> bool:
        return True

    await wait_until(true, "an async predicate")
    await wait_until(lambda: True, "a plain one")
