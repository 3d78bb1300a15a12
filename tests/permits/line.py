"""Replicas in one process: gates on one fleet, each with its own ticker, and those who wait with them."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Final

from tests.permits.scene import KEYS, Seen, a_gate, begin, demand
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from services.permits import Gate, Permit

PATIENT_MS: Final = 20_000
LIMITS: Final = {
    "total": 1,
    "cold": 100,
    "tenant_default": 100,
    "line_max": 500,
    "line_max_per_tenant": 500,
}


@asynccontextmanager
async def gates(url: str, count: int, **limits: int) -> AsyncIterator[list[Gate]]:
    """Open some replicas in this process on one fleet, each with its own ticker and connections."""
    wanted = {**LIMITS, **limits}
    await begin(url, wanted)
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(a_gate(url, f"g{n + 1}", limits=wanted)) for n in range(count)]


def ask(gate: Gate, tenant: str = "acme", *, patience_ms: int = PATIENT_MS) -> asyncio.Task[Permit]:
    """Begin to ask for a permit, in a task of its own as each request is."""
    return asyncio.create_task(gate.take(demand(tenant, patience_ms=patience_ms)))


def waiting(seen: Seen) -> int:
    return int(seen.client.hlen(KEYS.waiting))


async def in_line(seen: Seen, count: int) -> None:
    await wait_until(lambda: waiting(seen) == count, f"{count} in line", timeout_s=10)


async def started(task: asyncio.Task[Permit], within_s: float = 1.0) -> Permit:
    """Return the permit; it must be granted within that time."""
    return await asyncio.wait_for(asyncio.shield(task), within_s)
