"""A real llama.cpp server behind two replicas, driven by the OpenAI client: the product doing its job."""

import secrets
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam

from tests.support.llama_server import MODEL, SLOTS, LlamaServer
from tests.support.redis_server import RedisServer
from tests.support.rig import Rig, rig
from tests.support.waiting import wait_until

# The server is one per worker: all its tests go to the same one.
pytestmark = pytest.mark.xdist_group("llama")

TOTAL_POOL = "tenure:{demo}:pool:total"
EVIDENCE = "tenure:{demo}:evidence:llama"
CHAT = "/v1/chat/completions"
# Some seconds of decoding: nothing that is found free meanwhile became so by itself.
LONG_ANSWER = 6000


@pytest.fixture
async def fleet(tmp_path: Path, redis_url: str, llama_server: LlamaServer) -> AsyncIterator[Rig]:
    engine = {"name": "llama", "url": llama_server.url, "kind": "llama.cpp", "slots": SLOTS}
    fields = {"models": [MODEL], "total": SLOTS, "cold": SLOTS}
    async with rig(tmp_path, redis_url, engines=[engine], gateways=2, fleet=fields) as running:
        yield running


@pytest.fixture
async def clients(fleet: Rig) -> AsyncIterator[list[openai.AsyncOpenAI]]:
    """One client of each replica, as a user configures it: a base URL and a key."""
    async with AsyncExitStack() as opened:
        yield [
            await opened.enter_async_context(
                openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=fleet.key(), max_retries=0)
            )
            for url in fleet.urls
        ]


def new_prompt(words: int = 40) -> list[ChatCompletionMessageParam]:
    """Return a prompt that no cache has seen: every test starts cold on an engine that others used."""
    return [{"role": "user", "content": " ".join(secrets.token_hex(6) for _ in range(words))}]


async def class_of(client: openai.AsyncOpenAI, messages: Any, **more: Any) -> str:
    """Send a short request and return what the gateway took it for."""
    raw = await client.chat.completions.with_raw_response.create(
        model=MODEL, messages=messages, max_tokens=4, **more
    )
    assert raw.parse().usage is not None
    return str(raw.headers["tenure-class"])


async def test_both_replicas_stream_what_the_engine_says_with_its_usage(
    fleet: Rig, clients: list[openai.AsyncOpenAI], llama_server: LlamaServer
) -> None:
    messages = new_prompt()
    direct = await llama_server.post(CHAT, {"model": MODEL, "messages": messages, "max_tokens": 40})
    for client in clients:
        stream = await client.chat.completions.create(
            model=MODEL,
            messages=messages,
            max_tokens=40,
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = [chunk async for chunk in stream]
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        usage = chunks[-1].usage
        assert len(text) > 40
        assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "length"
        assert usage is not None
        assert (usage.prompt_tokens, usage.completion_tokens) == (direct["usage"]["prompt_tokens"], 40)
        assert usage.prompt_tokens_details is not None
        assert usage.prompt_tokens_details.cached_tokens
    await wait_until(lambda: len(fleet.log_lines()) == 2, "both requests are recorded")
    assert [(line["reason"], line["tokens"]) for line in fleet.log_lines()] == [("completed", 40)] * 2


async def test_a_whole_answer_comes_as_the_engine_gave_it(
    clients: list[openai.AsyncOpenAI], redis_server: RedisServer
) -> None:
    raw = await clients[0].chat.completions.with_raw_response.create(
        model=MODEL, messages=new_prompt(), max_tokens=12
    )
    answer = raw.parse()
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 12
    assert answer.choices[0].message.content
    assert raw.headers["x-request-id"]
    assert raw.headers["tenure-lease"]
    await wait_until(lambda: redis_server.cli("ZCARD", TOTAL_POOL) == 0, "the permit went back")


async def test_a_client_that_leaves_frees_the_slot_of_the_engine_and_the_permit(
    fleet: Rig, clients: list[openai.AsyncOpenAI], llama_server: LlamaServer, redis_server: RedisServer
) -> None:
    """What is given back must be free in both places, or the next request waits inside the engine."""
    stream = await clients[1].chat.completions.create(
        model=MODEL, messages=new_prompt(), max_tokens=LONG_ANSWER, stream=True
    )
    async for chunk in stream:
        if chunk.choices and chunk.choices[0].delta.content:
            break
    assert redis_server.cli("ZCARD", TOTAL_POOL) == 1
    assert await llama_server.busy_slots() == 1

    await stream.close()

    async def idle() -> bool:
        return await llama_server.busy_slots() == 0

    await wait_until(lambda: redis_server.cli("ZCARD", TOTAL_POOL) == 0, "the permit went back", 1)
    await wait_until(idle, "the slot is free", 1)
    await wait_until(fleet.log_lines, "the request is recorded")
    (record,) = fleet.log_lines()
    assert record["reason"] == "client_disconnect"
    assert 0 < record["tokens"] < LONG_ANSWER


async def test_a_full_fleet_is_refused_in_words_the_client_library_knows(
    clients: list[openai.AsyncOpenAI],
) -> None:
    async with AsyncExitStack() as held:
        for number in range(SLOTS):
            stream = await clients[number % 2].chat.completions.create(
                model=MODEL, messages=new_prompt(4), max_tokens=LONG_ANSWER, stream=True
            )
            await held.enter_async_context(stream)
        for client in clients:
            with pytest.raises(openai.RateLimitError) as refused:
                await client.chat.completions.create(model=MODEL, messages=new_prompt(4))
            assert refused.value.code == "total_pool_full"
            assert 1 <= int(refused.value.response.headers["retry-after"]) <= 60


async def test_a_repeated_prompt_becomes_warm_by_the_evidence_of_the_engine_on_any_replica(
    clients: list[openai.AsyncOpenAI], redis_server: RedisServer
) -> None:
    messages = new_prompt()
    assert await class_of(clients[0], messages) == "cold"
    await class_of(clients[1], messages)
    # The second answer reports the cached tokens; the replica that did not see it learns it from Redis.
    await wait_until(lambda: redis_server.cli("EXISTS", EVIDENCE), "the evidence is noted")
    assert await class_of(clients[0], messages) == "warm"
    assert await class_of(clients[1], messages) == "warm"
    # A caller may ask for less, never for more.
    assert await class_of(clients[0], messages, extra_headers={"Tenure-Class": "cold"}) == "cold"


async def test_nothing_that_a_caller_writes_makes_a_request_warm(
    clients: list[openai.AsyncOpenAI],
) -> None:
    """A cheap label would turn the cold pool, which protects everybody's latency, into a suggestion."""
    report = {"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 9}}
    for client in clients:
        forged = await class_of(
            client,
            new_prompt(),
            extra_headers={"Tenure-Class": "warm", "X-Cache": "HIT", "X-Prefix-Cached": "1"},
            extra_body={"class": "warm", "cached": True, "usage": report, "timings": {"cache_n": 9}},
        )
        assert forged == "cold"
