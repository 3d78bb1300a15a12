"""The engine as a process: one socket, one event loop, gone at the first SIGTERM."""

from __future__ import annotations

import contextlib
import logging
import socket
import sys
from typing import TYPE_CHECKING

import uvicorn

from services.engine.app import EngineApp, create_app
from services.engine.options import EngineError, EngineOptions
from services.settings.stop_signals import stop_signals

if TYPE_CHECKING:
    from collections.abc import Generator

BACKLOG = 4096
# Longer than gateways keep idle connections, so that they and not the engine end them.
KEEP_ALIVE_S = 300
# A client that does not read must not hold up the stop.
STOP_S = 1


class PortTakenError(EngineError):
    """Another process listens there."""


class Server(uvicorn.Server):
    """A server that stops at SIGTERM or SIGINT without waiting for its streams: it only simulates work."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Take the signals ourselves; unlike with uvicorn's own way, the exit status stays 0."""
        with stop_signals(lambda _: self.stop()):
            yield

    def stop(self) -> None:
        """End every request now, each through its guard, and the server after them."""
        self.should_exit = True
        # uvicorn would report each cut request as a failure of the application.
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
        for task in self.server_state.tasks:
            task.cancel("the engine stops")


def server_for(app: EngineApp, kind: type[Server] = Server) -> Server:
    """Wrap an engine in a server that was not started; it takes its socket in `serve(sockets=[...])`."""
    return kind(
        uvicorn.Config(
            app,
            http="httptools",
            loop="uvloop",
            ws="none",
            lifespan="off",
            log_level="warning",
            access_log=False,
            server_header=False,
            backlog=BACKLOG,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=STOP_S,
        )
    )


def listen(host: str, port: int) -> socket.socket:
    """Open the engine's socket; port 0 takes a free one. Raises EngineError with one line."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise PortTakenError(f"--port: cannot listen on {host}:{port}: {error.strerror or error}") from error
    listener.setblocking(False)  # noqa: FBT003 - the standard library's own signature
    return listener


def serve(options: EngineOptions) -> None:
    """Run the engine until SIGTERM or SIGINT, then return. Raises EngineError when it cannot start."""
    listener = listen(options.host, options.port)
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    sys.stdout.write(f"engine {options.model}: {options.slots} slots on http://{shown}:{port}/v1\n")
    sys.stdout.flush()
    server_for(create_app(options)).run(sockets=[listener])
