"""Ends a connection at once, and with it what it has not sent."""

import asyncio
import socket
import struct
from typing import Final

# On, and after no time at all.
_AT_ONCE: Final = struct.pack("ii", 1, 0)


def reset(transport: asyncio.WriteTransport) -> None:
    """Cut a connection by RST. What the other end has not got yet it will not get. Safe to repeat.

    Closed or merely aborted, the kernel would go on sending what it holds, for minutes, to whoever is there
    again; and a FIN behind it can look like an end that was meant.
    """
    sock: socket.socket | None = transport.get_extra_info("socket")
    if sock is not None and not transport.is_closing():
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
    transport.abort()
