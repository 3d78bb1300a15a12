"""Everything that runs in a soak: Redis, a shim per replica, the engine, and processes of the product."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from tests.soak.brain import Brain
from tests.support import processes
from tests.support.admin_client import ADMIN, AdminClient
from tests.support.config_file import write_config
from tests.support.redis_server import RedisServer, free_port
from tests.support.redis_shim import RedisShim
from tests.support.rig import begin_without_learning
from tests.support.scripted_engine import ScriptedEngine

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.support.processes import Process

REPLICAS: Final = ("g1", "g2", "g3")
REAPERS: Final = ("reaper1", "reaper2")
# Never killed and never drained, so that its memory can be followed from the first minute to the last.
OLDEST: Final = "g3"

# Short, so that many cycles fit into a minute.
LEASE: Final = {"ttl_ms": 3000, "tick_ms": 500, "provisional_ms": 2000, "learning_ms": 1000}
# What a fault did is over so long after it: the leases of a holder that died at its last moment, one tick,
# and what a busy machine adds.
TAIL_S: Final = (LEASE["ttl_ms"] + LEASE["tick_ms"]) / 1000 + 1.0
BUDGETS: Final = {
    "queue_ms": 4000,
    "first_token_ms": 4000,
    "idle_ms": 3000,
    "stall_ms": 2000,
    "total_ms": 12000,
    "drain_ms": 3000,
}
FLEET: Final = {
    "total": 8, "cold": 5, "tenant_default": 4, "line_max": 16, "line_max_per_tenant": 8,
}  # fmt: skip
QUOTAS: Final = {"acme": 6, "beta": 4, "gamma": 3, "tiny": 1}
WEIGHTS: Final = {"acme": 2, "beta": 1, "gamma": 1, "tiny": 1}
# Far more than draining takes, for a machine with too much to do.
STOP_LIMIT_S: Final = 60.0


@dataclass
class World:
    """What the soak holds in its hands."""

    folder: Path
    redis: RedisServer
    shims: dict[str, RedisShim]
    engine: ScriptedEngine
    brain: Brain
    configs: dict[str, Path] = field(default_factory=dict)
    gateways: dict[str, Process] = field(default_factory=dict)
    reapers: dict[str, Process] = field(default_factory=dict)

    def url(self, gateway: str) -> str:
        """Return a replica's address, which stays its own over restarts."""
        return self.gateways[gateway].url

    def admin(self, gateway: str) -> AdminClient:
        """Return a client for the administration on one replica."""
        return AdminClient(self.url(gateway), who="soak")

    async def start_gateway(self, name: str) -> Process:
        """Start a replica, again on its old port, and return it when it is ready."""
        old = self.gateways.get(name)
        port = int(old.url.rpartition(":")[2]) if old else free_port()
        self.gateways[name] = processes.gateway(self.folder, self.configs[name], name=name, port=port)
        await self.gateways[name].ready(within_s=60)
        return self.gateways[name]

    async def start_reaper(self, name: str) -> Process:
        """Start a reaper and return it when it answers."""
        config = self.configs[REPLICAS[0]]
        self.reapers[name] = processes.reaper(self.folder, config, name=name)
        await self.reapers[name].ready("/healthz", within_s=60)
        return self.reapers[name]

    async def end(self) -> list[str]:
        """End every process in order; return what did not end well."""
        wrong = []
        for group in (self.gateways, self.reapers):
            for process in group.values():
                process.sigterm()
            ends = await asyncio.gather(
                *(one.wait(STOP_LIMIT_S) for one in group.values()), return_exceptions=True
            )
            wrong += [f"{name} ended with {end}" for name, end in zip(group, ends, strict=True) if end]
        return wrong


@asynccontextmanager
async def world(folder: Path) -> AsyncIterator[World]:
    """Start everything, wait until it is ready, and leave no process behind."""
    redis = RedisServer(folder, options=("--maxmemory-policy", "noeviction"))
    redis.start()
    shims = {name: RedisShim(redis.port) for name in REPLICAS}
    engine, brain = ScriptedEngine(), Brain()
    engine.choose = brain.choose
    made = World(folder, redis, shims, engine, brain)
    try:
        engine.start()
        for name, shim in shims.items():
            shim.start()
            made.configs[name] = _config(folder, name, shim.url, engine.url)
        await begin_without_learning(made.configs[REPLICAS[0]])
        await asyncio.gather(*(made.start_gateway(name) for name in REPLICAS))
        await asyncio.gather(*(made.start_reaper(name) for name in REAPERS))
        for tenant, weight in WEIGHTS.items():
            await made.admin(REPLICAS[0]).ok("PUT", f"/tenants/{tenant}", {"weight": weight})
        yield made
    finally:
        for process in (*made.gateways.values(), *made.reapers.values()):
            process.kill9()
        for instrument in (*shims.values(), engine):
            await asyncio.to_thread(instrument.stop)
        redis.stop()


def _config(folder: Path, name: str, redis_url: str, engine_url: str) -> Path:
    return write_config(
        folder,
        redis_url,
        [{"url": engine_url, "name": "e1"}],
        name=f"{name}.toml",
        fleet=FLEET,
        tenants=QUOTAS,
        lease=LEASE,
        budgets=BUDGETS,
        admin=ADMIN,
    )
