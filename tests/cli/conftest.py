"""The command as a user runs it: a process in a folder of its own."""

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Iterator, Mapping
from pathlib import Path
from typing import Protocol

import pytest

from services.permits.connect import connect
from services.permits.store import Store
from services.settings.load import load
from services.settings.seed import lease_times, seed_keys
from tests.support.answers import Stream
from tests.support.client import Call, chat_body
from tests.support.config_file import key_of, write_config
from tests.support.processes import ROOT
from tests.support.rig import Rig, begin_without_learning, rig
from tests.support.scripted_engine import ScriptedEngine

Done = subprocess.CompletedProcess[str]
MAIN = ("-m", "services.cli")


class Tenure(Protocol):
    """Runs `tenure WORDS...` to its end."""

    def __call__(
        self, *words: str, environ: Mapping[str, str] | None = None, main: tuple[str, ...] = MAIN
    ) -> Awaitable[Done]: ...


@pytest.fixture
def tenure(tmp_path: Path) -> Tenure:
    """Run the command in the test's folder; `environ` is laid over a clean environment."""

    async def run(
        *words: str, environ: Mapping[str, str] | None = None, main: tuple[str, ...] = MAIN
    ) -> Done:
        return await asyncio.to_thread(
            subprocess.run,
            [sys.executable, *main, *words],
            cwd=tmp_path,
            env={**clean_environment(), **(environ or {})},
            capture_output=True,
            text=True,
            check=False,
            timeout=50,
        )

    return run


def clean_environment() -> dict[str, str]:
    """Return our environment without settings of the product."""
    here = dict(os.environ)  # noqa: TID251
    return {
        **{name: value for name, value in here.items() if not name.startswith("TENURE_")},
        "PYTHONPATH": str(ROOT),
    }


async def refused(tenure: Tenure, table: Mapping[tuple[str, ...], tuple[int, str]]) -> None:
    """Run each command of `table` and check its exit code and what its one line on stderr says."""
    turns = asyncio.Semaphore(4)

    async def one(words: tuple[str, ...]) -> Done:
        async with turns:
            return await tenure(*words)

    for words, done in zip(table, await asyncio.gather(*map(one, table)), strict=True):
        code, says = table[words]
        assert (done.returncode, done.stdout) == (code, ""), words
        assert says in only_line(done.stderr), words


def only_line(text: str) -> str:
    """Return the one line of `text`; there must not be more."""
    (line,) = text.splitlines()
    return line


class Serving:
    """One gateway process with streams that last until the test ends them, and the command beside it."""

    def __init__(self, made: Rig, engine: ScriptedEngine) -> None:
        self.rig = made
        self.engine = engine
        self.calls: list[Call] = []

    @property
    def url(self) -> str:
        return self.rig.urls[0]

    async def ask(self, tenant: str = "acme", key: str | None = None) -> Call:
        """Send a request and wait for nothing."""
        call = await Call.start(self.url, key=key or key_of(tenant), body=chat_body())
        self.calls.append(call)
        return call

    async def stream(self, tenant: str = "acme") -> Call:
        """Open a stream; it is being served when this returns."""
        call = await self.ask(tenant)
        assert await call.first_token()
        return call

    def close(self) -> None:
        for call in self.calls:
            call.close()
        self.engine.finish_all()


@pytest.fixture
def engine() -> Iterator[ScriptedEngine]:
    with ScriptedEngine() as scripted:
        scripted.answer = Stream(tokens=2, hold_after=1)
        yield scripted


@pytest.fixture
async def serving(redis_url: str, engine: ScriptedEngine, tmp_path: Path) -> AsyncIterator[Serving]:
    """Total 3; acme may have 2 of them, umbrella has no quota of its own."""
    async with rig(
        tmp_path,
        redis_url,
        engines=[{"name": "e1", "url": engine.url, "slots": 8}],
        gateways=1,
        fleet={"total": 3, "cold": 3},
        tenants={"acme": 2, "umbrella": None},
        budgets={"queue_ms": 60_000, "idle_ms": 60_000, "total_ms": 120_000, "drain_ms": 20_000},
    ) as made:
        # Where every command looks by itself.
        (tmp_path / "tenure.toml").symlink_to(made.configs[0])
        serving = Serving(made, engine)
        try:
            yield serving
        finally:
            serving.close()


@pytest.fixture
async def quiet(redis_url: str, tmp_path: Path) -> Path:
    """The same limits in Redis and in ./tenure.toml, and no gateway."""
    config = write_config(
        tmp_path,
        redis_url,
        [{"name": "e1", "url": "http://127.0.0.1:9", "slots": 8}],
        fleet={"total": 3, "cold": 3},
        tenants={"acme": 2, "umbrella": None},
    )
    await begin_without_learning(config)
    settings = load(config, {})
    client = connect(settings.redis.url, max_connections=1)
    store = Store(client, prefix=settings.redis.prefix, times=lease_times(settings))
    await store.seed_keys(seed_keys(settings))
    await store.add_tenants([*settings.tenants])
    await client.aclose()
    return config
