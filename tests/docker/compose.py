"""`docker-compose.yml` as a stack of its own: project, ports and volume apart from a developer's."""

from __future__ import annotations

import os
import secrets
import subprocess
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from tests.docker import engine
from tests.support.processes import ROOT
from tests.support.redis_server import free_port
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tests.docker.engine import Container, DockerClient

KEY: Final = "demo-key-for-compose"  # of deploy/tenure.toml
FLEET: Final = "demo"
PARTS: Final = ("front", "gateway-1", "gateway-2", "reaper", "engine", "redis")

# So that the places of a killed gateway come back within seconds.
LEASE: Final = {"ttl_ms": 3000, "tick_ms": 500, "provisional_ms": 2000, "learning_ms": 1000}
BUILD_LIMIT_S: Final = 900
START_LIMIT_S: Final = 120

# Ends the one child of the container's process 1, which ends the container as a crash would. `docker kill`
# would not do: the engine takes it for the operator's wish and leaves the container down.
CRASH: Final = """
import os, pathlib
for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
    if stat.read_text().rpartition(")")[2].split()[1] == "1":
        os.kill(int(stat.parent.name), 9)
"""


@dataclass
class Stack:
    """One running stack. `up` before anything else; `down` leaves no container, network or volume."""

    client: DockerClient
    command: Sequence[str]
    folder: Path
    project: str = field(default_factory=lambda: f"tenure-test-{secrets.token_hex(4)}")

    def __post_init__(self) -> None:
        self._label = f"com.docker.compose.project={self.project}"
        self.ports = {name: free_port() for name in ("front", "gateway-1", "gateway-2", "reaper")}
        lines = ["services:"]
        for part in ("gateway-1", "gateway-2", "reaper"):
            lines += [f"  {part}:", "    environment:"]
            lines += [f'      TENURE_LEASE__{name.upper()}: "{ms}"' for name, ms in LEASE.items()]
        self._shorter = self.folder / "shorter-leases.yml"
        self._shorter.write_text("\n".join(lines) + "\n")

    def url(self, part: str) -> str:
        return f"http://127.0.0.1:{self.ports[part]}"

    def up(self) -> None:
        """Build, start, and return as soon as all containers are started."""
        self._compose("build", limit_s=BUILD_LIMIT_S)
        try:
            self._compose("up", "-d", limit_s=START_LIMIT_S)
        except AssertionError as error:
            error.add_note(self._last_words())
            raise

    def _last_words(self) -> str:
        """Return what the containers said and what their last health checks did."""
        found = self.client.containers.list(all=True, filters={"label": self._label})
        return "\n".join(
            f"--- {one.name} {one.attrs['State']}\n{one.logs(tail=20).decode()}" for one in found
        )

    def down(self) -> None:
        """Stop and remove everything but the images."""
        self._compose("down", "-v", "--timeout", "5", limit_s=START_LIMIT_S)

    def _compose(self, *words: str, limit_s: float) -> None:
        files = ("-f", str(ROOT / "docker-compose.yml"), "-f", str(self._shorter))
        where = ("--project-directory", str(ROOT), "-p", self.project)
        ports = {
            f"TENURE_{name.upper().replace('-', '_')}_PORT": str(port) for name, port in self.ports.items()
        }
        done = subprocess.run(
            [*self.command, *files, *where, *words],
            env={**os.environ, **ports},  # noqa: TID251  (compose finds its engine by it)
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=limit_s,
            check=False,
            text=True,
        )
        assert done.returncode == 0, f"compose {words[0]} failed:\n{done.stdout[-4000:]}"

    def container(self, part: str) -> Container:
        """Return a part's container as it is now, stopped or not."""
        labels = [self._label, f"com.docker.compose.service={part}"]
        (found,) = self.client.containers.list(all=True, filters={"label": labels})
        return found

    def health(self, part: str) -> str:
        state = self.container(part).attrs["State"]
        return str(state["Health"]["Status"]) if state["Running"] else str(state["Status"])

    async def healthy(self, *parts: str) -> None:
        """Return when the health checks of these parts (none named: of all) pass."""
        await wait_until(
            lambda: all(self.health(part) == "healthy" for part in parts or PARTS),
            f"{', '.join(parts) or 'everything'} is healthy",
            START_LIMIT_S,
        )

    def run_in(self, part: str, *command: str) -> str:
        """Run a command in a part's container and return what it printed; it must succeed."""
        code, output = self.container(part).exec_run(list(command))
        text = str(output, "utf-8")
        assert code == 0, f"{command} in {part}: {text[-2000:]}"
        return text

    def redis(self, *command: str) -> str:
        """Ask this stack's Redis, which nothing outside it can reach."""
        return self.run_in("redis", "redis-cli", "-e", *command).strip()

    def in_use(self) -> int:
        """Return how many leases the total pool has."""
        return int(self.redis("ZCARD", f"tenure:{{{FLEET}}}:pool:total"))

    def leases_of(self, gateway: str) -> list[str]:
        leases = self.redis("ZRANGE", f"tenure:{{{FLEET}}}:pool:total", "0", "-1").split()
        return [lease for lease in leases if lease.startswith(f"{gateway}~")]

    def crash(self, part: str) -> None:
        """End the part's process by SIGKILL, as the kernel does when memory runs out."""
        self.container(part).exec_run(["python", "-c", CRASH])


def why_not() -> str | None:
    """Return why no stack can run here, or None when one can."""
    if why := engine.missing():
        return why
    if engine.compose_command() is None:
        return "neither `docker compose` nor `docker-compose` is installed"
    return engine.missing_image("redis:7") or engine.missing_image("python:3.13-slim")
