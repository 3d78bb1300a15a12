"""Replies of engines, byte by byte: where each ends, what is handed on, what becomes of the connection."""

import asyncio
import gc
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest

from services.gateway.engine_wire import HEADERS_MAX, EngineFailed, Reply
from tests.gateway.wire_scene import Scene, everything, scene
from tests.support.waiting import wait_until

OK = b"HTTP/1.1 200 OK\r\n"
LENGTH = OK + b"content-length: 5\r\n\r\n"
CHUNKED = OK + b"transfer-encoding: chunked\r\n\r\n"


@pytest.fixture
async def wire() -> AsyncIterator[Scene]:
    async with scene() as opened:
        yield opened


@dataclass(frozen=True)
class Case:
    """A whole reply, and what must come of it. `end` is how the engine goes on: stays, or closes."""

    raw: bytes
    body: bytes
    status: int = 200
    has_body: bool = True
    reusable: bool = True
    closes: bool = False


WHOLE = {
    "length": Case(LENGTH + b"hello", b"hello"),
    "length 0": Case(OK + b"content-length: 0\r\n\r\n", b""),
    "chunked": Case(CHUNKED + b"4\r\nhell\r\n1\r\no\r\n0\r\n\r\n", b"hello"),
    "extensions": Case(CHUNKED + b"4;a=b\r\nhell\r\n1 ;c\r\no\r\n0;d\r\n\r\n", b"hello"),
    "trailers": Case(CHUNKED + b"5\r\nhello\r\n0\r\nx-sum: 1\r\ncontent-type: no\r\n\r\n", b"hello"),
    "by close": Case(OK + b"\r\nhello", b"hello", reusable=False, closes=True),
    "gzip by close": Case(
        OK + b"transfer-encoding: gzip\r\n\r\nhello", b"hello", reusable=False, closes=True
    ),
    "1.0 by close": Case(b"HTTP/1.0 200 OK\r\n\r\nhello", b"hello", reusable=False, closes=True),
    "1.0": Case(b"HTTP/1.0 200 OK\r\ncontent-length: 5\r\n\r\nhello", b"hello", reusable=False),
    "1.0 kept": Case(
        b"HTTP/1.0 200 OK\r\nconnection: keep-alive\r\ncontent-length: 5\r\n\r\nhello", b"hello"
    ),
    "last one": Case(OK + b"connection: close\r\ncontent-length: 5\r\n\r\nhello", b"hello", reusable=False),
    "204": Case(b"HTTP/1.1 204 No Content\r\n\r\n", b"", status=204),
    "304": Case(b"HTTP/1.1 304 Not Modified\r\ncontent-length: 5\r\n\r\n", b"", status=304),
    "head": Case(LENGTH, b"", has_body=False),
    "head of chunks": Case(CHUNKED, b"", has_body=False),
    "head of nothing": Case(OK + b"content-length: 0\r\n\r\n", b"", has_body=False),
    "interim": Case(
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: a\r\n\r\n" + LENGTH + b"hello",
        b"hello",
    ),
    "error": Case(b"HTTP/1.1 503 Busy\r\ncontent-length: 5\r\n\r\nhello", b"hello", status=503),
    "no reason": Case(b"HTTP/1.1 200\r\ncontent-length: 5\r\n\r\nhello", b"hello"),
    "bare lines": Case(b"HTTP/1.1 200 OK\ncontent-length: 5\n\nhello", b"hello"),
}


@pytest.mark.parametrize("case", WHOLE.values(), ids=WHOLE)
async def test_a_whole_reply_is_read_to_its_end_and_no_further(wire: Scene, case: Case) -> None:
    exchange = await wire.ask(has_body=case.has_body)
    await wire.send(case.raw)
    if case.closes:
        wire.peer.close()
    reply = await exchange
    assert reply.status == case.status
    assert await everything(reply) == (case.body, None)
    reply.close()
    if case.reusable:
        await wire.is_free()
    else:
        await wire.is_cut()


@pytest.mark.parametrize("case", WHOLE.values(), ids=WHOLE)
async def test_it_makes_no_difference_where_the_bytes_are_cut(case: Case) -> None:
    """In two pieces, at each place in turn, and in single bytes."""
    cuts = [(case.raw[:at], case.raw[at:]) for at in range(1, len(case.raw))]
    waiting = [tuple(case.raw[at : at + 1] for at in range(len(case.raw))), *cuts]
    while waiting:
        async with scene() as wire:
            while waiting and not wire.peer.gone.is_set():
                exchange = await wire.ask(has_body=case.has_body)
                for piece in waiting.pop():
                    await wire.send(piece)
                if case.closes:
                    wire.peer.close()
                reply = await exchange
                assert (reply.status, *await everything(reply)) == (case.status, case.body, None)
                if not case.reusable:
                    await wire.is_cut()


async def test_headers_keep_their_order_and_repeats(wire: Scene) -> None:
    exchange = await wire.ask()
    await wire.send(
        b"HTTP/1.1 100 Continue\r\nx-interim: 1\r\n\r\n" + OK + b"Content-Type: Text/Event-Stream \t\r\n"
        b"Set-Cookie: a=1\r\nX-Latin: \xff\r\nSet-Cookie: b=2\r\nContent-Encoding:  GZip\r\n"
        b"content-type: other\r\nX-Empty:\r\ncontent-length: 0\r\n\r\n"
    )
    reply = await exchange
    assert reply.raw_headers == [
        (b"content-type", b"Text/Event-Stream"),
        (b"set-cookie", b"a=1"),
        (b"x-latin", b"\xff"),
        (b"set-cookie", b"b=2"),
        (b"content-encoding", b"GZip"),
        (b"content-type", b"other"),
        (b"x-empty", b""),
        (b"content-length", b"0"),
    ]
    assert (reply.content_type, reply.encoding) == (b"text/event-stream", b"gzip")


async def test_a_trailer_is_no_header(wire: Scene) -> None:
    exchange = await wire.ask()
    await wire.send(CHUNKED + b"5\r\nhello\r\n0\r\nx-sum: 1\r\n\r\n")
    reply = await exchange
    assert await everything(reply) == (b"hello", None)
    assert reply.raw_headers == [(b"transfer-encoding", b"chunked")]


BROKEN = {
    "short": (LENGTH + b"hell", b"hell"),
    "no last chunk": (CHUNKED + b"4\r\nhell\r\n", b"hell"),
    "half a chunk": (CHUNKED + b"5\r\nhell", b"hell"),
    "no end of trailers": (CHUNKED + b"4\r\nhell\r\n0\r\nx-sum: 1\r\n", b"hell"),
    "nothing of the body": (LENGTH, b""),
}


@pytest.mark.parametrize("politely", [True, False])
@pytest.mark.parametrize(("raw", "body"), BROKEN.values(), ids=BROKEN)
async def test_a_reply_that_breaks_off_is_an_error_after_its_last_byte(
    wire: Scene, raw: bytes, body: bytes, politely: bool
) -> None:
    exchange = await wire.ask()
    await wire.send(raw)
    if politely:
        wire.peer.close()
    else:
        wire.peer.reset()
    reply = await exchange
    data, failed = await everything(reply)
    assert data == body
    assert failed is not None
    assert (failed.reason, failed.may_retry) == ("engine_error", False)
    with pytest.raises(EngineFailed):
        await reply.read()
    assert not reply.is_read
    await wire.is_cut()


async def test_a_body_whose_end_is_the_connections_end_is_not_ended_by_a_reset(wire: Scene) -> None:
    exchange = await wire.ask()
    await wire.send(OK + b"\r\nhello")
    wire.peer.reset()
    data, failed = await everything(await exchange)
    assert data == b"hello"
    assert failed is not None
    await wire.is_cut()


BAD = {
    "no http": b"SSH-2.0-OpenSSH_9.2\r\n",
    "a request": b"GET / HTTP/1.1\r\n\r\n",
    "no version": b"HTTP/x 200 OK\r\n\r\n",
    "no status": b"HTTP/1.1 OK\r\n\r\n",
    "status 0": b"HTTP/1.1 000 OK\r\ncontent-length: 0\r\n\r\n",
    "status 42": b"HTTP/1.1 042 OK\r\ncontent-length: 0\r\n\r\n",
    "two framings": OK + b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n",
    "two lengths": OK + b"content-length: 5\r\ncontent-length: 6\r\n\r\n",
    "no length": OK + b"content-length: five\r\n\r\n",
    "head too long": OK + b"x-long: " + b"x" * 200_000,
    "head of many lines": OK + b"x: y\r\n" * 20_000,
    "too many headers": OK + b"x: y\r\n" * (HEADERS_MAX + 1) + b"\r\n",
    "interim for ever": b"HTTP/1.1 100 Continue\r\n\r\n" * 8_000,
}


@pytest.mark.parametrize("raw", BAD.values(), ids=BAD)
async def test_what_is_no_reply_is_an_error(wire: Scene, raw: bytes) -> None:
    exchange = await wire.ask()
    wire.peer.transport.write(raw)
    with pytest.raises(EngineFailed) as failed:
        await exchange
    assert failed.value.reason == "engine_error"
    await wire.is_cut()


@pytest.mark.parametrize(
    "raw",
    [
        b"x\r\n", b"4\r\nhellxx", b"0\r\n" + b"x: y\r\n" * 30_000, b"0\r\nx: " + b"y" * 200_000,
        b"1;" + b"x" * 200_000,
    ],
    ids=["size", "end", "trailers", "trailer", "extension"],
)  # fmt: skip
async def test_a_bad_chunk_is_an_error_after_all_that_came_before_it(wire: Scene, raw: bytes) -> None:
    """What brings no byte of the body is bounded, too: nobody reads it, so nothing else would stop it."""
    exchange = await wire.ask()
    await wire.send(CHUNKED + b"5\r\nhello\r\n")
    reply = await exchange
    assert await reply.read() == b"hello"
    wire.peer.transport.write(raw)
    data, failed = await everything(reply)
    assert data in (b"", b"hell")
    assert failed is not None
    await wire.is_cut()


@pytest.mark.parametrize("headers", [b"", b"connection: upgrade\r\nupgrade: websocket\r\n"])
@pytest.mark.parametrize("more", [b"", b"\x81\x05hello"])
async def test_nobody_asked_for_another_protocol(wire: Scene, headers: bytes, more: bytes) -> None:
    exchange = await wire.ask()
    await wire.peer.send(b"HTTP/1.1 101 Switching Protocols\r\n" + headers + b"\r\n" + more)
    reply = await exchange
    assert reply.status == 101
    assert (await everything(reply))[0] == b""
    await wire.is_cut()


@pytest.mark.parametrize(
    ("raw", "has_body"),
    [
        (LENGTH + b"hello!", True),
        (LENGTH + b"hello" + LENGTH + b"hello", True),
        (LENGTH + b"helloHTTP/1.1 2", True),
        (CHUNKED + b"5\r\nhello\r\n0\r\n\r\n0\r\n\r\n", True),
        (b"HTTP/1.1 204 No Content\r\n\r\nhello", True),
        (LENGTH + b"hello", False),
        (CHUNKED + b"5\r\nhello\r\n0\r\n\r\n", False),
    ],
)
async def test_bytes_behind_a_reply_spoil_the_connection_and_not_the_reply(
    wire: Scene, raw: bytes, has_body: bool
) -> None:
    """They would pose as the answer to somebody else's request."""
    exchange = await wire.ask(has_body=has_body)
    await wire.send(raw)
    data, failed = await everything(await exchange)
    assert failed is None
    assert data in (b"hello", b"")
    await wire.is_cut()


async def test_an_idle_connection_on_which_anything_arrives_is_closed(wire: Scene) -> None:
    exchange = await wire.ask()
    await wire.send(LENGTH + b"hello")
    assert await everything(await exchange) == (b"hello", None)
    assert wire.freed == [wire.connection]
    await wire.peer.send(b"HTTP/1.1 408 Request Timeout\r\n\r\n")
    async with asyncio.timeout(5):
        await wire.peer.wait_gone()


async def test_what_is_there_is_read_without_waiting_and_in_one_piece(wire: Scene) -> None:
    exchange = await wire.ask()
    await wire.send(CHUNKED + b"1\r\na\r\n1\r\nb\r\n")
    reply = await exchange
    await wire.send(b"1\r\nc\r\n0\r\n\r\n")
    with pytest.raises(StopIteration) as done:
        reply.read().send(None)
    assert done.value.value == b"abc"
    assert reply.is_read


async def test_a_reply_that_is_let_go_leaves_no_garbage(wire: Scene) -> None:
    """The collector comes seldom: what a request used must go with it."""

    def replies() -> int:
        return sum(isinstance(one, Reply) for one in gc.get_objects())

    gc.collect()
    gc.disable()
    # Other tests of this process may hold on to some of theirs.
    before = replies()
    try:
        for _ in range(3):
            exchange = await wire.ask()
            await wire.send(LENGTH + b"hello")
            reply = await exchange
            await everything(reply)
            reply.close()
        del exchange, reply
        # The event loop itself holds on to the last thing it did.
        await wait_until(lambda: replies() <= before, "all replies are gone")
    finally:
        gc.enable()
