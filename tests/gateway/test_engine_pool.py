"""Connections to an engine: how they are opened, which one is used again, and when they go."""

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from services.gateway import engine_pool
from services.gateway.engine_pool import EnginePool
from services.gateway.engine_wire import Connection
from tests.gateway.wire_scene import GET, REPLY, everything, serve
from tests.support import sockets
from tests.support.http_peer import Peer
from tests.support.raw_engine import RawEngine, raw_engine


@pytest.fixture
async def engine() -> AsyncIterator[RawEngine]:
    async with raw_engine() as listening:
        yield listening


@pytest.fixture
async def pool(engine: RawEngine) -> AsyncIterator[EnginePool]:
    opened = EnginePool(engine.url)
    yield opened
    opened.close()


def open_descriptors() -> int:
    return len(list(Path("/dev/fd").iterdir()))


@contextmanager
def no_descriptor_is_left() -> Iterator[None]:
    """Check that as many files and sockets are open at the end of the block as were before."""
    before = open_descriptors()
    yield
    assert open_descriptors() == before


async def idle(pool: EnginePool, engine: RawEngine, count: int) -> list[tuple[Connection, Peer]]:
    """Make `count` connections idle, one after the other."""
    made = [(await pool.connect(5), await engine.accept()) for _ in range(count)]
    for connection, peer in made:
        await serve(connection, peer)
    return made


async def is_gone(peer: Peer) -> None:
    async with asyncio.timeout(5):
        await peer.wait_gone()


async def test_an_idle_connection_serves_the_next_request(pool: EnginePool, engine: RawEngine) -> None:
    ((connection, peer),) = await idle(pool, engine, 1)
    for _ in range(3):
        assert pool.take_idle() is connection
        assert pool.take_idle() is None
        await serve(connection, peer)
    assert len(engine.peers) == 1


async def test_the_connection_that_was_used_last_is_taken_first(pool: EnginePool, engine: RawEngine) -> None:
    """The others may then grow old and go."""
    made = await idle(pool, engine, 3)
    assert [pool.take_idle() for _ in range(3)] == [connection for connection, _ in reversed(made)]


@pytest.mark.parametrize("how", ["close", "reset"])
async def test_a_connection_that_the_engine_has_closed_is_passed_over(how: str) -> None:
    """Also when the event loop has not come to see it: a request written on it would be lost."""
    with socket.create_server((sockets.LOOPBACK, 0)) as server:
        pool = EnginePool(f"http://{sockets.LOOPBACK}:{server.getsockname()[1]}")
        connection = await pool.connect(5)
        theirs, _ = server.accept()
        exchange = asyncio.create_task(connection.exchange(GET, b""))
        await asyncio.sleep(0)
        theirs.sendall(REPLY)
        await everything(await exchange)
        if how == "reset":
            sockets.reset_on_close(theirs)
        theirs.close()
        assert pool.take_idle() is None
        pool.close()


async def test_a_connection_on_which_something_waits_unread_is_passed_over() -> None:
    with socket.create_server((sockets.LOOPBACK, 0)) as server:
        pool = EnginePool(f"http://{sockets.LOOPBACK}:{server.getsockname()[1]}")
        connection = await pool.connect(5)
        theirs, _ = server.accept()
        exchange = asyncio.create_task(connection.exchange(GET, b""))
        await asyncio.sleep(0)
        theirs.sendall(REPLY)
        await everything(await exchange)
        theirs.sendall(REPLY)
        assert pool.take_idle() is None
        pool.close()
        theirs.close()


async def test_idle_connections_grow_old_one_by_one(
    pool: EnginePool, engine: RawEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_pool, "KEEP_ALIVE_S", 0.2)
    made = await idle(pool, engine, 2)
    old, young = made
    # What is used in the meantime begins anew.
    assert pool.take_idle() is young[0]
    await is_gone(old[1])
    await serve(*young)
    assert not young[1].gone.is_set()
    await is_gone(young[1])
    assert pool.take_idle() is None


async def test_only_so_many_are_kept_and_the_oldest_goes(
    pool: EnginePool, engine: RawEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_pool, "IDLE_MAX", 2)
    made = await idle(pool, engine, 3)
    await is_gone(made[0][1])
    assert [pool.take_idle() for _ in range(3)] == [made[2][0], made[1][0], None]


async def test_closing_cuts_everything_idle_or_not(engine: RawEngine) -> None:
    with no_descriptor_is_left():
        pool = EnginePool(engine.url)
        ((_, idle_peer),) = await idle(pool, engine, 1)
        busy = await pool.connect(5)
        exchange = asyncio.create_task(busy.exchange(GET, b""))
        busy_peer = await engine.accept()
        await busy_peer.read_head()
        pool.close()
        for peer in (idle_peer, busy_peer):
            await is_gone(peer)
            peer.close()
        exchange.cancel()
        await asyncio.wait([exchange])
        await asyncio.sleep(0.01)  # the event loop closes sockets in its next turn


async def test_a_connection_is_small_quick_and_watched(pool: EnginePool, engine: RawEngine) -> None:
    connection = await pool.connect(5)
    await engine.accept()
    sock = connection._transport.get_extra_info("socket")  # noqa: SLF001
    assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1
    assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
    # Linux counts its own bookkeeping in.
    assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) <= 2 * engine_pool.RECEIVE_BUFFER_BYTES


@pytest.mark.parametrize(
    ("url", "authority", "path"),
    [
        ("http://e1", "e1", ""),
        ("http://E1:80", "e1", ""),
        ("https://e1:443/base", "e1", "/base"),
        ("http://e1:443", "e1:443", ""),
        ("https://e1.example.:8443", "e1.example:8443", ""),
        ("http://[::1]:8080/a/b", "[::1]:8080", "/a/b"),
        ("http://[::1]", "[::1]", ""),
    ],
)
async def test_an_address_is_taken_apart(url: str, authority: str, path: str) -> None:
    pool = EnginePool(url)
    assert (pool.authority, pool.path) == (authority, path)


async def test_a_name_with_several_addresses_leads_to_the_one_that_answers(engine: RawEngine) -> None:
    """The name localhost stands for ::1 as well, where nobody listens."""
    pool = EnginePool(f"http://localhost:{engine.port}")
    await serve(await pool.connect(5), await engine.accept())
    pool.close()


async def test_an_engine_may_have_an_ipv6_address() -> None:
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as server:
        pool = EnginePool(f"http://[::1]:{server.getsockname()[1]}")
        await pool.connect(5)
        server.accept()[0].close()
        pool.close()


@pytest.mark.parametrize("url", ["http://127.0.0.1:{}", "http://no-such-name.invalid:{}"])
async def test_an_engine_that_is_not_there_is_an_os_error(url: str, engine: RawEngine) -> None:
    with no_descriptor_is_left():
        sock = sockets.listen()
        port = sock.getsockname()[1]
        sock.close()
        with pytest.raises(OSError, match=r".+"):
            await EnginePool(url.format(port)).connect(5)
