"""A request that ends early is off the engine before its permit is on the way back."""

from __future__ import annotations

import asyncio
import socket
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import pytest
import uvloop

from services.gateway.engines import EngineRequest, Engines, open_engines
from services.gateway.fleets import Fleets
from services.permits.model import Demand, Granted, Stamp
from services.permits.permit import Permit
from services.settings.load import load
from tests.support import sockets
from tests.support.config_file import FLEET, MODEL, write_config

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


class Peer:
    """Keeps one permit; when that goes back, looks whether the engine has lost the connection already."""

    def __init__(self) -> None:
        self.sock: socket.socket | None = None
        self.was_closed: bool | None = None

    def freed(self, permit: Permit) -> None:
        del permit
        assert self.sock is not None
        try:
            self.was_closed = self.sock.recv(1) == b""
        except BlockingIOError:
            self.was_closed = False
        except ConnectionResetError:
            self.was_closed = True

    def downgraded(self, permit: Permit) -> None:
        raise AssertionError(permit)


async def stay(_permit: Permit, _engines: Sequence[str]) -> bool:
    return False


@pytest.mark.parametrize("answered", [True, False], ids=["mid_stream", "before_the_head"])
def test_the_engine_has_lost_the_request_when_its_permit_goes_back(tmp_path: Path, answered: bool) -> None:
    """The place may be granted again within the millisecond: the engine must not see two on it."""

    async def cut() -> bool | None:
        loop, peer = asyncio.get_running_loop(), Peer()
        with sockets.listen() as listener:
            url = f"http://127.0.0.1:{listener.getsockname()[1]}"
            settings = load(write_config(tmp_path, "redis://127.0.0.1:1/0", [{"url": url, "name": "e1"}]), {})
            fleet = Fleets(settings.fleets).serving(MODEL)
            permit = Permit("g1~n~1", Demand(fleet=FLEET, tenant="t", request_id="r", engines=("e1",)), peer)
            permit.granted(Granted("cold", "e1", Stamp("e", 1)), deadline_s=float("inf"))
            request = EngineRequest("POST", "/v1/chat/completions", headers=[], body=b"{}")

            streams = asyncio.Event()

            async def trip(engines: Engines) -> None:
                async with AsyncExitStack() as held:
                    held.callback(permit.close)
                    await held.enter_async_context(engines.open(request, fleet, permit))
                    streams.set()
                    await asyncio.Event().wait()

            async with open_engines(stay) as engines:
                task = asyncio.create_task(trip(engines))
                peer.sock, _ = await loop.sock_accept(listener)
                with peer.sock:
                    assert (await loop.sock_recv(peer.sock, 65536)).endswith(b"{}")
                    if answered:
                        await loop.sock_sendall(peer.sock, HEAD)
                        await streams.wait()
                    task.cancel()
                    await asyncio.wait([task])
        return peer.was_closed

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(cut())
