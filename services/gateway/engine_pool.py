"""The connections to one engine: opened within the connect budget, kept for a moment when a reply is over."""

import asyncio
import socket
import ssl
from typing import Final
from urllib.parse import urlsplit

from aiohappyeyeballs import AddrInfoType, start_connection

from services.gateway.engine_wire import READ_BYTES, Connection
from services.permits.clock import monotonic

# Engines behind uvicorn close an idle connection after 5 s; one that closes just as we write looks like a
# crash, so ours go first.
KEEP_ALIVE_S: Final = 3.0
IDLE_MAX: Final = 256
RECEIVE_BUFFER_BYTES: Final = 32 * 1024
# How long a name's addresses are believed.
_ADDRESSES_S: Final = 10.0
# An address that has not answered after this is tried side by side with the next one (RFC 8305).
_NEXT_ADDRESS_S: Final = 0.25
_PORTS: Final = {"http": 80, "https": 443}


class EnginePool:
    """The connections to one engine, of one event loop. How many there are is the permits' business."""

    def __init__(self, url: str) -> None:
        """Connect to nothing yet. `url` is the engine's base address, checked by the settings.

        `authority` is what a Host header says, `path` what every request's path begins with.
        """
        parts = urlsplit(url)
        self._host = (parts.hostname or "").rstrip(".")
        self._port = parts.port or _PORTS[parts.scheme]
        self._tls = _tls_context() if parts.scheme == "https" else None
        shown = f"[{self._host}]" if ":" in self._host else self._host
        self.authority = shown if self._port == _PORTS[parts.scheme] else f"{shown}:{self._port}"
        self.path = parts.path
        self._buffer = memoryview(bytearray(READ_BYTES))
        self._addresses: list[AddrInfoType] = []
        self._addresses_until_s = 0.0
        self._resolving = asyncio.Lock()
        self._open: set[Connection] = set()
        # The one used last comes last.
        self._idle: dict[Connection, None] = {}
        self._sweeper: asyncio.TimerHandle | None = None

    def take_idle(self) -> Connection | None:
        """Return the connection that was used last and is still open, or None."""
        while self._idle:
            connection, _ = self._idle.popitem()
            if connection.is_fit:
                return connection
            connection.abort()
        return None

    async def connect(self, within_s: float) -> Connection:
        """Return a new connection; raises OSError.

        Looking up the name, TCP and TLS may take `within_s` together. Cancelling leaves nothing open.
        """
        async with asyncio.timeout(within_s):
            sock = await self._connected_socket()
            try:
                _, connection = await asyncio.get_running_loop().create_connection(
                    self._new_connection,
                    sock=sock,
                    ssl=self._tls,
                    server_hostname=self._host if self._tls else None,
                )
            except BaseException:
                sock.close()
                raise
        self._open.add(connection)
        return connection

    def close(self) -> None:
        """Cut all connections."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        for connection in tuple(self._open):
            connection.abort()

    def _new_connection(self) -> Connection:
        return Connection(self._buffer, on_free=self._keep, on_lost=self._forget)

    async def _connected_socket(self) -> socket.socket:
        addresses = await self._resolved()
        try:
            return await start_connection(
                addresses, happy_eyeballs_delay=_NEXT_ADDRESS_S, socket_factory=_small_socket
            )
        except OSError:
            self._addresses_until_s = 0.0
            raise

    async def _resolved(self) -> list[AddrInfoType]:
        """Return the engine's addresses, another one first each time. One caller at a time looks them up."""
        loop = asyncio.get_running_loop()
        async with self._resolving:
            if self._addresses_until_s <= loop.time():
                found = await loop.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
                self._addresses = list(found)
                self._addresses_until_s = loop.time() + _ADDRESSES_S
        self._addresses = self._addresses[1:] + self._addresses[:1]
        return self._addresses

    def _keep(self, connection: Connection) -> None:
        """Keep a connection that is fit for another request, in place of the oldest when there are many."""
        connection.idle_since_s = monotonic()
        self._idle[connection] = None
        if len(self._idle) > IDLE_MAX:
            oldest = next(iter(self._idle))
            del self._idle[oldest]
            oldest.abort()
        if self._sweeper is None:
            self._sweeper = asyncio.get_running_loop().call_later(KEEP_ALIVE_S, self._sweep)

    def _sweep(self) -> None:
        """Close what has been idle for too long, and come back when the next one will have been."""
        self._sweeper = None
        for connection in tuple(self._idle):
            left_s = connection.idle_since_s + KEEP_ALIVE_S - monotonic()
            if left_s > 0:
                self._sweeper = asyncio.get_running_loop().call_later(left_s, self._sweep)
                return
            del self._idle[connection]
            connection.abort()

    def _forget(self, connection: Connection) -> None:
        self._open.discard(connection)
        self._idle.pop(connection, None)


def _small_socket(address: AddrInfoType) -> socket.socket:
    """Make a socket whose kernel buffer is small, so that a client that stops reading stops the engine."""
    family, kind, protocol = address[:3]
    sock = socket.socket(family, kind, protocol)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def _tls_context() -> ssl.SSLContext:
    """Return the rules for https: certificates are verified; SSL_CERT_FILE may name other authorities."""
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context
