"""The relay that the gateway is measured against does its work on real sockets, however the bytes come."""

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from bench.load import FailedError, Line, each_in_turn, lines, request_bytes
from bench.targets import engine, floor
from bench.wires import ReplyEnd, message_bytes
from tests.support.client import fetch
from tests.support.waiting import wait_until

HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
CHUNKED = HEAD + b"5\r\nfirst\r\n10\r\n0\r\n\r\n chunk? no!\r\n0\r\n\r\n"
SIZED = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"


@asynccontextmanager
async def relayed(folder: Path, gap_ms: float = 1) -> AsyncIterator[tuple[str, str]]:
    """Run an engine and a relay in front of it as processes; yield the URLs of relay and engine."""
    async with AsyncExitStack() as stack:
        at = await stack.enter_async_context(engine(folder, gap_ms=gap_ms))
        target = await floor(stack, folder, at.url.removeprefix("http://"))
        yield target.url, at.url


async def closed_at(engine_url: str) -> dict[str, float]:
    """Return which streams the engine saw leave, and when."""
    return dict(json.loads((await fetch(engine_url, "/closed")).body))


@pytest.mark.parametrize("reply", [CHUNKED, SIZED], ids=["chunked", "sized"])
def test_the_end_of_a_reply_is_found_wherever_it_was_split(reply: bytes) -> None:
    """An end that is missed costs a connection for ever; one seen too early mixes two replies."""
    for first in range(len(reply)):
        for second in range(first, len(reply)):
            end = ReplyEnd()
            pieces = [piece for piece in (reply[:first], reply[first:second]) if piece]
            assert [end.feed(piece) for piece in pieces] == [False] * len(pieces), (first, second)
            assert end.feed(reply[second:]), (first, second)


def test_a_request_is_as_long_as_its_head_says() -> None:
    """Body and next request come in one read when a client is quick."""
    request = b"POST / HTTP/1.1\r\ncontent-length: 3\r\n\r\n"
    assert message_bytes(request[:-1]) is None
    assert message_bytes(request + b"abcGET") == len(request) + 3
    assert message_bytes(b"GET / HTTP/1.1\r\n\r\n") == len(b"GET / HTTP/1.1\r\n\r\n")


async def test_streams_pass_whole_one_after_the_other_on_kept_connections(tmp_path: Path) -> None:
    """Every token of every request must come, or the figures are of something else."""
    async with relayed(tmp_path) as (url, engine_url):
        async with lines(url, 4) as opened:
            await each_in_turn(opened, request_bytes(url, 7), count=40, tokens=7)
            assert not any(line.gone.done() for line in opened)
        assert await closed_at(engine_url) == {}


async def test_a_client_that_resets_closes_the_engines_connection(tmp_path: Path) -> None:
    """A floor that let the engine run on would be no fair floor."""
    async with relayed(tmp_path) as (url, engine_url):
        line = await Line.open(url)
        await line.begin(request_bytes(url, 1_000_000, mark="left"))
        line.reset()
        left_s = await line.gone
        closed: dict[str, float] = {}

        async def seen() -> bool:
            closed.update(await closed_at(engine_url))
            return "left" in closed

        await wait_until(seen, "the engine sees it")
        assert closed["left"] >= left_s


async def test_an_engine_that_is_gone_closes_the_connection(tmp_path: Path) -> None:
    """The client counts that as a failure, not as a quick answer."""
    async with AsyncExitStack() as stack:
        async with engine(tmp_path) as at:
            target = await floor(stack, tmp_path, at.url.removeprefix("http://"))
        async with lines(target.url, 1) as (line,):
            with pytest.raises(FailedError, match="lost"):
                await line.ask(request_bytes(target.url, 1))
