"""What makes no sense is refused in OpenAI's envelope, holds nothing, and the next good request is served."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from services.engine.http import MAX_BODY_BYTES
from tests.support.client import Call, fetch

if TYPE_CHECKING:
    from tests.engine.conftest import StartEngine

CHAT = "/v1/chat/completions"
GOOD: dict[str, Any] = {"model": "demo", "messages": [{"role": "user", "content": "hi"}]}

BAD: dict[str, tuple[str, bytes, int, str]] = {
    "no body": (CHAT, b"", 400, "bad_request"),
    "half a JSON": (CHAT, b'{"model": "demo"', 400, "bad_request"),
    "not an object": (CHAT, b"[1, 2]", 400, "bad_request"),
    "not UTF-8": (CHAT, b'{"model": "\xff\xfe"}', 400, "bad_request"),
    "a deep nest": (CHAT, b'{"x":' + b"[" * 100_000, 400, "bad_request"),
    "no model": (CHAT, b'{"messages": [{"role": "user", "content": "hi"}]}', 400, "bad_request"),
    "no messages": (CHAT, b'{"model": "demo"}', 400, "bad_request"),
    "empty messages": (CHAT, b'{"model": "demo", "messages": []}', 400, "bad_request"),
    "content is a number": (
        CHAT,
        b'{"model": "demo", "messages": [{"role": "user", "content": 5}]}',
        400,
        "bad_request",
    ),
    "a part is a number": (
        CHAT,
        b'{"model": "demo", "messages": [{"role": "user", "content": [5]}]}',
        400,
        "bad_request",
    ),
    "max_tokens is text": (CHAT, json.dumps({**GOOD, "max_tokens": "9"}).encode(), 400, "bad_request"),
    "max_tokens is 0": (CHAT, json.dumps({**GOOD, "max_tokens": 0}).encode(), 400, "bad_request"),
    "two choices": (CHAT, json.dumps({**GOOD, "n": 2}).encode(), 400, "bad_request"),
    "another model": (CHAT, json.dumps({**GOOD, "model": "gpt"}).encode(), 404, "model_not_found"),
    "two prompts": ("/v1/completions", b'{"model": "demo", "prompt": ["a", "b"]}', 400, "bad_request"),
    "nothing to embed": ("/v1/embeddings", b'{"model": "demo", "input": []}', 400, "bad_request"),
    "mixed inputs": ("/v1/embeddings", b'{"model": "demo", "input": [1, "a"]}', 400, "bad_request"),
    "no such call": ("/v1/nothing", b"{}", 404, "not_found"),
}


@pytest.mark.parametrize("name", BAD)
async def test_a_bad_request_is_refused_and_holds_nothing(start_engine: StartEngine, name: str) -> None:
    path, body, status, code = BAD[name]
    engine = await start_engine(token_ms=0, tokens=1)
    answer = await fetch(engine.url, path, method="POST", body=body)
    error = json.loads(answer.body)["error"]
    assert (answer.status, error["code"], error["type"]) == (status, code, "invalid_request_error")
    assert answer.headers["content-type"] == "application/json"
    await engine.idle()
    assert (await engine.ask(CHAT, messages=GOOD["messages"]))["object"] == "chat.completion"


async def test_a_huge_model_name_is_not_echoed(start_engine: StartEngine) -> None:
    engine = await start_engine()
    answer = await fetch(engine.url, CHAT, method="POST", body={**GOOD, "model": "m" * 65536})
    assert answer.status == 404
    assert len(answer.body) < 400


async def test_a_prompt_longer_than_the_cache_is_refused_with_both_numbers(start_engine: StartEngine) -> None:
    engine = await start_engine(pages=4, page_tokens=16, token_ms=0, prefill_ms=0)
    answer = await fetch(
        engine.url, "/v1/completions", method="POST", body={"model": "demo", "prompt": "word " * 80}
    )
    error = json.loads(answer.body)["error"]
    assert (answer.status, error["code"]) == (400, "context_length_exceeded")
    assert "64" in error["message"]


async def test_an_answer_that_would_overrun_the_cache_ends_there(start_engine: StartEngine) -> None:
    engine = await start_engine(pages=4, page_tokens=16, token_ms=0, prefill_ms=0)
    answer = await engine.ask("/v1/completions", prompt="word " * 40, max_tokens=1000)
    assert answer["usage"]["total_tokens"] == 64
    assert answer["choices"][0]["finish_reason"] == "length"


async def test_a_body_over_the_limit_is_refused_before_it_is_read_to_its_end(
    start_engine: StartEngine,
) -> None:
    engine = await start_engine()
    call = await Call.start(
        engine.url,
        body=b" " * (MAX_BODY_BYTES + 65536),
        headers=[("content-length", str(MAX_BODY_BYTES * 10))],
    )
    assert await call.head() == 413
    assert await call.error_code() == "request_too_large"
    call.reset()
    await engine.idle()


async def test_a_client_that_leaves_in_its_own_body_holds_nothing(start_engine: StartEngine) -> None:
    engine = await start_engine()
    call = await Call.start(engine.url, body=b'{"model"', headers=[("content-length", "1000")])
    call.reset()
    await engine.idle()


async def test_generation_takes_only_post(start_engine: StartEngine) -> None:
    engine = await start_engine()
    assert (await fetch(engine.url, CHAT)).status == 405
