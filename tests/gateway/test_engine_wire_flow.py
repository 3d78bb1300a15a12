"""Requests to engines, and slow readers of replies: what is held, who waits for whom, what a cancel does."""

import asyncio
import hashlib
from collections.abc import AsyncIterator

import pytest

from services.gateway.engine_wire import HELD_BYTES, PIECE_BYTES, READ_BYTES, EngineFailed
from tests.gateway.wire_scene import Scene, everything, scene
from tests.support.waiting import wait_until

POST = b"POST /v1/x HTTP/1.1\r\nhost: e\r\ncontent-length: %d\r\n\r\n"
LARGE = bytes(range(256)) * (8 << 12)  # 8 MiB
REPLY = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n"


@pytest.fixture
async def wire() -> AsyncIterator[Scene]:
    async with scene() as opened:
        yield opened


def held(wire: Scene) -> int:
    """Return how many bytes of a request wait in the client's transport."""
    transport: asyncio.Transport = wire.connection._transport  # noqa: SLF001
    return transport.get_write_buffer_size()


@pytest.mark.parametrize("size", [0, 1, PIECE_BYTES, PIECE_BYTES + 1, len(LARGE)])
async def test_a_request_arrives_byte_for_byte(wire: Scene, size: int) -> None:
    body = LARGE[:size]
    exchange = asyncio.create_task(wire.connection.exchange(POST % size, body))
    head = await wire.peer.read_head()
    assert head is not None
    received = await wire.peer.read_body(head)
    assert hashlib.sha256(received).digest() == hashlib.sha256(body).digest()
    await wire.send(REPLY + b"hello")
    assert await everything(await exchange) == (b"hello", None)
    await wire.is_free()


async def test_an_engine_that_does_not_read_is_not_sent_more(wire: Scene) -> None:
    """A large prompt is in memory once."""
    wire.peer.transport.pause_reading()
    exchange = asyncio.create_task(wire.connection.exchange(POST % len(LARGE), LARGE))
    await wait_until(lambda: held(wire), "the engine's buffers are full")
    assert held(wire) <= 2 * PIECE_BYTES
    wire.peer.transport.resume_reading()
    head = await wire.peer.read_head()
    assert head is not None
    assert await wire.peer.read_body(head) == LARGE
    await wire.send(REPLY + b"hello")
    assert await everything(await exchange) == (b"hello", None)
    await wire.is_free()


async def test_an_answer_before_the_end_of_the_request_is_passed_on(wire: Scene) -> None:
    """413 comes early. The rest of the request is in nobody's way: its connection goes."""
    exchange = asyncio.create_task(wire.connection.exchange(POST % len(LARGE), LARGE))
    await wire.peer.read_head()
    wire.peer.transport.pause_reading()
    await wait_until(lambda: held(wire), "the engine's buffers are full")
    await wire.send(b"HTTP/1.1 413 Too Large\r\ncontent-length: 5\r\n\r\nlarge")
    reply = await exchange
    assert (reply.status, *await everything(reply)) == (413, b"large", None)
    wire.peer.transport.resume_reading()
    await wire.is_cut()


async def test_a_head_before_the_end_of_the_request_does_not_end_the_request(wire: Scene) -> None:
    exchange = asyncio.create_task(wire.connection.exchange(POST % len(LARGE), LARGE))
    head = await wire.peer.read_head()
    assert head is not None
    await wire.send(REPLY)
    reply = await exchange
    assert await wire.peer.read_body(head) == LARGE
    await wire.send(b"hello")
    assert await everything(reply) == (b"hello", None)
    await wire.is_free()


async def test_a_reader_that_is_behind_leaves_the_engine_waiting(wire: Scene) -> None:
    exchange = await wire.ask()
    await wire.send(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(LARGE))
    reply = await exchange
    taken_before = wire.connection.taken
    sending = asyncio.create_task(wire.peer.send(LARGE))
    await wait_until(lambda: wire.connection.taken - taken_before >= HELD_BYTES, "the buffer is full")
    # Standing still can only be seen over time.
    for _ in range(20):
        await asyncio.sleep(0.01)
    assert wire.connection.taken - taken_before < HELD_BYTES + READ_BYTES
    assert not sending.done()
    data = await reply.read()
    assert HELD_BYTES <= len(data) < HELD_BYTES + READ_BYTES
    rest, failed = await everything(reply)
    assert failed is None
    assert data + rest == LARGE
    await sending
    await wire.is_free()


async def test_a_reply_that_is_whole_frees_its_connection_though_nobody_has_read_it(wire: Scene) -> None:
    """Also when the reader was so far behind that the engine was left waiting."""
    body = LARGE[: HELD_BYTES + 1]
    exchange = await wire.ask()
    await wire.send(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body))
    reply = await exchange
    await wire.send(body[:HELD_BYTES])
    sending = asyncio.create_task(wire.peer.send(body[HELD_BYTES:]))
    first = await reply.read()
    await sending
    await wait_until(lambda: wire.freed, "the connection is free")
    assert first + (await everything(reply))[0] == body
    await wire.is_free()


async def test_cancelling_the_wait_for_the_head_cuts_the_connection(wire: Scene) -> None:
    exchange = await wire.ask()
    exchange.cancel()
    with pytest.raises(asyncio.CancelledError):
        await exchange
    await wire.is_cut()


async def test_cancelling_in_the_midst_of_the_request_cuts_the_connection(wire: Scene) -> None:
    exchange = asyncio.create_task(wire.connection.exchange(POST % len(LARGE), LARGE))
    await wire.peer.read_head()
    wire.peer.transport.pause_reading()
    await wait_until(lambda: held(wire), "the engine's buffers are full")
    exchange.cancel()
    with pytest.raises(asyncio.CancelledError):
        await exchange
    await wait_until(lambda: wire.lost, "the connection is lost")
    wire.peer.transport.resume_reading()
    await wire.is_cut()


async def test_cancelling_a_read_cuts_the_connection(wire: Scene) -> None:
    exchange = await wire.ask()
    await wire.send(REPLY)
    reply = await exchange
    reading = asyncio.create_task(reply.read())
    await asyncio.sleep(0)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    await wire.is_cut()


async def test_letting_go_of_a_reply_that_is_not_whole_cuts_the_connection(wire: Scene) -> None:
    exchange = await wire.ask()
    await wire.send(REPLY + b"he")
    reply = await exchange
    reply.close()
    reply.close()
    await wire.is_cut()


async def test_letting_go_of_a_whole_reply_touches_nobody_elses_request(wire: Scene) -> None:
    exchange = await wire.ask()
    await wire.send(REPLY + b"hello")
    first = await exchange
    exchange = await wire.ask()
    first.close()
    assert await first.read() == b"hello"
    assert await first.read() == b""
    await wire.send(REPLY + b"again")
    assert await everything(await exchange) == (b"again", None)
    assert wire.freed == [wire.connection] * 2


async def test_a_request_on_a_connection_that_is_gone_fails_at_once(wire: Scene) -> None:
    """A new connection may be reset before anything is written on it."""
    wire.peer.reset()
    await wait_until(lambda: wire.lost, "the connection is lost")
    with pytest.raises(EngineFailed) as failed:
        await wire.connection.exchange(POST % 0, b"")
    assert not failed.value.reply_begun


async def test_whether_a_reply_had_begun_is_told(wire: Scene) -> None:
    exchange = await wire.ask()
    await wire.send(b"H")
    wire.peer.reset()
    with pytest.raises(EngineFailed) as failed:
        await exchange
    assert failed.value.reply_begun
