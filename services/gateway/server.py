"""Serving one gateway: its socket, its signals, and how it stops.

The first SIGTERM, or an administrator's word from any replica, drains: nothing new is admitted, live streams
finish within `drain_ms`, what is left then ends as `shutdown`. A signal after that does not wait.
"""

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Final

import uvicorn

from services.gateway.app import App, open_app
from services.gateway.protocol import Protocol
from services.gateway.records import Journal, open_journal
from services.permits.clock import monotonic
from services.settings.schema import Settings
from services.settings.stop_signals import stop_signals

# Held by the kernel for one client, before the writer is told to wait.
SEND_BUFFER_BYTES: Final = 64 * 1024
BACKLOG: Final = 4096
# A drain takes at least so long, or `drain_ms` when that is less: whoever balances the load has to see that
# this replica is not ready before it is gone, or sends it a request that nobody reads.
DRAIN_LEAST_S: Final = 1.0
# After the last streams were cut: how long their ends may take.
_CUT_S: Final = 2.0
_KEEP_ALIVE_S: Final = 75
# How often idle connections are looked at.
LOOK_S: Final = 1.0


class Server(uvicorn.Server):
    """Uvicorn without its signal handling, and with a look at idle connections once a second."""

    def __init__(self, config: uvicorn.Config) -> None:
        """Be ready to be served; `stop` ends it."""
        super().__init__(config)
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """Take no more connections, and end when those there are have been closed."""
        self.should_exit = True
        self._stopping.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals alone: draining comes before closing."""
        yield

    async def main_loop(self) -> None:
        """Close connections on which no request comes, until `stop`.

        In place of uvicorn's own, which wakes an idle process ten times a second, and each second writes a
        date that nobody is sent.
        """
        while not self.should_exit:
            self._close_idle()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._stopping.wait()

    def _close_idle(self) -> None:
        now_s = monotonic()
        for connection in tuple(self.server_state.connections):
            if isinstance(connection, Protocol):
                connection.close_if_idle(now_s)


def listen(host: str, port: int, *, stall_ms: int) -> socket.socket:
    """Return a bound socket; raises OSError. Accepted connections inherit its options."""
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            # A peer that vanished without a word is found out while bytes to it are unacknowledged.
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, stall_ms)
        sock.bind(address)
        sock.listen(BACKLOG)
        sock.setblocking(False)  # noqa: FBT003  (the socket's own signature)
    except BaseException:
        sock.close()
        raise
    return sock


async def serve(settings: Settings, *, name: str, sock: socket.socket, log_fd: int = 1) -> None:
    """Serve on `sock`, which is taken over, until a signal, then drain and return. Raises PermitError."""
    asked_to_stop: asyncio.Queue[int] = asyncio.Queue()

    def told_to_drain() -> None:
        asked_to_stop.put_nowait(signal.SIGTERM)

    with stop_signals(asked_to_stop.put_nowait):
        async with open_journal(log_fd) as journal:
            journal.take_over()
            made = running(settings, name=name, sock=sock, journal=journal, on_drain=told_to_drain)
            async with made as app:
                host, port = sock.getsockname()[:2]
                journal.log.info("listening", host=host, port=port, holder=app.gate.holder)
                await asked_to_stop.get()
                drain_s = max(fleet.budgets.drain_ms for fleet in settings.fleets.values()) / 1000
                journal.log.info("draining", live=app.gate.live(), drain_s=drain_s)
                await _drain(app, drain_s, asked_to_stop)
            journal.log.info("stopped")


@contextlib.asynccontextmanager
async def running(
    settings: Settings,
    *,
    name: str,
    sock: socket.socket,
    journal: Journal,
    on_drain: Callable[[], None] | None = None,
) -> AsyncIterator[App]:
    """Serve on `sock`, which is taken over, while the block runs; raises what `open_app` raises.

    Requests that still run when the block is left are given _CUT_S to end.
    """
    async with open_app(settings, name=name, journal=journal, on_drain=on_drain) as app:
        server = Server(_config(app))
        serving = asyncio.create_task(server.serve(sockets=[sock]))
        try:
            yield app
        finally:
            app.trips.cut_all()
            server.stop()
            await serving


async def _drain(app: App, drain_s: float, asked_again: asyncio.Queue[int]) -> None:
    """Let live streams finish within `drain_s`, or until asked again; then cut the rest."""
    app.trips.drain()
    finished = asyncio.create_task(_all_gone(app, least_s=min(DRAIN_LEAST_S, drain_s)))
    hurry = asyncio.create_task(asked_again.get())
    await asyncio.wait((finished, hurry), timeout=drain_s, return_when=asyncio.FIRST_COMPLETED)
    app.trips.cut_all()
    await asyncio.wait((finished,), timeout=_CUT_S)
    for task in (finished, hurry):
        task.cancel()


async def _all_gone(app: App, *, least_s: float) -> None:
    await asyncio.gather(app.trips.wait_empty(), asyncio.sleep(least_s))
    # Some came meanwhile, to be told to go elsewhere.
    await app.trips.wait_empty()


def _config(app: App) -> uvicorn.Config:
    # The data plane settles and logs every end itself; uvicorn's own complaints would be noise, some of it
    # with a caller's bytes in it.
    logging.getLogger("uvicorn").setLevel(logging.CRITICAL + 1)
    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL + 1)
    return uvicorn.Config(
        app.asgi,
        http=Protocol,
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        date_header=False,  # an engine's own Date passes; our answers carry theirs
        backlog=BACKLOG,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=int(_CUT_S),
    )
