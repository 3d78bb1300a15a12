"""Refused clients who come back exactly when they were told to are all served, and soon.

Time runs ten times as fast: a hold of 2 s takes 0.2 s here, a Retry-After of 5 s is slept 0.5 s, and the
clock of the gateways' turns runs ten times as fast too.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Final

import pytest

from services.gateway import refusals
from services.gateway.refusals import Pace, refusal_of
from services.permits import Refused
from tests.permits.scene import TIMES, a_gate, begin, demand

if TYPE_CHECKING:
    from services.permits import Gate

FASTER: Final = 10
CLIENTS: Final = 200
TOTAL: Final = 4
HOLD_S: Final = 2.0
# With every place busy all the time.
IDEAL_S: Final = CLIENTS * HOLD_S / TOTAL


@pytest.mark.timeout(180)
# Without a line to stand in, whoever comes a moment too early is sent away once more.
@pytest.mark.parametrize(("queue_ms", "most"), [(0, 1.75), (20_000, 1.5)])
@pytest.mark.parametrize("replicas", [1, 3])
async def test_two_hundred_refused_clients_are_all_served_and_places_are_rarely_idle(
    redis_url: str, monkeypatch: pytest.MonkeyPatch, queue_ms: int, most: float, replicas: int
) -> None:
    monkeypatch.setattr(refusals, "monotonic", lambda: time.monotonic() * FASTER)
    limits = {"total": TOTAL, "cold": TOTAL, "tenant_default": 100, "line_max": 5, "line_max_per_tenant": 5}
    await begin(redis_url, limits)
    async with AsyncExitStack() as stack:
        gates = [
            await stack.enter_async_context(a_gate(redis_url, f"g{n}", limits=limits, times=TIMES))
            for n in range(replicas)
        ]
        paces = [Pace() for _ in gates]
        began_s = time.monotonic()
        tries = await asyncio.gather(
            *(
                _client(gates[n % replicas], paces[n % replicas], replicas, queue_ms // FASTER)
                for n in range(CLIENTS)
            )
        )
        took_s = (time.monotonic() - began_s) * FASTER
    assert took_s <= most * IDEAL_S, f"{sum(tries) / CLIENTS} tries each"
    assert max(tries) <= 30


async def _client(gate: Gate, pace: Pace, gateways: int, patience_ms: int) -> int:
    """Ask until served, and return how often it had to."""
    tries = 0
    while True:
        tries += 1
        asked_s = time.monotonic()
        try:
            async with gate.hold(demand(patience_ms=patience_ms)):
                await asyncio.sleep(HOLD_S / FASTER)
            pace.held((time.monotonic() - asked_s) * FASTER if not patience_ms else HOLD_S)
        except Refused as refused:
            wait_s = refusal_of(refused, pace, gateways=gateways, total=TOTAL).retry_after_s
            assert wait_s is not None
            await asyncio.sleep(wait_s / FASTER)
        else:
            return tries
