"""Ports: refuse early and by name, before any process is started."""

import errno
import socket
from collections.abc import Sequence
from dataclasses import dataclass

from services.cli.failure import Failure

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Listener:
    """Somebody who will listen on `port` of loopback; `option` is how to choose another one."""

    name: str
    port: int
    option: str

    @property
    def url(self) -> str:
        """Where it will answer."""
        return f"http://{LOOPBACK}:{self.port}"


def check_free(listeners: Sequence[Listener]) -> None:
    """Raise Failure for the first port that is taken, out of range, or wanted by two of them."""
    wanted: dict[int, Listener] = {}
    for listener in listeners:
        if other := wanted.get(listener.port):
            raise Failure(
                f"port {listener.port} is wanted by {other.name} and by {listener.name}:"
                f" choose another with {listener.option}"
            )
        wanted[listener.port] = listener
    for listener in listeners:
        _check_free(listener)


def _check_free(listener: Listener) -> None:
    with socket.socket() as probe:
        # As the servers do: a connection of an earlier run that is still closing does not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, listener.port))
        except OverflowError:
            raise Failure(
                f"port {listener.port} of {listener.name} is out of range: {listener.option}"
            ) from None
        except OSError as error:
            taken = error.errno == errno.EADDRINUSE
            state = "is in use" if taken else f"cannot be used ({error.strerror})"
            cure = f"free it, or choose another with {listener.option}"
            raise Failure(f"port {listener.port} ({listener.name}) {state}: {cure}") from None


def free_port() -> int:
    """Return a port that was free a moment ago, for a server whose address nobody has to know."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        port: int = probe.getsockname()[1]
        return port
