"""A guard that a busy machine does not upset: counts and one ratio, held against limits with a margin.

`python -m bench.guard` runs a gateway in this very process, its clients in another thread, and counts what a
request and a token make it do: function calls of the gateway's thread, blocks of memory that live streams
hold and that ended requests leave behind, commands of Redis. The one figure with time in it is CPU over the
CPU of a reference loop in the same process. Prints a table; the exit status is 1 when a limit is passed.
"""

import asyncio
import gc
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Final, Self, TypeVar

import uvloop
from rich.console import Console

from bench import aims, load
from bench.aims import Aim
from bench.targets import BUDGETS, LEASE, PLENTY, engine
from services.gateway.records import open_journal
from services.gateway.server import listen, running
from services.settings.load import load as load_settings
from tests.support.config_file import write_config
from tests.support.loop_thread import LoopThread
from tests.support.redis_server import RedisServer
from tests.support.rig import begin_without_learning

T = TypeVar("T")

REQUESTS: Final = 200
TOKENS: Final = 101
STREAMS: Final = 100
ROUNDS: Final = 5
LOOPS: Final = 2_000

# Each is a quarter or more above what was found when it was set. What stays behind is caches of the
# interpreter and of the loop; a request that is kept would be hundreds of blocks.
CALLS_PER_REQUEST_MAX: Final = 625
CALLS_PER_TOKEN_MAX: Final = 17
BLOCKS_PER_STREAM_MAX: Final = 290
BLOCKS_LEFT_MAX: Final = 15
ROUND_TRIPS_MAX: Final = 2.6
COMMANDS_MAX: Final = 35
REFERENCES_MAX: Final = 2.6


@dataclass(frozen=True, slots=True)
class Bed:
    """A gateway that is served by the running loop, a thread for its clients, and its Redis."""

    url: str
    clients: LoopThread
    server: RedisServer

    async def of_client(self, work: Coroutine[object, object, T]) -> T:
        """Run `work` in the clients' thread."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self.clients.loop))

    async def ask(self, count: int, tokens: int) -> None:
        """Make requests one after the other on one connection."""
        await self.of_client(_ask(self.url, count, tokens))


async def _ask(url: str, count: int, tokens: int) -> None:
    async with load.lines(url, 1) as opened:
        await load.each_in_turn(opened, load.request_bytes(url, tokens), count, tokens)


@asynccontextmanager
async def _bed(folder: Path) -> AsyncIterator[Bed]:
    server, clients = RedisServer(folder).start(), LoopThread("clients")
    try:
        clients.start()
        async with engine(folder, gap_ms=1) as at:
            slots = {"url": at.url, "slots": PLENTY["total"]}
            config = write_config(folder, server.url, [slots], fleet=PLENTY, lease=LEASE, budgets=BUDGETS)
            await begin_without_learning(config)
            settings = load_settings(config, {})
            sock = listen("127.0.0.1", 0, stall_ms=settings.budgets.stall_ms)
            url = f"http://127.0.0.1:{sock.getsockname()[1]}"
            with (folder / "gateway.log").open("wb") as log:
                async with (
                    open_journal(log.fileno()) as journal,
                    running(settings, name="g1", sock=sock, journal=journal),
                ):
                    yield Bed(url, clients, server)
    finally:
        clients.stop()
        server.stop()


class Calls:
    """Counts the calls of Python and C functions in this thread while its block runs."""

    def __init__(self) -> None:
        """Begin at 0."""
        self.count = 0

    def __enter__(self) -> Self:
        sys.setprofile(self._note)
        return self

    def __exit__(self, *exc: object) -> None:
        sys.setprofile(None)

    def _note(self, frame: FrameType, event: str, arg: Any) -> None:  # noqa: ANN401  (the interpreter's signature)
        del frame, arg
        if event in {"call", "c_call"}:
            self.count += 1


async def _calls(bed: Bed) -> tuple[float, float]:
    """Return the calls of a request for one token, and of each further token."""
    with Calls() as few:
        await bed.ask(REQUESTS, 1)
    with Calls() as many:
        await bed.ask(REQUESTS // 10, TOKENS)
    request = few.count / REQUESTS
    return request, (many.count / (REQUESTS // 10) - request) / (TOKENS - 1)


async def _blocks(bed: Bed) -> tuple[float, float]:
    """Return the blocks of memory per live stream, and those that are left of each when all have ended."""

    async def begin() -> list[load.Line]:
        opened = [await load.Line.open(bed.url) for _ in range(STREAMS)]
        for line in opened:
            await line.begin(load.request_bytes(bed.url, 1_000_000))
        return opened

    async def leave(opened: list[load.Line]) -> None:
        for line in opened:
            line.reset()
        await asyncio.gather(*(line.gone for line in opened))

    empty = await _settled(bed)
    opened = await bed.of_client(begin())
    gc.collect()
    full = sys.getallocatedblocks()
    await bed.of_client(leave(opened))
    del opened
    left = await _settled(bed)
    return (full - empty) / STREAMS, (left - empty) / STREAMS


async def _settled(bed: Bed) -> int:
    """Return how many blocks there are when the last requests' log lines have been written."""
    for _ in range(3):
        await bed.ask(1, 1)
        await asyncio.sleep(0.2)
    gc.collect()
    return sys.getallocatedblocks()


async def _commands(bed: Bed) -> tuple[float, float]:
    """Return how many script calls, and how many commands in all, Redis ran per admitted request.

    Ticks are among them: a few in all, for a second or so.
    """
    before = _calls_of(bed.server)
    await bed.ask(REQUESTS, 1)
    after = _calls_of(bed.server)
    grown = {name: count - before.get(name, 0) for name, count in after.items()}
    return grown["evalsha"] / REQUESTS, sum(grown.values()) / REQUESTS


def _calls_of(server: RedisServer) -> Mapping[str, int]:
    stats: dict[str, Any] = server.cli("INFO", "commandstats")
    return {name.removeprefix("cmdstat_"): int(row["calls"]) for name, row in stats.items()}


async def _references(bed: Bed) -> float:
    """Return a request's CPU in this thread, over that of a reference loop which takes turns with it."""
    ratios = []
    for _ in range(ROUNDS):
        began_s = time.thread_time()
        await bed.ask(REQUESTS, 1)
        request_s = (time.thread_time() - began_s) / REQUESTS
        began_s = time.thread_time()
        _reference()
        ratios.append(request_s / (time.thread_time() - began_s))
    return statistics.median(ratios)


def _reference() -> None:
    """Do what interpreters do: calls, attributes, dictionaries, bytes."""
    found: dict[int, bytes] = {}
    for number in range(LOOPS):
        found[number % 64] = b"%d" % number
        found.get(number).__class__  # noqa: B018  (the look-up is the work)


async def measure(folder: Path) -> list[Aim]:
    """Count everything, in one gateway."""
    async with _bed(folder) as bed:
        await bed.ask(REQUESTS, 1)
        calls, blocks, commands = await _calls(bed), await _blocks(bed), await _commands(bed)
        references = await _references(bed)
    return [
        Aim("function calls per request", calls[0], CALLS_PER_REQUEST_MAX),
        Aim("function calls per token", calls[1], CALLS_PER_TOKEN_MAX, 1),
        Aim("blocks of memory per live stream", blocks[0], BLOCKS_PER_STREAM_MAX),
        Aim("blocks left behind per ended stream", blocks[1], BLOCKS_LEFT_MAX, 1),
        Aim("calls of scripts per request, ticks included", commands[0], ROUND_TRIPS_MAX, 2),
        Aim("commands in Redis per request, ticks included", commands[1], COMMANDS_MAX, 1),
        Aim(f"CPU per request, in reference loops of {LOOPS:,}", references, REFERENCES_MAX, 2),
    ]


def main() -> int:
    """Print the counts and return 1 when one is above its limit."""
    with tempfile.TemporaryDirectory() as folder:
        found = uvloop.run(measure(Path(folder)))
    aims.sheet(found).show(Console())
    return int(any(aim.found > aim.limit for aim in found))


if __name__ == "__main__":
    sys.exit(main())
