"""Streams that run while servers die: how many, where they are counted, and that none of them was cut."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any, Final

from tests.support.answers import Stream
from tests.support.client import Call, chat_body
from tests.support.processes import ROOT
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from tests.support.rig import Rig
    from tests.support.scripted_engine import ScriptedEngine

# Goes on by itself for as long as the test likes; a hundred of them are few events a second.
RUNNING: Final = Stream(tokens=None, gap_s=0.5)
# As short as the rules allow where a server's death shall show, long where only the clients' patience counts.
BUDGETS: Final = {"idle_ms": 30000, "stall_ms": 60000, "total_ms": 120000, "first_token_ms": 20000}


async def open_streams(rig: Rig, count: int, **body: Any) -> list[Call]:
    """Begin `count` streams, on all replicas in turn, and return them when each had its first token."""
    calls = []
    for number in range(count):
        url = rig.urls[number % len(rig.urls)]
        calls.append(await Call.start(url, key=rig.key(), body={**chat_body(), **body}))
    for call in calls:
        assert await call.first_token() is not None, call.status
    return calls


async def all_run_on(calls: Iterable[Call]) -> None:
    """Assert that none has ended, and that each has one more token."""
    for call in calls:
        assert await call.next_token() is not None, call.ended
        assert call.ended is None


async def admits(rig: Rig, number: int, **body: Any) -> bool:
    """Say whether replica `number` admits one more stream; it is gone afterwards."""
    with await Call.start(rig.urls[number], key=rig.key(), body={**chat_body(), **body}) as call:
        return await call.head() == 200


async def counted_at_engine(engine: ScriptedEngine, count: int) -> None:
    """Return as soon as exactly `count` requests are open at the engine."""
    await wait_until(lambda: engine.open == count, f"{count} open at the engine", 10)


async def doctor(config: Path) -> dict[str, dict[str, Any]]:
    """Return what `tenure doctor` finds, by check."""
    words = ("-m", "services.cli", "doctor", "--json", "--config", str(config))
    done = await asyncio.to_thread(
        subprocess.run, [sys.executable, *words], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return {finding["check"]: finding for finding in json.loads(done.stdout)["findings"]}
