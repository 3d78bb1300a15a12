"""The scripted engine sees and does what it claims, so a test that relies on it is not blind."""

import asyncio
import gzip
import hashlib
import json
import time
import zlib
from collections.abc import Iterator

import aiohttp
import pytest

from tests.support.answers import Dies, Ending, Flood, Stream, Usage, Whole, failure
from tests.support.client import Call, HungUpError, chat_body, fetch, request_bytes, token_of
from tests.support.scripted_engine import ScriptedEngine
from tests.support.waiting import wait_until


@pytest.fixture
def u() -> Iterator[ScriptedEngine]:
    with ScriptedEngine() as engine:
        yield engine


async def chat(u: ScriptedEngine, **fields: object) -> Call:
    return await Call.start(u.url, body=chat_body(**fields))  # type: ignore[arg-type]


async def test_a_stream_arrives_whole_and_is_recorded(u: ScriptedEngine) -> None:
    u.answer = Stream(tokens=2, usage=Usage(prompt_tokens=9, cached_tokens=8))
    call = await chat(u)
    assert await call.head() == 200
    events = (await call.rest()).split(b"\n\n")
    call.close()

    assert [token_of(event) for event in events] == [None, " token0", " token1", None, None, None, None]
    assert json.loads(events[4][6:])["usage"]["prompt_tokens_details"] == {"cached_tokens": 8}
    assert (events[5], call.ended) == (b"data: [DONE]", "clean")
    (seen,) = u.requests
    assert (seen.method, seen.path, seen.json()["model"]) == ("POST", "/v1/chat/completions", "demo")
    await wait_until(lambda: seen.closed_by == "engine", "the end is stamped")
    assert (u.open, u.max_open) == (0, 1)
    assert seen.bytes_accepted > 500


async def test_open_counts_what_is_open_now_and_the_most_there_were(u: ScriptedEngine) -> None:
    u.answer = Stream(hold_after=1)
    calls = [await chat(u) for _ in range(4)]
    for call in calls:
        assert await call.first_token() == " token0"
    assert (u.open, u.max_open) == (4, 4)
    assert u.finish(1) == 1
    await wait_until(lambda: u.open == 3, "one is done")
    await wait_until(lambda: u.held == 3, "three wait")
    assert u.finish_all() == 3
    for call in calls:
        assert (await call.rest()).endswith(b"[DONE]\n\n")
        call.close()
    assert (u.open, u.max_open, u.most_together(lambda _: True)) == (0, 4, 4)


@pytest.mark.parametrize("way", ["close", "reset", "half_close"])
@pytest.mark.parametrize("script", [Stream(hold_before_head=True), Stream(hold_after=1), Stream(delay_s=30)])
async def test_a_client_that_leaves_is_noticed_at_once(u: ScriptedEngine, script: Stream, way: str) -> None:
    u.answer = script
    call = await chat(u)
    await wait_until(lambda: u.open == 1, "the request arrived")
    if script.hold_after:
        await call.first_token()
    left_at = time.monotonic()
    getattr(call, way)()
    await wait_until(lambda: u.open == 0, "the engine sees it gone")
    seen = u.requests[0]
    assert seen.closed_by == "client"
    assert seen.closed_at is not None
    assert -0.01 < seen.closed_at - left_at < 0.5
    call.close()


async def test_the_engine_answers_while_the_loop_of_the_test_is_blocked(u: ScriptedEngine) -> None:
    u.answer = Stream(tokens=None, gap_s=0.02)
    call = await chat(u)
    await call.first_token()
    before = u.requests[0].bytes_accepted
    time.sleep(0.3)
    assert u.requests[0].bytes_accepted > before + 5 * 100
    call.close()


@pytest.mark.parametrize(
    ("ending", "seen_as", "last"),
    [
        ("bare", "clean", b" token2"),
        ("error", "clean", b'"error"'),
        ("reset", "reset", b" token2"),
        ("torn", "reset", b'data: {"id'),
        ("cut", "cut", b" token2"),
    ],
)
async def test_each_bad_ending_looks_as_it_should(
    u: ScriptedEngine, ending: Ending, seen_as: str, last: bytes
) -> None:
    u.answer = Stream(ending=ending)
    call = await chat(u)
    await call.head()
    body = await call.rest()
    call.close()
    assert call.ended == seen_as
    assert last in body.rstrip(b"\n").split(b"\n\n")[-1]
    assert b"[DONE]" not in body
    await wait_until(lambda: u.requests[0].closed_by == "engine", "the engine ended it")


@pytest.mark.parametrize("where", ["before_head", "within_head", "after_head"])
async def test_it_dies_around_the_headers(u: ScriptedEngine, where: str) -> None:
    u.answer = Dies(where)  # type: ignore[arg-type]
    call = await chat(u)
    if where == "after_head":
        assert await call.head() == 200
        assert await call.rest() == b""
    else:
        with pytest.raises(HungUpError):
            await call.head()
    assert call.ended == "reset"
    call.close()
    await wait_until(lambda: u.open == 0, "the engine let go")
    assert u.requests[0].closed_by == "engine"


async def test_a_reader_that_stops_stops_the_flood(u: ScriptedEngine) -> None:
    u.answer = Flood()
    call = await Call.start(u.url, body=chat_body(), receive_buffer=65536)
    await call.head()
    before = -1
    while before != u.requests[0].bytes_accepted:
        before = u.requests[0].bytes_accepted
        await asyncio.sleep(0.2)
    assert 0 < before < 8 << 20
    call.reset()
    await wait_until(lambda: u.requests[0].closed_by == "client", "the reset is seen though writing blocks")


async def test_bytes_come_one_to_a_segment_and_zipped_when_asked(u: ScriptedEngine) -> None:
    u.answer = Stream(tokens=3, text="雪🌨{0}", segment=1)
    call = await chat(u)
    await call.head()
    plain = await call.rest()
    assert "雪🌨2".encode() in plain
    u.answer = Stream(tokens=3, text="雪🌨{0}", zipped=True)
    zipped = await chat(u)
    await zipped.head()
    assert zipped.headers["content-encoding"] == "gzip"
    unzip = zlib.decompressobj(wbits=31)
    assert unzip.decompress(await zipped.rest()) == plain
    u.answer = Whole(body=b"{}", zipped=True)
    assert gzip.decompress((await fetch(u.url, "/v1/x")).body) == b"{}"
    call.close()
    zipped.close()


async def test_connections_are_reused_and_bodies_kept_whatever_their_framing(u: ScriptedEngine) -> None:
    payload = bytes(range(256)) * 1000

    async def pieces() -> object:
        for start in range(0, len(payload), 999):
            yield payload[start : start + 999]

    async with aiohttp.ClientSession() as session:
        async with session.post(u.url + "/v1/a", data=payload) as reply:
            await reply.read()
        async with session.post(u.url + "/v1/b", data=pieces(), expect100=True) as reply:
            await reply.read()
    first, second = u.requests
    assert first.body_sha256 == second.body_sha256 == hashlib.sha256(payload).hexdigest()
    assert (second.header("Transfer-Encoding"), first.connection) == ("chunked", second.connection)
    assert u.connections == 1


async def test_errors_and_probes_are_told_from_work(u: ScriptedEngine) -> None:
    u.choose = lambda seen: failure(429, retry_after="7") if seen.path == "/v1/embeddings" else None
    refused = await fetch(u.url, "/v1/embeddings", method="POST", body={})
    assert (refused.status, refused.headers["retry-after"]) == (429, "7")
    assert json.loads(refused.body)["error"]["code"] == 429
    assert (await fetch(u.url, "/health")).status == 200
    assert json.loads((await fetch(u.url, "/v1/other", method="POST", body={})).body)["usage"]
    assert (await fetch(u.url, "/v1/other", method="HEAD")).body == b""
    assert [seen.path for seen in u.requests] == ["/v1/embeddings", "/v1/other", "/v1/other"]
    assert [seen.path for seen in u.controls] == ["/health"]


async def test_bytes_that_are_no_request_are_not_counted_as_one(u: ScriptedEngine) -> None:
    call = await Call.connect(u.url)
    await call.send(b"aaaa" * 10 + b"\r\n\r\n")
    assert await call.head() == 400
    call.close()
    assert u.requests == []
    assert len(u.malformed) == 1


async def test_a_late_comment_keeps_the_reply_open(u: ScriptedEngine) -> None:
    u.answer = Stream(tokens=1, comment_s=0.2)
    call = await chat(u)
    await call.head()
    while (event := await call.next_event()) != b"data: [DONE]":
        assert event is not None
    done_at = time.monotonic()
    assert await call.rest() == b": late comment\n\n"
    assert time.monotonic() - done_at > 0.1
    call.close()


async def test_it_refuses_listens_hangs_up_and_forgets(u: ScriptedEngine) -> None:
    u.answer = Stream(hold_after=1)
    call = await chat(u)
    await call.first_token()
    u.refuse()
    with pytest.raises(ConnectionRefusedError):
        await Call.connect(u.url)
    u.hang_up()
    await call.rest()
    assert call.ended == "reset"
    assert u.requests[0].closed_by == "engine"
    u.listen()
    u.reset()
    assert (u.requests, u.max_open, u.held) == ([], 0, 0)
    again = await Call.connect(u.url)
    await again.send(request_bytes(u.url, body=chat_body(stream=False)))
    assert (await again.head(), await again.json() is not None) == (200, True)
    again.close()
    call.close()
