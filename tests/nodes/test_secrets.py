"""A caller's key is seen by nobody but the gateway that checks it, whatever goes wrong around it."""

from __future__ import annotations

import base64
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import pytest

from tests.nodes.places import Ends, looking_at, nothing_runs
from tests.support.answers import Dies, Stream, Whole, failure
from tests.support.client import CHAT, Call, HungUpError, chat_body, fetch
from tests.support.config_file import key_of
from tests.support.rig import Rig, rig
from tests.support.secrets import assert_no_secret, redis_content

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.support.redis_server import RedisServer
    from tests.support.reply import Header, Script
    from tests.support.scripted_engine import ScriptedEngine

pytestmark = pytest.mark.timeout(90)

KEY: Final = key_of("acme")
# Nobody's, but as secret: most often it is a real one with a typing error, or of another service.
WRONG: Final = "sk-wrong-0123456789-secret"
ENGINE_KEY: Final = "engine-key-9876543210"
PROMPT: Final = "a prompt that must be in no log"
SECRETS: Final = (KEY, WRONG, ENGINE_KEY, PROMPT)

HOP_BY_HOP: Final[tuple[Header, ...]] = (
    ("connection", "keep-alive, x-named-by-connection"),
    ("x-named-by-connection", "1"),
    ("keep-alive", "timeout=5"),
    ("te", "trailers"),
    ("upgrade", "h2c"),
    ("proxy-authorization", "Basic c2VjcmV0"),
    ("proxy-connection", "keep-alive"),
)


@asynccontextmanager
async def locked_engine(folder: Path, redis_url: str, engine: ScriptedEngine) -> AsyncIterator[Rig]:
    """Two replicas and a reaper in front of an engine that wants a key of its own."""
    behind = {"url": engine.url, "name": "e1", "api_key": ENGINE_KEY}
    async with rig(
        folder,
        redis_url,
        engines=[behind],
        gateways=2,
        reapers=1,
        fleet={"total": 2, "cold": 2},
        budgets={"first_token_ms": 600, "total_ms": 3000},
    ) as started:
        yield started


def requests() -> list[dict[str, Any]]:
    """Return ways to send keys: right and wrong, where they belong and where they do not."""
    bearer = ("authorization", f"Bearer {KEY}")
    basic = base64.b64encode(f"user:{WRONG}".encode()).decode()
    return [
        {"headers": (bearer,)},
        {"headers": (("x-api-key", KEY),)},
        {"headers": (("Authorization", f"bearer {KEY}"), ("X-Tenant-Id", "other"), ("X_Api_Key", WRONG))},
        {"headers": (("authorization", f"Bearer {WRONG}"),)},
        {"headers": (("authorization", f"Basic {basic}"),)},
        {"headers": (("authorization", WRONG),)},
        {"headers": (("x-api-key", WRONG), bearer)},
        {"headers": (("api-key", KEY),)},
        {"headers": (("cookie", f"key={WRONG}"),)},
        {"path": f"{CHAT}?api_key={KEY}", "headers": (bearer,)},
        {"path": f"{CHAT}?key={quote(WRONG)}&api-key={WRONG}", "headers": (bearer,)},
        {"path": f"{CHAT}?api_key={WRONG}"},
        {"path": f"/v1/{WRONG}"},
        {"path": f"/elsewhere/{WRONG}"},
        {"body": b"not json " + KEY.encode(), "headers": (bearer,)},
        {"body": chat_body(model=KEY), "headers": (bearer,)},
    ]


FAILURES: Final[dict[str, Script]] = {
    "none": Stream(),
    "whole": Whole(),
    "says_401": failure(401),
    "says_503": failure(503, retry_after="2"),
    "dies_before_headers": Dies("before_head"),
    "dies_in_headers": Dies("within_head"),
    "dies_after_headers": Dies("after_head"),
    "dies_in_an_event": Stream(ending="torn"),
    "silent": Stream(hold_before_head=True),
}


async def test_no_key_is_in_any_log_metric_answer_or_key_of_redis(
    redis_server: RedisServer, redis_url: str, engine: ScriptedEngine, tmp_path: Path
) -> None:
    """What is written down is copied, shipped and read by many; a key must never be in it."""
    answers: list[tuple[str, bytes]] = []
    async with (
        locked_engine(tmp_path, redis_url, engine) as replicas,
        looking_at(replicas.configs[0]) as eye,
    ):
        for name, script in FAILURES.items():
            engine.answer = script
            for number, request in enumerate(requests()):
                answers.append((name, await _answer(replicas.urls[number % 2], request)))
                # The next one asks the other replica, and must find the place free.
                await nothing_runs(eye, engine)
        engine.answer = Stream()
        answers += [("redis away", answer) for answer in await _with_redis_away(replicas, redis_server)]
        answers += [
            ("own pages", (await fetch(url, path)).body)
            for url in replicas.urls
            for path in ("/metrics", "/readyz", "/healthz", "/v1/models")
        ]
        content = redis_content(redis_server)
    # The logs that are searched do tell of all these ends and refusals.
    lines = [line for gateway in replicas.gateways for line in gateway.json_lines()]
    said = {line.get("reason") or line.get("refused") for line in lines if line["event"] == "request"}
    assert said == {
        *("completed", "engine_error", "first_token_timeout"),
        *("invalid_api_key", "unknown_model", "bad_request"),
    }
    assert_no_secret("Redis", content, SECRETS)
    for name, answer in answers:
        # A caller's own model name may be quoted to the caller, cut short; its key is no model of ours.
        assert_no_secret(f"an answer ({name})", answer, (WRONG, ENGINE_KEY, PROMPT))
    for log in tmp_path.glob("*.log"):
        assert_no_secret(log.name, log.read_bytes(), SECRETS)


async def _answer(url: str, request: dict[str, Any]) -> bytes:
    """Return all that comes back, headers and body."""
    asked = {"path": CHAT, "body": chat_body(prompt=PROMPT), **request}
    with await Call.start(url, **asked) as call:
        try:
            await call.head()
            body = await call.rest()
        except HungUpError as hung_up:
            return repr(hung_up).encode()
        return repr(call.headers).encode() + body


async def _with_redis_away(replicas: Rig, redis_server: RedisServer) -> list[bytes]:
    redis_server.stop()
    answers = [await _answer(url, request) for url in replicas.urls for request in requests()]
    redis_server.start()
    for replica in replicas.gateways:
        await replica.ready()
    return answers


async def test_an_engine_gets_its_own_key_and_nothing_that_speaks_of_the_caller_or_the_connection(
    redis_url: str, engine: ScriptedEngine, tmp_path: Path
) -> None:
    """The caller's key opens this gateway, not the engine behind it; hop-by-hop headers end at each hop."""
    engine.answer = Stream(
        headers=(
            ("connection", "x-engine-hop"),
            ("x-engine-hop", "1"),
            ("keep-alive", "timeout=9"),
            ("proxy-authenticate", "Basic"),
            ("upgrade", "h2c"),
            ("x-kept", "yes"),
            ("set-cookie", "a=1"),
            ("set-cookie", "b=2"),
        )
    )
    async with (
        locked_engine(tmp_path, redis_url, engine) as replicas,
        looking_at(replicas.configs[0]) as eye,
    ):
        ends = Ends(replicas.gateways)
        for url in replicas.urls:
            headers = (*HOP_BY_HOP, ("x-kept", "yes"), ("x-tenant-id", "other"), ("x-api-key", KEY))
            path = f"{CHAT}?api_key={KEY}&kept=1"
            with await ends.call(url, path=path, headers=headers) as call:
                assert await call.head() == 200
                assert call.headers["x-kept"] == "yes"
                assert not {"x-engine-hop", "keep-alive", "proxy-authenticate", "upgrade"} & set(call.headers)
                await call.rest()
        await nothing_runs(eye, engine)
        # Nothing of the caller's decides whose it is.
        assert {line["tenant"] for line in await ends.reach(2)} == {"acme"}
    assert len(engine.requests) == 2
    for seen in engine.requests:
        got = {name.lower(): value for name, value in seen.headers}
        assert got["authorization"] == f"Bearer {ENGINE_KEY}"
        assert got["x-kept"] == "yes"
        assert seen.path == f"{CHAT}?kept=1"
        assert seen.json() == chat_body()
        stripped = {name for name, _ in HOP_BY_HOP} | {"x-tenant-id", "x-api-key"}
        assert not (stripped - {"connection"}) & set(got)
        assert "x-named-by-connection" not in got.get("connection", "")
        assert_no_secret(
            "what the engine got", repr((seen.headers, seen.path, seen.body)).encode(), (KEY, WRONG)
        )
