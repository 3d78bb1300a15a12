"""What a client reads: the shapes of OpenAI's API and the engine's own evidence of its cache."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import pytest
from openai import AsyncOpenAI

from tests.support.client import CHAT, fetch

if TYPE_CHECKING:
    from tests.engine.conftest import Engine, StartEngine

FAST = {"token_ms": 0, "prefill_ms": 0}
LONG = " ".join(f"word{number}" for number in range(100))


async def events_of(engine: Engine, prompt: str, path: str = CHAT, **fields: Any) -> list[dict[str, Any]]:
    """Every event of a stream, which must end in `[DONE]` and cleanly."""
    call = await engine.start(prompt, path=path, **fields)
    try:
        assert await call.head() == 200
        assert call.headers["content-type"].startswith("text/event-stream")
        body = await call.rest()
        assert call.ended == "clean"
    finally:
        call.close()
    *events, done, nothing = body.split(b"\n\n")
    assert (done, nothing) == (b"data: [DONE]", b"")
    return [json.loads(event.removeprefix(b"data: ")) for event in events]


async def test_a_chat_stream_is_role_words_finish_usage_and_done(start_engine: StartEngine) -> None:
    engine = await start_engine(**FAST)
    role, *words, finish, usage = await events_of(
        engine, LONG, max_tokens=3, stream_options={"include_usage": True}
    )
    assert role["choices"][0]["delta"]["role"] == "assistant"
    assert not role["choices"][0]["delta"]["content"]
    assert [bool(word["choices"][0]["delta"]["content"]) for word in words] == [True] * 3
    assert all(word["usage"] is None for word in words)
    assert finish["choices"][0] == {"index": 0, "delta": {}, "logprobs": None, "finish_reason": "length"}
    assert usage["choices"] == []
    prompt_tokens = usage["usage"]["prompt_tokens"]
    assert usage["usage"] == {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": 3,
        "total_tokens": prompt_tokens + 3,
        "prompt_tokens_details": {"cached_tokens": 0},
    }
    assert finish["timings"] == {"cache_n": 0, "prompt_n": prompt_tokens, "predicted_n": 3}


async def test_without_include_usage_the_finish_chunk_still_tells_what_was_cached(
    start_engine: StartEngine,
) -> None:
    engine = await start_engine(**FAST, tokens=2)
    first = (await events_of(engine, LONG))[-1]
    second = (await events_of(engine, LONG))[-1]
    assert "usage" not in second
    total = first["timings"]["prompt_n"]
    assert first["timings"] == {"cache_n": 0, "prompt_n": total, "predicted_n": 2}
    cached = (total - 1) // 16 * 16
    assert second["timings"] == {"cache_n": cached, "prompt_n": total - cached, "predicted_n": 2}
    assert second["choices"][0]["finish_reason"] == "stop"


async def test_a_text_stream_and_a_whole_answer_say_the_same(start_engine: StartEngine) -> None:
    engine = await start_engine(**FAST, tokens=5)
    *words, finish = await events_of(engine, "once upon", "/v1/completions")
    assert finish["choices"][0] == {"index": 0, "text": "", "logprobs": None, "finish_reason": "stop"}
    streamed = "".join(word["choices"][0]["text"] for word in words)
    whole = await engine.ask("/v1/completions", prompt="once upon")
    assert whole["choices"][0]["text"] == streamed
    assert whole["usage"]["completion_tokens"] == len(words) == 5
    assert whole["object"] == "text_completion"


async def test_the_second_turn_finds_the_answer_of_the_first_in_the_cache(start_engine: StartEngine) -> None:
    """What was generated is in the cache as well as what was read, as in a real engine."""
    engine = await start_engine(**FAST, tokens=64)
    turns: list[dict[str, str]] = [{"role": "user", "content": LONG}]
    first = await engine.ask("/v1/chat/completions", messages=turns)
    turns += [first["choices"][0]["message"], {"role": "user", "content": "and then?"}]
    second = await engine.ask("/v1/chat/completions", messages=turns)
    known = first["usage"]["total_tokens"] // 16 * 16
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] == known


async def test_a_prompt_that_begins_otherwise_finds_nothing(start_engine: StartEngine) -> None:
    engine = await start_engine(**FAST, tokens=1)
    await engine.ask("/v1/completions", prompt=LONG)
    other = await engine.ask("/v1/completions", prompt="Not " + LONG)
    assert other["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


async def test_an_old_prompt_is_evicted_when_newer_ones_need_its_pages(start_engine: StartEngine) -> None:
    engine = await start_engine(**FAST, tokens=1, pages=8, page_tokens=16)
    old = " ".join(f"old{number}" for number in range(60))

    async def cached(prompt: str) -> int:
        answer = await engine.ask("/v1/completions", prompt=prompt)
        return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])

    assert [await cached(old), await cached(old)] == [0, 48]
    for name in ("b", "c", "d"):
        assert await cached(old.replace("old", name)) == 0
    assert await cached(old) == 0


async def test_the_prefill_reports_its_progress_when_asked(start_engine: StartEngine) -> None:
    engine = await start_engine(token_ms=0, prefill_ms=0.5, tokens=1)
    events = await events_of(engine, LONG, return_progress=True)
    progress = [event["prompt_progress"] for event in events if "prompt_progress" in event]
    assert [step["processed"] for step in progress] == sorted({step["processed"] for step in progress})
    assert progress[-1]["processed"] == progress[-1]["total"] == events[-1]["timings"]["prompt_n"]
    assert len(progress) > 1


async def test_cached_tokens_cost_no_prefill_time(start_engine: StartEngine) -> None:
    """A warm prompt is quick: that is what the cold pool is about."""
    engine = await start_engine(token_ms=0, prefill_ms=3, tokens=1)

    async def prefill_s() -> float:
        call = await engine.start(LONG, max_tokens=1)
        await call.first_token()
        took_s = time.monotonic() - call.sent_at
        await call.rest()
        call.close()
        return took_s

    cold_s, warm_s = await prefill_s(), await prefill_s()
    assert cold_s > 0.3, "about a hundred tokens at 3 ms"
    assert warm_s < cold_s / 2


async def test_the_openai_client_is_served(start_engine: StartEngine) -> None:
    engine = await start_engine(**FAST, tokens=4)
    async with AsyncOpenAI(base_url=f"{engine.url}/v1", api_key="none", max_retries=0) as client:
        whole = await client.chat.completions.create(
            model="demo", messages=[{"role": "user", "content": "hi"}], max_completion_tokens=2
        )
        assert whole.choices[0].finish_reason == "length"
        assert whole.usage is not None
        assert whole.usage.completion_tokens == 2

        stream = await client.chat.completions.create(
            model="demo",
            messages=[{"role": "user", "content": [{"type": "text", "text": "hi"}]}],
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = [chunk async for chunk in stream]
        assert chunks[-1].usage is not None
        assert chunks[-1].usage.prompt_tokens_details is not None
        assert sum(bool(chunk.choices and chunk.choices[0].delta.content) for chunk in chunks) == 4

        embedded = await client.embeddings.create(model="demo", input=["one", "two"])
        plain = await client.embeddings.create(model="demo", input=["one", "two"], encoding_format="float")
        assert len(embedded.data) == 2
        assert embedded.data[1].embedding == pytest.approx(plain.data[1].embedding, abs=1e-6)

        assert [model.id async for model in client.models.list()] == ["demo"]


async def test_the_callers_request_id_is_in_the_answers_id_when_it_is_harmless(
    start_engine: StartEngine,
) -> None:
    engine = await start_engine(**FAST, tokens=1)
    body = {"model": "demo", "prompt": "hi"}

    async def id_for(value: str) -> str:
        answer = await fetch(
            engine.url, "/v1/completions", method="POST", body=body, headers=[("x-request-id", value)]
        )
        return str(json.loads(answer.body)["id"])

    assert await id_for("req-1.a_b") == "cmpl-req-1.a_b"
    assert '"' not in await id_for('a","id":"b')


async def test_health_metrics_and_state_answer_while_every_slot_is_taken(start_engine: StartEngine) -> None:
    engine = await start_engine(slots=1, token_ms=200, prefill_ms=0)
    call = await engine.start()
    await call.first_token()
    assert (await fetch(engine.url, "/health")).status == 200
    assert await engine.metric("tenure_engine_requests_running") == 1
    assert await engine.metric("tenure_engine_pages_leaked") == 0
    state = await engine.state()
    assert (state["open"], state["running"], state["queued"]) == (1, 1, 0)
    assert state["pages_in_use"] == 1
    call.reset()


async def test_a_reset_begins_the_maxima_anew(start_engine: StartEngine) -> None:
    engine = await start_engine(**FAST, tokens=1)
    await engine.ask("/v1/completions", prompt="hi")
    assert (await engine.state())["max_open"] == 1
    assert (await fetch(engine.url, "/debug/reset", method="POST")).status == 200
    state = await engine.state()
    assert (state["max_open"], state["max_running"], state["completed"]) == (0, 0, 1)
