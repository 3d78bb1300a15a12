"""The administrators: limits, quotas, keys, revokes and drains while everything else goes on."""

from __future__ import annotations

import asyncio
import random
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeVar

from tests.soak.world import FLEET, QUOTAS, REPLICAS, World
from tests.support.client import HungUpError, fetch
from tests.support.config_file import FLEET as NAME
from tests.support.history import GONE, REDIS

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.soak.book import Book
    from tests.soak.watch import Watch
    from tests.support.admin_client import AdminClient

T = TypeVar("T")

# What is set in turns; the first of each is what the file says.
VALUES: Final[dict[str, list[int]]] = {
    "total": [FLEET["total"], 4, 6, 10, 0],
    "cold": [FLEET["cold"], 2, 4],
    "tenant:acme": [QUOTAS["acme"], 2, 0, 8],
    "tenant:beta": [QUOTAS["beta"], 1, 3],
}
DEEDS: Final = {"limits": 5, "revoke": 3, "keys": 2, "look": 3}
# A key holds on every replica within a second; a machine with two busy cores may take another.
KEY_S: Final = 2.5
# Every gateway has seen a limit after two ticks; what Redis loses before that may come back older.
SEEN_S: Final = 1.5
ATTEMPTS: Final = 10
AWAY: Final = (OSError, HungUpError, TimeoutError, AssertionError)


@dataclass
class Officer:
    """Administers until cancelled. `wanted` is what each limit must be at rest, or may be, when in doubt."""

    world: World
    book: Book
    rng: random.Random
    watch: Watch
    wanted: dict[str, set[int]] = field(default_factory=lambda: {name: {v[0]} for name, v in VALUES.items()})
    _going: asyncio.Event = field(default_factory=asyncio.Event)
    _idle: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self) -> None:
        """Do one thing after the other."""
        self._going.set()
        while True:
            self._idle.set()
            await asyncio.sleep(self.rng.uniform(1, 4))
            await self._going.wait()
            self._idle.clear()
            deed = self.rng.choices([*DEEDS], [*DEEDS.values()])[0]
            act: Callable[[], Awaitable[None]] = getattr(self, f"_{deed}")
            try:
                await act()
                self.book.deeds[deed] += 1
            except AWAY:
                self.book.deeds[f"{deed}, unanswered"] += 1

    async def pause(self) -> None:
        """Return when nothing is under way any more."""
        self._going.clear()
        await self._idle.wait()

    def resume(self) -> None:
        """Go on."""
        self._going.set()

    async def settle(self) -> None:
        """Put every limit back to what the file says; at rest, so that nothing is in doubt afterwards."""
        for name, values in VALUES.items():
            await patiently(set_limit, self.world.admin(REPLICAS[-1]), name, values[0])
        await self.watch.look()
        await asyncio.sleep(SEEN_S)
        self.wanted = {name: {values[0]} for name, values in VALUES.items()}

    async def _limits(self) -> None:
        name = self.rng.choice([*VALUES])
        value = self.rng.choice(VALUES[name])
        before, self.wanted[name] = self.wanted[name], self.wanted[name] | {value}
        began_s = time.monotonic()
        await self._set(name, value)
        if value == 0:
            await asyncio.sleep(self.rng.uniform(0.2, 1))
            value = VALUES[name][0]
            self.wanted[name].add(value)
            await self._set(name, value)
        await asyncio.sleep(SEEN_S)
        if len(before) == 1 and self._calm_since(began_s):
            self.wanted[name] = {value}

    async def _set(self, name: str, value: int) -> None:
        await set_limit(self.world.admin(self.rng.choice(REPLICAS)), name, value)
        # A value that is in force for a moment only must be seen, too.
        await self.watch.look()

    def _calm_since(self, began_s: float) -> bool:
        return not self.book.known_faults().near(REDIS | GONE, began_s, time.monotonic())

    async def _revoke(self) -> None:
        admin = self.world.admin(self.rng.choice(REPLICAS))
        found = await admin.ok("GET", f"/fleets/{NAME}/leases?limit=20")
        if found["leases"]:
            lease = self.rng.choice(found["leases"])
            self.book.stopped |= {lease["lease"], lease["request_id"]}
            status, _ = await admin.call("DELETE", f"/leases/{lease['lease']}")
            self.book.deeds[f"revoke {status}"] += 1

    async def _look(self) -> None:
        admin = self.world.admin(self.rng.choice(REPLICAS))
        for path in (f"/fleets/{NAME}", f"/fleets/{NAME}/line", "/gateways", "/events?limit=50", "/tenants"):
            await admin.ok("GET", path)

    async def _keys(self) -> None:
        """Give a key, use it on every replica, take it back, and be refused on every replica."""
        began_s = time.monotonic()
        admin = self.world.admin(self.rng.choice(REPLICAS))
        made = await admin.ok("POST", "/tenants/gamma/keys")
        await self._all_answer(made["key"], 200, began_s)
        await admin.ok("DELETE", f"/tenants/gamma/keys/{made['key_id']}")
        await self._all_answer(made["key"], 401, began_s)

    async def _all_answer(self, key: str, status: int, began_s: float) -> None:
        async def answers(gateway: str) -> Any:
            with suppress(*AWAY):
                return (await fetch(self.world.url(gateway), "/v1/models", key=key, patience_s=5)).status
            return None

        loop = asyncio.get_running_loop()
        until_s, asked_s = loop.time() + KEY_S, 0.0
        # The last look begins after the time is over, however long the looks before it took.
        while asked_s < until_s:
            asked_s = loop.time()
            seen = await asyncio.gather(*(answers(gateway) for gateway in REPLICAS))
            if seen == [status] * len(seen):
                return
            await asyncio.sleep(0.1)
        if self._calm_since(began_s):
            self.book.find("key", f"{KEY_S} s after a change {seen} instead of {status} everywhere")


async def patiently(call: Callable[..., Awaitable[T]], *args: Any) -> T:
    """Make a call that must succeed, again and again: a machine with too much to do may need minutes."""
    for _ in range(ATTEMPTS):
        try:
            return await call(*args)
        except AWAY:
            await asyncio.sleep(1)
    return await call(*args)


async def set_limit(admin: AdminClient, name: str, value: int) -> None:
    """Set one limit by the call that is for it."""
    kind, _, tenant = name.partition(":")
    if tenant:
        assert kind == "tenant"
        await admin.ok("PUT", f"/tenants/{tenant}", {"quotas": {NAME: value}})
    else:
        await admin.ok("PATCH", f"/fleets/{NAME}", {name: value})
