"""A gateway in the test's own event loop, on real sockets, with a real Redis and the scripted engine."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
import uvloop

from services.gateway.records import open_journal
from services.gateway.server import listen, running
from services.settings.load import load
from tests.support.client import Call, chat_body
from tests.support.config_file import key_of, write_config
from tests.support.rig import begin_without_learning
from tests.support.scripted_engine import ScriptedEngine
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from services.gateway.app import App

OpenGateway = Callable[..., Any]


@dataclass
class Gateway:
    """One gateway under test. `records` are the log lines of its requests."""

    url: str
    app: App
    log: Path

    def records(self) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in self.log.read_text().splitlines()]
        return [line for line in lines if line["event"] == "request"]

    async def record(self, count: int = 1) -> dict[str, Any]:
        """Wait until `count` requests are in the log, and return the last one's line."""
        await wait_until(lambda: len(self.records()) >= count, f"{count} requests in the log")
        assert len(self.records()) == count
        return self.records()[-1]

    async def call(self, *, tenant: str = "acme", body: Any = None, **request: Any) -> Call:
        """Send one chat request, by default for a stream; the caller ends it."""
        content = chat_body() if body is None else body
        return await Call.start(self.url, key=key_of(tenant), body=content, **request)

    async def is_idle(self) -> None:
        """Wait until no permit is held here and none is left in Redis."""
        await wait_until(lambda: self.app.gate.live() == 0, "no permit is held")

        async def empty() -> bool:
            return (await self.app.gate.count("demo")).total == 0

        await wait_until(empty, "no place is taken in Redis")


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Use the loop that the gateway runs on in production: its transports have ways of their own."""
    del config, item
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture
def engine() -> Iterator[ScriptedEngine]:
    with ScriptedEngine() as scripted:
        yield scripted


@asynccontextmanager
async def a_gateway(
    folder: Path, redis_url: str, engines: list[Any], name: str, **config: Any
) -> AsyncIterator[Gateway]:
    """Serve with a config of `config_file.write_config`'s making."""
    path = write_config(folder, redis_url, engines, name=f"{name}.toml", **config)
    await begin_without_learning(path)
    log = folder / f"{name}.log"
    log_fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        settings = load(path, {})
        sock = listen("127.0.0.1", 0, stall_ms=settings.budgets.stall_ms)
        url = f"http://127.0.0.1:{sock.getsockname()[1]}"
        async with (
            open_journal(log_fd) as journal,
            running(settings, name=name, sock=sock, journal=journal) as app,
        ):
            await wait_until(lambda: app.gate.ready()[0], "the gateway is ready")
            yield Gateway(url, app, log)
    finally:
        os.close(log_fd)


@pytest.fixture
async def open_gateway(redis_url: str, engine: ScriptedEngine, tmp_path: Path) -> AsyncIterator[OpenGateway]:
    """Start gateways with laid-over config sections; all of them end with the test."""
    async with AsyncExitStack() as opened:
        count = 0

        async def start(*, engines: list[Any] | None = None, **config: Any) -> Gateway:
            nonlocal count
            count += 1
            made = a_gateway(tmp_path, redis_url, engines or [engine.url], f"g{count}", **config)
            return await opened.enter_async_context(made)

        yield start


@pytest.fixture
async def gateway(open_gateway: OpenGateway) -> Gateway:
    """One gateway with the defaults of tests."""
    started: Gateway = await open_gateway()
    return started
