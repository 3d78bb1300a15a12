"""An engine without a mind of its own: each connection it accepts is handed to the test as a Peer."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from tests.support import sockets
from tests.support.http_peer import Peer

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator

# Small, so that a client that stops reading is felt after kilobytes.
SEND_BUFFER_BYTES = 65536


class RawEngine:
    """Listens in the test's own event loop. `peers` are all connections accepted so far, in order."""

    def __init__(self, port: int, scheme: str) -> None:
        """Made by `raw_engine`."""
        self.port = port
        self.url = f"{scheme}://{sockets.LOOPBACK}:{port}"
        self.peers: list[Peer] = []
        self._accepted: asyncio.Queue[Peer] = asyncio.Queue()

    async def accept(self) -> Peer:
        """Return the next connection that nobody has asked for yet."""
        async with asyncio.timeout(5):
            return await self._accepted.get()

    def new_peer(self) -> Peer:
        """Make a Peer that does nothing until the test does it."""
        return Peer(self._hand_over, len(self.peers) + 1)

    async def _hand_over(self, peer: Peer) -> None:
        self.peers.append(peer)
        self._accepted.put_nowait(peer)


@asynccontextmanager
async def raw_engine(*, tls: ssl.SSLContext | None = None, port: int = 0) -> AsyncIterator[RawEngine]:
    """Listen on loopback while the block runs; all connections are cut at its end."""
    sock = sockets.listen(port, send_buffer=SEND_BUFFER_BYTES)
    engine = RawEngine(sock.getsockname()[1], "https" if tls else "http")
    server = await asyncio.get_running_loop().create_server(engine.new_peer, sock=sock, ssl=tls)
    try:
        yield engine
    finally:
        server.close()
        for peer in engine.peers:
            peer.reset()
        # The sockets are closed in the event loop's next turn.
        await asyncio.sleep(0)
