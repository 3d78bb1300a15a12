"""Bytes, status and content type are the engine's own, and what the engine gets is the caller's own."""

import asyncio
import gzip
import hashlib
import time
from typing import Any

import pytest

from tests.support.answers import JSON, Stream, Usage, Whole, chunk
from tests.support.client import Call, chat_body, fetch, request_bytes
from tests.support.config_file import key_of
from tests.support.reply import Reply
from tests.support.scripted_engine import ScriptedEngine
from tests.support.waiting import wait_until

KEY = key_of("acme")
BINARY = bytes(range(256)) * 2000
UPLOAD = (
    b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\ndemo\r\n'
    b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\n'
    + BINARY
    + b"\r\n--b--\r\n"
)
MULTIPART = ("content-type", "multipart/form-data; boundary=b")


def in_chunks(body: bytes, size: int = 50_000) -> bytes:
    pieces = [body[at : at + size] for at in range(0, len(body), size)]
    return b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


@pytest.mark.parametrize("chunked", [False, True])
async def test_an_upload_arrives_byte_for_byte(gateway: Any, engine: ScriptedEngine, chunked: bool) -> None:
    """NUL bytes and invalid UTF-8 are nobody's business here."""
    headers = [MULTIPART, ("transfer-encoding", "chunked")] if chunked else [MULTIPART]
    body = in_chunks(UPLOAD) if chunked else UPLOAD
    answer = await fetch(
        gateway.url, "/v1/audio/transcriptions", method="POST", key=KEY, body=body, headers=headers
    )
    assert answer.status == 200
    seen = engine.requests[0]
    assert seen.body_sha256 == hashlib.sha256(UPLOAD).hexdigest()
    assert seen.header("content-type") == MULTIPART[1]
    assert seen.header("content-length") == str(len(UPLOAD))
    assert seen.header("transfer-encoding") is None


@pytest.mark.parametrize("size", [300_000, 9_000_000])
async def test_a_large_json_body_arrives_byte_for_byte(
    gateway: Any, engine: ScriptedEngine, size: int
) -> None:
    body = chat_body(prompt="é" * (size // 6), stream=False)
    request = request_bytes(gateway.url, key=KEY, body=body)
    call = await Call.connect(gateway.url)
    await call.send(request)
    assert await call.head() == 200
    await call.rest()
    call.close()
    assert engine.requests[0].body == request.partition(b"\r\n\r\n")[2]


@pytest.mark.parametrize(
    "content_type", ["audio/wav", "text/plain; charset=latin-1", "application/json", "x/y"]
)
@pytest.mark.parametrize("status", [200, 201, 302, 418])
async def test_any_reply_passes_as_it_is(
    gateway: Any, engine: ScriptedEngine, content_type: str, status: int
) -> None:
    engine.answer = Whole(
        status=status,
        body=BINARY,
        headers=(("content-type", content_type), ("location", "/elsewhere"), ("x-a", "1"), ("x-a", "2")),
    )
    answer = await fetch(gateway.url, "/v1/whatever/comes", method="POST", key=KEY, body=chat_body())
    assert (answer.status, answer.headers["content-type"], answer.body) == (status, content_type, BINARY)
    assert answer.headers["location"] == "/elsewhere"
    assert answer.headers["content-length"] == str(len(BINARY))
    await gateway.is_idle()


@pytest.mark.parametrize("status", [204, 304])
async def test_a_reply_without_a_body_ends_at_its_head(
    gateway: Any, engine: ScriptedEngine, status: int
) -> None:
    engine.answer = Whole(status=status, headers=())
    answer = await fetch(gateway.url, "/v1/x", method="POST", key=KEY, body=chat_body())
    assert (answer.status, answer.body) == (status, b"")
    assert (await gateway.record())["reason"] == "completed"


@pytest.mark.parametrize("method", ["GET", "DELETE", "PUT", "PATCH", "POST", "OPTIONS"])
async def test_any_method_passes(gateway: Any, engine: ScriptedEngine, method: str) -> None:
    engine.answer = Whole(body=b"{}")
    answer = await fetch(gateway.url, "/v1/files/a%20b?x=1&api_key=k", method=method, key=KEY)
    assert answer.status == 200
    seen = engine.requests[0]
    assert (seen.method, seen.path) == (method, "/v1/files/a%20b?x=1")
    # A method that has a body as a rule says that it has none this time.
    assert seen.header("content-length") == ("0" if method in ("PUT", "PATCH", "POST") else None)
    assert seen.header("host") == engine.url.removeprefix("http://")


async def test_head_has_no_body_and_holds_no_permit_once_answered(
    gateway: Any, engine: ScriptedEngine
) -> None:
    engine.answer = Whole(body=b"x" * 5000)
    call = await Call.start(gateway.url, method="HEAD", path="/v1/files/a", key=KEY)
    assert await call.head() == 200
    assert call.headers["content-length"] == "5000"
    await gateway.is_idle()
    call.close()
    assert (await gateway.record())["reason"] == "completed"


async def test_a_stream_in_single_bytes_arrives_whole(gateway: Any, engine: ScriptedEngine) -> None:
    """Characters straddle segments, and each piece arrives alone."""
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": None}]
    deltas += [{"content": f"你好🙂{n}"} for n in range(2)]
    sent = b"".join(chunk(delta) for delta in deltas) + chunk({}, "stop") + b"data: [DONE]\n\n"

    async def byte_by_byte(reply: Reply) -> None:
        await reply.head(200, (("content-type", "text/event-stream"),))
        for at in range(len(sent)):
            await reply.piece(sent[at : at + 1])
            # So that the next one is not read together with it.
            await reply.pause(0.01 if sent[at] > 0x7F else 0)
        await reply.end()

    engine.answer = byte_by_byte
    call = await gateway.call()
    await call.head()
    body = await call.rest()
    call.close()
    assert "🙂".encode() in sent
    assert hashlib.sha256(body).digest() == hashlib.sha256(sent).digest()
    assert (await gateway.record())["tokens"] == 2


@pytest.mark.parametrize("accepted", ["gzip", "br", "identity", None])
async def test_a_compressed_body_passes_compressed(
    gateway: Any, engine: ScriptedEngine, accepted: str | None
) -> None:
    engine.answer = Whole(zipped=True)
    headers = [("accept-encoding", accepted)] if accepted else []
    answer = await fetch(
        gateway.url,
        "/v1/chat/completions",
        method="POST",
        key=KEY,
        body=chat_body(stream=False),
        headers=headers,
    )
    assert answer.headers["content-encoding"] == "gzip"
    assert b'"usage"' in gzip.decompress(answer.body)
    assert engine.requests[0].header("accept-encoding") == accepted
    assert (await gateway.record())["tokens"] == 3


async def test_the_first_token_of_a_compressed_stream_is_neither_missed_nor_held_up(
    gateway: Any, engine: ScriptedEngine
) -> None:
    engine.answer = Stream(zipped=True, hold_after=1)
    call = await gateway.call()
    await call.head()
    await wait_until(lambda: engine.held == 1, "the engine waits after its first token")
    await wait_until(lambda: _phases(gateway) == ["decode"], "the first token was seen")
    engine.finish_all()
    assert b'" token2"' in gzip.decompress(await call.rest())
    call.close()


def _phases(gateway: Any) -> list[str]:
    return [trip.permit.phase for trip in gateway.app.trips._running if trip.permit]  # noqa: SLF001


async def test_a_role_is_no_first_token(gateway: Any, engine: ScriptedEngine) -> None:
    engine.answer = Stream(hold_after=0)
    call = await gateway.call()
    await call.head()
    assert b"assistant" in (await call.next_event() or b"")
    assert _phases(gateway) == ["prefill"]
    engine.finish_all()
    await call.rest()
    call.close()


async def test_events_are_not_held_up(gateway: Any, engine: ScriptedEngine) -> None:
    """A hop that gathers bytes turns half a second to the first token into seventeen."""
    times: list[float] = []

    async def steady(reply: Reply) -> None:
        await reply.head(200, (("content-type", "text/event-stream"),))
        for n in range(10):
            times.append(time.monotonic())
            await reply.piece(b"data: " + b"%d" % n * 240 + b"\n\n")
            await reply.pause(0.05)
        await reply.end()

    engine.answer = steady
    call = await gateway.call()
    await call.head()
    assert call.headers["x-accel-buffering"] == "no"
    assert call.headers["cache-control"] == "no-cache"
    delays: list[float] = []
    while await call.next_event() is not None:
        delays.append(time.monotonic() - times[len(delays)])
    call.close()
    assert len(delays) == 10
    assert sorted(delays)[5] < 0.05


async def test_what_follows_done_is_passed_and_the_connection_is_used_again(
    gateway: Any, engine: ScriptedEngine
) -> None:
    """Closing at [DONE] would leave the end of the body unread."""
    engine.answer = Stream(usage=Usage(), comment_s=0.2)
    for _ in range(2):
        call = await gateway.call()
        await call.head()
        body = await call.rest()
        assert body.endswith(b"data: [DONE]\n\n: late comment\n\n")
        assert b'"choices": []' in body
        call.close()
    assert engine.connections == 1
    assert (await gateway.record(2))["tokens"] == 3


async def test_the_engine_gets_its_own_key_and_not_the_callers(
    open_gateway: Any, engine: ScriptedEngine
) -> None:
    gateway = await open_gateway(engines=[{"url": engine.url, "api_key": "engine-secret"}])
    headers = [
        ("connection", "x-hop, keep-alive"), ("x-hop", "1"), ("te", "trailers"), ("x-tenant-id", "other"),
        ("X_Tenant_Id", "other"), ("x-conversation-id", "7"), ("x-request-id", "mine"), ("cookie", "a=b"),
        ("proxy-authorization", "Basic x"), ("upgrade", "h2c"), ("user-agent", "probe"),
    ]  # fmt: skip
    call = await gateway.call(headers=headers)
    assert await call.head() == 200
    await call.rest()
    call.close()
    seen = {name.lower(): value for name, value in engine.requests[0].headers}
    assert seen.pop("authorization") == "Bearer engine-secret"
    assert seen.pop("x-request-id") == call.headers["x-request-id"] != "mine"
    assert seen.pop("x-client-request-id") == call.headers["x-client-request-id"] == "mine"
    assert set(seen) == {"host", "content-type", "content-length", "cookie", "user-agent"}
    assert KEY not in str(engine.requests[0])


async def test_nothing_is_added_for_a_bare_request(gateway: Any, engine: ScriptedEngine) -> None:
    """An Accept-Encoding of our own would get the caller a body it cannot read."""
    call = await gateway.call()
    await call.head()
    await call.rest()
    call.close()
    names = {name.lower() for name, _ in engine.requests[0].headers}
    assert names == {"host", "content-type", "content-length", "x-request-id"}


async def test_the_answer_names_the_permit(gateway: Any, engine: ScriptedEngine) -> None:
    del engine
    call = await gateway.call()
    await call.head()
    await call.rest()
    call.close()
    assert call.headers["tenure-lease"].startswith(gateway.app.gate.holder)
    assert call.headers["tenure-class"] == "cold"
    assert int(call.headers["tenure-queue-ms"]) >= 0
    assert "tenure-refused" not in call.headers
    line = await gateway.record()
    assert (line["lease"], line["request_id"]) == (call.headers["tenure-lease"], call.headers["x-request-id"])


async def test_an_engines_redirect_is_not_followed(gateway: Any, engine: ScriptedEngine) -> None:
    engine.answer = Whole(status=307, body=b"", headers=(JSON, ("location", f"{engine.url}/v1/other")))
    call = await gateway.call()
    assert await call.head() == 307
    call.close()
    await gateway.record()
    assert len(engine.requests) == 1


async def test_many_calls_on_one_connection_are_answered_in_turn(
    open_gateway: Any, engine: ScriptedEngine
) -> None:
    del engine
    # Room for all: a place is free in Redis a moment after its reply has ended.
    gateway = await open_gateway(fleet={"total": 5, "cold": 5})
    call = await Call.connect(gateway.url)
    for _ in range(5):
        await call.send(request_bytes(gateway.url, key=KEY, body=chat_body(stream=False)))
        assert await call.head() == 200
        await call.rest()
        call.ended = None
    call.close()
    await gateway.record(5)


async def test_a_warm_prompt_is_known_from_the_engines_word_and_not_from_the_callers(
    gateway: Any, engine: ScriptedEngine
) -> None:
    body = chat_body(prompt="the same long prompt " * 50)
    hint = [("tenure-class", "warm"), ("x-cache-hit", "true")]

    async def once(cached: int | None, **more: Any) -> str:
        engine.answer = Stream(usage=Usage(prompt_tokens=100, cached_tokens=cached))
        call = await gateway.call(body=body, **more)
        await call.head()
        await call.rest()
        call.close()
        await gateway.is_idle()
        return str(call.headers["tenure-class"])

    assert [await once(None, headers=hint), await once(0), await once(99)] == ["cold"] * 3
    async with asyncio.timeout(5):
        while await once(99) != "warm":
            pass
    assert await once(0, headers=[("tenure-class", "cold")]) == "cold"
    async with asyncio.timeout(5):
        while await once(0) != "cold":
            pass
