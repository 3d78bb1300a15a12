"""Each refusal that is worth a second try says when, whichever pool or trouble is behind it."""

from __future__ import annotations

import json
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.nodes.places import LIMITS, LONG, Ends, looking_at, nothing_runs
from tests.support.client import CHAT, Call, chat_body
from tests.support.config_file import FLEET
from tests.support.rig import rig
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tests.support.redis_server import RedisServer
    from tests.support.scripted_engine import ScriptedEngine

pytestmark = pytest.mark.timeout(90)

ROOMY: Final = {"total": 9, "cold": 9, "tenant:acme": 9, "line_max": 9, "line_max_per_tenant": 9}
WAITING: Final = f"tenure:{{{FLEET}}}:line:waiting"


async def refused(ends: Ends, url: str, patience_ms: int = 0) -> str:
    """Ask for a stream and for a whole answer; both are refused alike. Returns the code."""
    codes = set()
    for stream in (True, False):
        patience = ("tenure-patience-ms", str(patience_ms))
        with await ends.call(url, body=chat_body(stream=stream), headers=(patience,)) as call:
            assert await call.head() in (429, 503), call.status
            assert call.headers["content-type"] == "application/json"
            assert call.headers["retry-after"].isdigit()
            assert 1 <= int(call.headers["retry-after"]) <= 60
            error: Mapping[str, Any] = json.loads(await call.rest())["error"]
            assert set(error) == {"message", "type", "param", "code"}
            assert call.headers["tenure-refused"] == error["code"]
            codes.add((call.status, error["code"]))
    ((status, code),) = codes
    assert status == (503 if code in {"admission_unavailable", "recovering", "draining"} else 429)
    return str(code)


async def test_every_refusal_names_its_reason_and_when_to_come_back(
    redis_server: RedisServer, redis_url: str, engine: ScriptedEngine, tmp_path: Path
) -> None:
    """A client library that finds no number waits by its own lights, or gives up."""
    engine.answer = LONG

    def limits(**changed: int) -> None:
        fields = {**ROOMY, **{name.replace("__", ":"): value for name, value in changed.items()}}
        redis_server.cli("HSET", LIMITS, *(word for pair in fields.items() for word in pair))

    async with (
        rig(
            tmp_path,
            redis_url,
            engines=[engine.url],
            gateways=1,
            fleet={"redis_loss": "closed"},
            lease={"learning_ms": 3000},
            budgets={"queue_ms": 10_000, "drain_ms": 20_000, "idle_ms": 60_000, "total_ms": 60_000},
        ) as replicas,
        looking_at(replicas.configs[0]) as eye,
    ):
        (gateway,), (url,), ends = replicas.gateways, replicas.urls, Ends([])
        with ExitStack() as opened:
            call = opened.enter_context(await ends.call(url))
            assert await call.first_token() is not None
            for pool, code in (
                ("tenant__acme", "tenant_quota"),
                ("cold", "cold_pool_full"),
                ("total", "total_pool_full"),
            ):
                limits(**{pool: 1})
                assert await refused(ends, url) == code
            assert await refused(ends, url, patience_ms=100) == "queue_timeout"
            with await Call.start(url, path=CHAT, key=replicas.key(), body=chat_body()):
                await wait_until(lambda: redis_server.cli("HLEN", WAITING) == 1, "the line is full")
                limits(total=1, line_max=1)
                assert await refused(ends, url, patience_ms=5000) == "line_full"
            limits()
            redis_server.cli("FLUSHALL")
            assert await refused(ends, url) == "recovering"
            await gateway.ready()
            redis_server.pause()
            assert await refused(ends, url) == "admission_unavailable"
            redis_server.resume()
            await gateway.ready()
            gateway.sigterm()
            await wait_until(lambda: '"draining"' in gateway.log_text(), "it drains")
            assert await refused(ends, url) == "draining"
        await nothing_runs(eye, engine)
        assert await gateway.wait(10) == 0
