"""All processes of one `tenure up`: started together, watched, stopped in the order that loses nothing."""

import asyncio
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import httpx

from services.cli.child import Child, Say
from services.cli.failure import Failure
from services.cli.place import shown
from services.permits.clock import monotonic

READY_WITHIN_S: Final = 60.0
STOP_WITHIN_S: Final = 5.0
# What a gateway may still do after its streams were cut: tell Redis and close.
HURRIED_WITHIN_S: Final = 3.0
_POLL_S: Final = 0.05


class Crew:
    """Owns the children: `gateways`, the `helpers` beside them, and the `servers` that all depend on.

    They are stopped in this order, so that a draining gateway finds everything that it needs.
    """

    def __init__(self, *, logs: Path, environ: Mapping[str, str], say: Say) -> None:
        """Own nobody yet."""
        self.gateways: list[Child] = []
        self.helpers: list[Child] = []
        self.servers: list[Child] = []
        self._logs = logs
        self._environ = {**environ, "PYTHONPATH": _import_root(), "PYTHONUNBUFFERED": "1"}
        self._say = say
        self._watches: list[asyncio.Task[None]] = []

    @property
    def all(self) -> tuple[Child, ...]:
        """Everybody."""
        return (*self.servers, *self.helpers, *self.gateways)

    async def hire(self, name: str, command: Sequence[str], among: list[Child]) -> Child:
        """Start a process and own it from here on, as one of `among`. Raises Failure."""
        log = self._logs / f"{name.replace(' ', '-')}.log"
        log.write_bytes(b"")
        child = Child(name, command, log=log, environ=self._environ, say=self._say)
        try:
            await child.start()
        except OSError as error:
            raise Failure(f"cannot start {command[0]}: {error.strerror}") from error
        among.append(child)
        return child

    async def hire_python(self, name: str, module: str, *arguments: str, among: list[Child]) -> Child:
        """Start a module of ours with this interpreter."""
        # -P: a folder called `services` where the user happens to stand must not be imported.
        return await self.hire(name, [sys.executable, "-P", "-m", module, *arguments], among)

    async def dismiss(self, child: Child) -> None:
        """Stop one of the servers and forget it."""
        self.servers.remove(child)
        await child.end(within_s=STOP_WITHIN_S)

    def watch(self) -> None:
        """From here on, start again whoever dies."""
        self._watches = [asyncio.create_task(child.watch()) for child in self.all]

    async def end(self, *, drain_s: float, hurry: asyncio.Event) -> None:
        """Stop everybody: the gateways drain for at most `drain_s`, or less once `hurry` is set."""
        for watch in self._watches:
            watch.cancel()
        await asyncio.gather(*self._watches, return_exceptions=True)
        await self._drain(drain_s, hurry)
        for rank in (self.helpers, self.servers):
            await asyncio.gather(*(child.end(within_s=STOP_WITHIN_S) for child in rank))

    async def _drain(self, drain_s: float, hurry: asyncio.Event) -> None:
        for gateway in self.gateways:
            gateway.signal(signal.SIGTERM)
        over = asyncio.create_task(self._gateways_over(drain_s))
        hurried = asyncio.create_task(hurry.wait())
        await asyncio.wait({over, hurried}, return_when=asyncio.FIRST_COMPLETED)
        for task in (over, hurried):
            task.cancel()
        await asyncio.wait({over, hurried})
        # A second SIGTERM makes a gateway cut what still streams.
        await asyncio.gather(*(gateway.end(within_s=HURRIED_WITHIN_S) for gateway in self.gateways))

    async def _gateways_over(self, within_s: float) -> None:
        await asyncio.gather(*(gateway.over(within_s=within_s) for gateway in self.gateways))


async def answers(child: Child, url: str, *, within_s: float = READY_WITHIN_S) -> None:
    """Wait until `url` answers 200. Raises Failure when the process ends first, or on time-out."""
    deadline_s = monotonic() + within_s
    seen = "no answer"
    async with httpx.AsyncClient(timeout=2, trust_env=False) as client:
        while monotonic() < deadline_s:
            if not child.alive:
                raise Failure(
                    f"{child.name} {child.how_it_ended()} at start: {child.last_words() or 'no output'}"
                )
            try:
                answer = await client.get(url)
            except httpx.TransportError:
                await asyncio.sleep(_POLL_S)
                continue
            if answer.status_code == httpx.codes.OK:
                return
            seen = f"HTTP {answer.status_code} {answer.text[:200]}"
            await asyncio.sleep(_POLL_S)
    raise Failure(f"{child.name} is not ready after {within_s:g} s ({seen}); its log is {shown(child.log)}")


def _import_root() -> str:
    """Return the directory that holds the `services` package, installed or checked out."""
    return str(Path(__file__).resolve().parents[2])
