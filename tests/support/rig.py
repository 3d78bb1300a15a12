"""The rig: gateways and perhaps a reaper as real processes on one Redis, torn down whatever happens."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Unpack

from services.permits.connect import connect
from services.permits.errors import Unavailable
from services.permits.store import Store
from services.settings.load import load
from services.settings.seed import lease_times, seed_limits
from tests.support import processes
from tests.support.config_file import FLEET, key_of, write_config
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence
    from pathlib import Path

    from tests.support.processes import Process


@dataclass
class Rig:
    """What a test holds in its hands. Config i belongs to gateway i; reapers use the first.

    `gateways` and `reapers` may be changed: what is in them at the end is ended.
    """

    folder: Path
    configs: list[Path]
    gateways: list[Process]
    reapers: list[Process]

    @property
    def urls(self) -> list[str]:
        """Return the base URLs of the gateways."""
        return [gateway.url for gateway in self.gateways]

    def key(self, tenant: str = "acme") -> str:
        """Return the tenant's key."""
        return key_of(tenant)

    def log_lines(self) -> list[dict[str, Any]]:
        """Return the records of ended requests of all gateways."""
        return [line for gateway in self.gateways for line in gateway.log_lines()]

    async def add_gateway(self, *, config: Path | None = None, **how: Unpack[processes.How]) -> Process:
        """Start one more replica and return it when it is ready."""
        number = len(self.gateways) + 1
        added = processes.gateway(self.folder, config or self.configs[0], name=f"g{number}", **how)
        self.gateways.append(added)
        await added.ready()
        return added

    async def restart_gateway(self, number: int) -> Process:
        """Start replica `number` again on its port after it died; return it when it is ready."""
        old = self.gateways[number]
        await old.end()
        again = processes.gateway(
            self.folder, self.configs[number], name=old.name, port=int(old.url.rpartition(":")[2])
        )
        self.gateways[number] = again
        await again.ready()
        return again


@asynccontextmanager
async def rig(
    folder: Path,
    redis_url: str | Sequence[str],
    *,
    engines: Sequence[str | Mapping[str, Any]],
    gateways: int = 3,
    reapers: int = 0,
    known_new: bool = True,
    **config: Any,
) -> AsyncIterator[Rig]:
    """Start everything, wait until it is ready, and end it by pid on every way out.

    redis_url   one for all, or several that the gateways take in turn (each may be a shim's)
    known_new   begin without the learning window that a fleet on an empty Redis otherwise waits through
    config      what `write_config` takes: fleet=, tenants=, lease=, budgets=, ...
    """
    redis_urls = [redis_url] if isinstance(redis_url, str) else list(redis_url)
    configs = [
        write_config(folder, redis_urls[n % len(redis_urls)], engines, name=f"g{n + 1}.toml", **config)
        for n in range(max(gateways, 1))
    ]
    if known_new:
        await begin_without_learning(configs[0])
    made = Rig(folder, configs, [], [])
    errors: list[BaseException] = []
    try:
        for number in range(gateways):
            name = f"g{number + 1}"
            made.gateways.append(processes.gateway(folder, configs[number], name=name))
        for number in range(reapers):
            made.reapers.append(processes.reaper(folder, configs[0], name=f"reaper{number + 1}"))
        await asyncio.gather(*(process.ready() for process in (*made.gateways, *made.reapers)))
        yield made
    finally:
        # The gateways first: they give back what they hold, and a reaper finds nothing to do.
        for group in (made.gateways, made.reapers):
            ends = await asyncio.gather(*(process.end() for process in group), return_exceptions=True)
            errors += [end for end in ends if isinstance(end, BaseException)]
    # A replica that had to be killed is a fault of the product; it does not hide the failure of a test.
    if errors:
        raise errors[0]


async def begin_without_learning(config: Path) -> None:
    """Seed the limits of the config's fleet on a Redis that is known to be new."""
    settings = load(config, {})
    client = connect(settings.redis.url)
    try:
        store = Store(client, prefix=settings.redis.prefix, times=lease_times(settings))
        limits = seed_limits(settings, FLEET)

        async def seeded() -> bool:
            try:
                await store.set_limits(FLEET, limits, seed=True, who="test", learning_ms=0)
            except Unavailable:
                # The machine stood still for longer than a connection may take; nothing is tested yet.
                return False
            return True

        await wait_until(seeded, "Redis takes the limits", 10)
    finally:
        await client.aclose()
