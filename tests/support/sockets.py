"""Small facts about TCP sockets that several instruments share."""

from __future__ import annotations

import ctypes
import socket
import struct
from typing import TYPE_CHECKING, cast

import pytest

if TYPE_CHECKING:
    import asyncio

LOOPBACK = "127.0.0.1"

# asm-generic/socket.h; the socket module has no name for it.
_SO_ATTACH_FILTER = 26
_DROP_ALL = struct.pack("HBBI", 0x06, 0, 0, 0)  # BPF: return 0 bytes of each packet


def listen(
    port: int = 0, *, host: str = LOOPBACK, backlog: int = 2048, send_buffer: int | None = None
) -> socket.socket:
    """Return a listening socket; `send_buffer` bytes bound what the kernel holds per connection."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if send_buffer is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
    sock.bind((host, port))
    sock.listen(backlog)
    sock.setblocking(False)
    return sock


def reset_on_close(sock: socket.socket) -> None:
    """Make the next close of `sock` send RST instead of FIN, throwing away what was not sent."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def deafen(sock: socket.socket) -> None:
    """Let the kernel drop every packet for `sock` unseen: it answers nothing, as a machine that vanished.

    Skips the test where the kernel keeps packet filters for root.
    """
    code = ctypes.create_string_buffer(_DROP_ALL)
    program = struct.pack("HL", 1, ctypes.addressof(code))
    try:
        sock.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)
    except PermissionError:
        pytest.skip("this kernel lets only root drop the packets of a socket unseen")


def abort(transport: asyncio.BaseTransport) -> None:
    """Cut a transport with RST; a transport that is closed already is left alone."""
    if transport.is_closing():
        return
    sock = transport.get_extra_info("socket")
    if sock is not None:
        reset_on_close(cast("socket.socket", sock))
    cast("asyncio.WriteTransport", transport).abort()
