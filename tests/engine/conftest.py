"""The simulated engine in the test's own process, on a real socket, checked for leaks at the end."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import pytest

from services.engine.app import create_app
from services.engine.options import EngineOptions
from services.engine.server import Server, server_for
from tests.support import sockets
from tests.support.client import CHAT, Call, chat_body, fetch
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from services.engine.room import Room


class _QuietServer(Server):
    """A server that leaves the signals to pytest."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@dataclass(frozen=True)
class Engine:
    """A running engine. `room` is its inside, for what cannot be seen through HTTP in time."""

    url: str
    room: Room

    async def start(self, prompt: str = "hello", *, path: str = CHAT, **fields: Any) -> Call:
        """Send a streaming request, for a chat unless the path says otherwise, and wait for nothing."""
        text = {"model": "demo", "prompt": prompt, "stream": True, **fields}
        body = chat_body(prompt=prompt, **fields) if path == CHAT else text
        return await Call.start(self.url, path=path, body=body)

    async def ask(self, path: str, **body: Any) -> dict[str, Any]:
        """Make one call that is not streamed and return the parsed answer."""
        call = await Call.start(self.url, path=path, body={"model": "demo", **body})
        try:
            assert await call.head() == 200
            answer: dict[str, Any] = await call.json()
            return answer
        finally:
            call.close()

    async def state(self) -> dict[str, float]:
        """Return what `GET /debug/state` says."""
        call = await Call.start(self.url, method="GET", path="/debug/state")
        try:
            await call.head()
            state: dict[str, float] = await call.json()
            return state
        finally:
            call.close()

    async def metric(self, name: str) -> float:
        """Return one sample of `GET /metrics`, named with its labels."""
        text = (await fetch(self.url, "/metrics")).body.decode()
        return float(
            next(line.rpartition(" ")[2] for line in text.splitlines() if line.startswith(name + " "))
        )

    async def idle(self, within_s: float = 5) -> None:
        """Return once nothing is open, and check that everything is back in its place."""
        room, cache = self.room, self.room.cache
        await wait_until(lambda: not room.open, "every request of the engine has ended", within_s)
        assert (room.running, room.queued, room.leaked_pages) == (0, 0, 0)
        assert (cache.pages_in_use, cache.pages_promised) == (0, 0)
        assert cache.pages_free + cache.pages_idle == cache.size


class StartEngine(Protocol):
    """Start an engine with the options of `EngineOptions`."""

    async def __call__(self, **options: Any) -> Engine: ...


@pytest.fixture
async def start_engine() -> AsyncIterator[StartEngine]:
    """Start engines for this test; at its end each must be idle and have lost nothing."""
    async with contextlib.AsyncExitStack() as running:

        async def start(**options: Any) -> Engine:
            return await running.enter_async_context(_engine(EngineOptions(**options)))

        yield start


@contextlib.asynccontextmanager
async def _engine(options: EngineOptions) -> AsyncIterator[Engine]:
    app = create_app(options)
    server = server_for(app, _QuietServer)
    listener = sockets.listen()
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    await wait_until(lambda: server.started, "the engine listens")
    engine = Engine(url, app.room)
    try:
        yield engine
        await engine.idle()
    finally:
        server.should_exit = True
        await serving
