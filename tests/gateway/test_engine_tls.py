"""Engines behind TLS, and what is left of a connection that was given up while it was made."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trustme

from services.gateway.engine_pool import EnginePool
from services.gateway.engine_wire import HELD_BYTES, READ_BYTES, Connection
from tests.gateway.wire_scene import GET, everything, serve
from tests.support import sockets
from tests.support.http_peer import Peer
from tests.support.raw_engine import raw_engine
from tests.support.waiting import wait_until

LARGE = bytes(range(256)) * (4 << 12)  # 4 MiB
OK = b"HTTP/1.1 200 OK\r\n"


@pytest.fixture
def authority(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> trustme.CA:
    """An authority of certificates that this process trusts, as SSL_CERT_FILE says."""
    made = trustme.CA()
    made.cert_pem.write_to_path(tmp_path / "authority.pem")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "authority.pem"))
    return made


def certified(authority: trustme.CA, *names: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_alpn_protocols(["h2", "http/1.1"])
    authority.issue_cert(*names).configure_cert(context)
    return context


@asynccontextmanager
async def connected(
    context: ssl.SSLContext, host: str = "localhost"
) -> AsyncIterator[tuple[EnginePool, Connection, Peer]]:
    """Connect to an engine behind TLS."""
    async with raw_engine(tls=context) as engine:
        pool = EnginePool(f"https://{host}:{engine.port}")
        connection = await pool.connect(5)
        peer = await engine.accept()
        # A limit of nothing, which peers have, is never reached again behind TLS.
        peer.transport.set_write_buffer_limits(high=65536)
        yield pool, connection, peer
        pool.close()


@pytest.mark.parametrize("host", ["localhost", sockets.LOOPBACK])
async def test_an_engine_is_asked_by_its_name(authority: trustme.CA, host: str) -> None:
    names: list[str | None] = []
    context = certified(authority, host)
    context.sni_callback = lambda _socket, name, _context: names.append(name)
    async with connected(context, host) as (pool, connection, peer):
        for _ in range(2):
            await serve(connection, peer)
            assert pool.take_idle() is connection
        assert peer.transport.get_extra_info("ssl_object").selected_alpn_protocol() == "http/1.1"
    # An address is no name, and is not sent as one (RFC 6066, 3).
    assert names == (["localhost"] if host == "localhost" else [None])


@pytest.mark.parametrize("trouble", ["another name", "another authority"])
async def test_a_certificate_that_proves_nothing_is_refused(authority: trustme.CA, trouble: str) -> None:
    """The engine's key would go to whoever answers."""
    issuer = authority if trouble == "another name" else trustme.CA()
    name = "elsewhere.example" if trouble == "another name" else "localhost"
    async with raw_engine(tls=certified(issuer, name)) as engine:
        pool = EnginePool(f"https://localhost:{engine.port}")
        try:
            with pytest.raises(ssl.SSLCertVerificationError):
                await pool.connect(5)
        finally:
            pool.close()
        assert engine.peers == []


async def test_a_large_exchange_is_whole_and_little_of_it_is_held(authority: trustme.CA) -> None:
    async with connected(certified(authority, "localhost")) as (pool, connection, peer):
        head = b"POST /v1/x HTTP/1.1\r\nhost: e\r\ncontent-length: %d\r\n\r\n" % len(LARGE)
        exchange = asyncio.create_task(connection.exchange(head, LARGE))
        received = await peer.read_head()
        assert received is not None
        assert await peer.read_body(received) == LARGE
        sending = asyncio.create_task(peer.send(OK + b"content-length: %d\r\n\r\n" % len(LARGE) + LARGE))
        reply = await exchange
        await wait_until(lambda: reply._held >= HELD_BYTES, "the reader is behind")  # noqa: SLF001
        first = await reply.read()
        assert len(first) < HELD_BYTES + READ_BYTES
        rest, failed = await everything(reply)
        assert failed is None
        assert first + rest == LARGE
        await sending
        assert pool.take_idle() is connection


@pytest.mark.parametrize("politely", [True, False])
async def test_only_a_farewell_ends_a_body_without_a_length(authority: trustme.CA, politely: bool) -> None:
    """A bare end of the connection is what somebody in between can make, too."""
    async with connected(certified(authority, "localhost")) as (_, connection, peer):
        exchange = asyncio.create_task(connection.exchange(GET, b""))
        await peer.read_head()
        await peer.send(OK + b"\r\nhello")
        reply = await exchange
        data = await reply.read()
        if politely:
            peer.close()
        else:
            peer.reset()
        rest, failed = await everything(reply)
        assert data + rest == b"hello"
        assert (failed is None) == politely


async def test_a_handshake_that_takes_too_long_is_an_os_error() -> None:
    """The budget covers TLS: this engine accepts and says nothing."""
    async with raw_engine() as engine:
        with pytest.raises(TimeoutError):
            await EnginePool(f"https://{sockets.LOOPBACK}:{engine.port}").connect(0.05)
        async with asyncio.timeout(5):
            await (await engine.accept()).wait_gone()


@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize("host", [sockets.LOOPBACK, "localhost"])
async def test_cancelling_at_any_moment_leaves_nothing_open(
    authority: trustme.CA, scheme: str, host: str
) -> None:
    def open_descriptors() -> int:
        return len(list(Path("/dev/fd").iterdir()))

    tls = certified(authority, host) if scheme == "https" else None
    async with raw_engine(tls=tls) as engine:
        pool = EnginePool(f"{scheme}://{host}:{engine.port}")
        # The first one may open what stays open: resolver, random numbers.
        connection = await pool.connect(5)
        await serve(connection, await engine.accept())
        connection.abort()
        engine.peers.pop().close()
        await asyncio.sleep(0.01)  # the event loop closes sockets in its next turn
        before = open_descriptors()
        ends: list[bool] = []
        while not ends or ends[-1]:
            # One turn of the loop later each time, until the connection is made.
            connecting = asyncio.create_task(pool.connect(5))
            for _ in range(len(ends)):
                await asyncio.sleep(0)
            ends.append(connecting.cancel())
            await asyncio.wait([connecting])
        assert len(ends) > 3
        pool.close()

        def as_before() -> bool:
            for peer in engine.peers:
                peer.close()
            return open_descriptors() == before

        await wait_until(as_before, "all sockets are closed")
        assert asyncio.all_tasks() - {peer.task for peer in engine.peers} == {asyncio.current_task()}
