"""One connection of the gateway's client to a raw engine, and what became of it."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from services.gateway.engine_wire import READ_BYTES, Connection, EngineFailed, Reply
from tests.support import sockets
from tests.support.raw_engine import raw_engine
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.support.http_peer import Peer

REPLY = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
GET = b"GET /v1/x HTTP/1.1\r\nhost: e\r\n\r\n"


class Counting(Connection):
    """A connection that counts what it has read, so that a test knows what was read in one piece."""

    taken = 0

    def buffer_updated(self, nbytes: int) -> None:
        """Count, and go on."""
        self.taken += nbytes
        super().buffer_updated(nbytes)


@dataclass
class Scene:
    """The client's end of a connection, the engine's, and how often the client gave it back and lost it."""

    connection: Counting
    peer: Peer
    freed: list[Connection]
    lost: list[Connection]

    async def ask(self, *, has_body: bool = True) -> asyncio.Task[Reply]:
        """Begin an exchange and return it once the engine has its request."""
        exchange = asyncio.create_task(self.connection.exchange(GET, b"", has_body=has_body))
        await self.peer.read_head()
        return exchange

    async def send(self, data: bytes) -> None:
        """Send bytes of the engine's and return when the client has read them, apart from any others."""
        due = self.connection.taken + len(data)
        await self.peer.send(data)
        async with asyncio.timeout(5):
            while self.connection.taken < due:  # noqa: ASYNC110  (thousands of times, so in no time)
                await asyncio.sleep(0)

    async def is_free(self) -> None:
        """Check that the connection was given back once, and that it serves another request."""
        assert self.freed == [self.connection]
        await serve(self.connection, self.peer)
        assert len(self.freed) == 2

    async def is_cut(self) -> None:
        """Wait until both ends know that the connection is no more; check that it was not given back."""
        async with asyncio.timeout(5):
            await self.peer.wait_gone()
        await wait_until(lambda: self.lost == [self.connection], "the connection is lost")
        assert self.freed == []


@asynccontextmanager
async def scene() -> AsyncIterator[Scene]:
    """Connect to a raw engine; both ends are cut when the block ends."""
    freed: list[Connection] = []
    lost: list[Connection] = []

    def made() -> Counting:
        buffer = memoryview(bytearray(READ_BYTES))
        return Counting(buffer, on_free=freed.append, on_lost=lost.append)

    async with raw_engine() as engine:
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(made, sockets.LOOPBACK, engine.port)
        try:
            yield Scene(connection, await engine.accept(), freed, lost)
        finally:
            connection.abort()
            await wait_until(lambda: lost, "the connection is closed")


async def serve(connection: Connection, peer: Peer) -> None:
    """Let a connection serve one request, after which it is free."""
    exchange = asyncio.create_task(connection.exchange(GET, b""))
    await peer.read_head()
    await peer.send(REPLY)
    assert await everything(await exchange) == (b"ok", None)


async def everything(reply: Reply) -> tuple[bytes, EngineFailed | None]:
    """Read to the end; return the bytes and, when the end was no clean one, why."""
    data = b""
    try:
        while piece := await reply.read():
            data += piece
    except EngineFailed as failed:
        return data, failed
    assert reply.is_read
    return data, None
