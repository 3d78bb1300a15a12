"""The canary: notes when a gateway, or its way to Redis, is slow although no fault was injected.

A machine with too much to do stops processes for longer than an injected fault would. What follows from that
is no more a defect than what follows from the fault; so it is noted as one, and counted.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tests.soak.world import REPLICAS, World
from tests.support.client import Call, HungUpError, fetch
from tests.support.history import HARMFUL, Fault, Faults

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.soak.book import Book

EVERY_S: Final = 0.1
# Half of what a call to Redis may take before it counts as failed.
SLOW_S: Final = 0.4
GIVE_UP_S: Final = 30.0
PING: Final = b"PING\r\n"


@dataclass
class Canary:
    """Asks every gateway and, through its shim, Redis whether they are there, all the time."""

    world: World
    book: Book

    async def run(self) -> None:
        """Probe until cancelled."""
        async with asyncio.TaskGroup() as group:
            for name in REPLICAS:
                group.create_task(self._probe(name, self._health))
                group.create_task(self._probe(name, self._ping))

    async def _probe(self, name: str, ask: Callable[[str], Awaitable[None]]) -> None:
        while True:
            began_s = time.monotonic()
            try:
                await ask(name)
            except (OSError, HungUpError, TimeoutError):
                await asyncio.sleep(EVERY_S)
                continue
            now_s = time.monotonic()
            if now_s - began_s > SLOW_S and not self._meant(name, began_s):
                # Whatever stopped it seldom stopped it alone.
                self.book.faults.append(Fault("slow", None, began_s, now_s))
            await asyncio.sleep(EVERY_S)

    def _meant(self, name: str, began_s: float) -> bool:
        """Say whether an injected fault made it slow; one that came when it was slow already did not."""
        injected = Faults(self.book.faults, tail_s=SLOW_S)
        return injected.near(HARMFUL - {"slow"}, began_s, began_s + SLOW_S, name) is not None

    async def _health(self, name: str) -> None:
        await fetch(self.world.url(name), "/healthz", patience_s=GIVE_UP_S)

    async def _ping(self, name: str) -> None:
        with await Call.connect(self.world.shims[name].url.replace("redis:", "http:")) as call:
            await call.send(PING)
            async with asyncio.timeout(GIVE_UP_S):
                await asyncio.get_running_loop().sock_recv(call.sock, 64)
