"""The real engine of these tests does what the tests rely on."""

import pytest

from tests.support.client import Call, chat_body
from tests.support.llama_server import MODEL, LlamaServer
from tests.support.waiting import wait_until

# The server is one per worker: all its tests go to the same one.
pytestmark = pytest.mark.xdist_group("llama")

LONG_PROMPT = " ".join(f"sentence {number} of a long story" for number in range(60))


async def test_it_streams_text_to_the_last_token_asked_for(llama_server: LlamaServer) -> None:
    body = chat_body(MODEL, max_tokens=40, stream_options={"include_usage": True})
    call = await Call.start(llama_server.url, body=body)
    assert await call.head() == 200
    events = (await call.rest()).decode().split("\n\n")
    call.close()
    assert sum('"content":"' in event for event in events) > 10
    assert events[-2:] == ["data: [DONE]", ""]
    assert '"completion_tokens":40' in events[-3]


async def test_it_reports_what_it_had_in_its_cache(llama_server: LlamaServer) -> None:
    body = chat_body(MODEL, prompt=LONG_PROMPT, stream=False, max_tokens=4)
    first = await llama_server.post("/v1/chat/completions", body)
    again = await llama_server.post("/v1/chat/completions", body)
    prompt_tokens = first["usage"]["prompt_tokens"]
    assert first["usage"]["prompt_tokens_details"]["cached_tokens"] < prompt_tokens / 2
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] > prompt_tokens * 0.9


async def test_a_closed_connection_frees_its_slot(llama_server: LlamaServer) -> None:
    call = await Call.start(llama_server.url, body=chat_body(MODEL, max_tokens=6000))
    await call.first_token()
    assert await llama_server.busy_slots() == 1
    call.close()

    async def idle() -> bool:
        return await llama_server.busy_slots() == 0

    await wait_until(idle, "the slot is free")
