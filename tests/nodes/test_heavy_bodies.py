"""Large prompts, many at once: renewals go on beside them, and no stream that runs loses its lease."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import TYPE_CHECKING, Final

import pytest

from services.permits.scripts import LUA_DIR
from tests.nodes.places import META, SLOW, Ends, looking_at, nothing_runs
from tests.support.answers import Whole
from tests.support.client import chat_body, fetch
from tests.support.rig import rig

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.redis_server import RedisServer
    from tests.support.reply import Script, Seen
    from tests.support.scripted_engine import ScriptedEngine

pytestmark = pytest.mark.timeout(120)

TTL_MS: Final = 6000
BODIES: Final = 60
AT_ONCE: Final = 20
# Many messages, as a long conversation has: reading that holds the interpreter.
HEAVY: Final = json.dumps(
    {**chat_body(stream=False), "messages": [{"role": "user", "content": "word " * 20}] * 40_000}
).encode()


def shortest_lease(server: RedisServer, over: threading.Event) -> int:
    """Look until it is over, from a thread of its own; return how many ms were left at the worst moment."""
    least, inspect = TTL_MS, (LUA_DIR / "inspect.lua").read_text()
    while not over.wait(0.02):
        for line in server.cli("EVAL", inspect, 1, META):
            row = dict(word.split("=", 1) for word in line.split())
            # The others come and go, each with a shorter lease before its first tick.
            if row["phase"] == "decode":
                least = min(least, int(row["expires_in_ms"]))
    return least


async def test_prompts_of_megabytes_delay_no_renewal_by_half_a_lease(
    redis_server: RedisServer, redis_url: str, engine: ScriptedEngine, tmp_path: Path
) -> None:
    """A loop that is busy parsing must not let work that runs look dead."""

    def choose(seen: Seen) -> Script:
        return SLOW if len(seen.body) < 1000 else Whole()

    engine.choose = choose
    assert len(HEAVY) > 5_000_000
    async with (
        rig(
            tmp_path,
            redis_url,
            engines=[engine.url],
            gateways=1,
            fleet={"total": 64, "cold": 64},
            lease={"ttl_ms": TTL_MS, "provisional_ms": TTL_MS},
            budgets={"connect_ms": 30_000, "stall_ms": 60_000, "first_token_ms": 60_000, "total_ms": 120_000},
        ) as replicas,
        looking_at(replicas.configs[0]) as eye,
    ):
        (url,), ends, turn = replicas.urls, Ends(replicas.gateways), asyncio.Semaphore(AT_ONCE)
        with await ends.call(url) as running:
            assert await running.first_token() is not None
            # Its first lease is a shorter one.
            await eye.all_tick(1)
            over = threading.Event()
            watch = asyncio.create_task(asyncio.to_thread(shortest_lease, redis_server, over))

            async def heavy() -> int:
                async with turn:
                    answer = await fetch(
                        url,
                        "/v1/chat/completions",
                        method="POST",
                        key=replicas.key(),
                        body=HEAVY,
                        patience_s=60,
                    )
                    return answer.status

            assert set(await asyncio.gather(*(heavy() for _ in range(BODIES)))) == {200}
            over.set()
            assert await watch > TTL_MS / 2
            assert await running.next_token() is not None
        await nothing_runs(eye, engine)
        assert "lease_reasserted" not in replicas.gateways[0].log_text()
        assert await eye.lapsed() == 0
