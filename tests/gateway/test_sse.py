"""Watching a reply go by: first token, tokens, report."""

import gzip
import json
import tracemalloc
import zlib
from typing import Any

import pytest

from services.gateway.evidence import Report
from services.gateway.sse import BodyObserver, Observer, StreamObserver, observer_for

SSE = b"text/event-stream; charset=utf-8"


def event(payload: Any, end: str = "\n\n") -> bytes:
    text = payload if isinstance(payload, str) else json.dumps(payload, ensure_ascii=False)
    return f"data: {text}{end}".encode()


def delta(**fields: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": fields, "finish_reason": None}]}


ROLE = event(delta(role="assistant", content=None))
TOKEN = event(delta(content="你好🙂"))
FINISH = event({"choices": [{"delta": {}, "finish_reason": "stop"}]})
USAGE = event(
    {
        "choices": [],
        "usage": {
            "prompt_tokens": 10,
            "completion_tokens": 7,
            "prompt_tokens_details": {"cached_tokens": 8},
        },
    }
)
DONE = event("[DONE]")


def fed(*chunks: bytes, observer: Observer | None = None) -> Observer:
    observer = observer or StreamObserver()
    for chunk in chunks:
        observer.feed(chunk)
    return observer


@pytest.mark.parametrize(
    "quiet",
    [
        ROLE, b": ping\n\n", b":\n\n", b'event: ping\ndata: {"type": "ping"}\n\n', FINISH, USAGE, DONE,
        event(delta(content="")), event(delta()), event({"choices": []}), event({"error": {"message": "x"}}),
        event({"choices": [{"text": ""}]}), event({"prompt_progress": {"total": 9}}), b"retry: 10\n\n",
        event({"type": "response.created", "response": {}}), event({"type": "message_start"}),
        event(delta(tool_calls=[])), b"\n\n",
    ],
)  # fmt: skip
def test_an_event_without_content_is_no_first_token(quiet: bytes) -> None:
    """Headers, roles and pings come before the engine has computed anything."""
    assert not fed(quiet).first_token
    assert fed(quiet, TOKEN).first_token


@pytest.mark.parametrize(
    "said",
    [
        TOKEN, event({"choices": [{"text": "x"}]}), event(delta(reasoning_content="x")),
        event(delta(tool_calls=[{"index": 0}])), event({"type": "response.output_text.delta", "delta": "x"}),
        event({"type": "content_block_delta"}), event({"token": {"text": "x"}}), event("not json"),
        TOKEN.replace(b"\n\n", b"\r\n\r\n"), b"event: x\r\ndata: plain\r\n\r\n", event({"choices": None}),
    ],
)  # fmt: skip
def test_generated_content_is_the_first_token(said: bytes) -> None:
    assert fed(ROLE, said).first_token


def test_the_first_token_is_seen_however_the_bytes_are_cut() -> None:
    """Characters and events straddle chunks."""
    stream = ROLE + TOKEN
    observer = StreamObserver()
    for at in range(len(stream) - 1):
        observer.feed(stream[at : at + 1])
        assert not observer.first_token
    observer.feed(stream[-1:])
    assert observer.first_token


@pytest.mark.parametrize("size", [1, 2, 3, 7, 10_000])
@pytest.mark.parametrize("end", ["\n\n", "\r\n\r\n"])
def test_tokens_are_counted_across_chunks(size: int, end: str) -> None:
    stream = (ROLE + TOKEN * 9 + FINISH + DONE).replace(b"\n\n", end.encode())
    observer = fed(*(stream[at : at + size] for at in range(0, len(stream), size)))
    assert observer.generated() == 9


@pytest.mark.parametrize("size", [97, 4096, 9000, 40_000])
@pytest.mark.parametrize("end", ["\n\n", "\r\n\r\n"])
@pytest.mark.parametrize("before", [0, 500])
def test_tokens_are_counted_also_when_they_are_no_longer_kept(size: int, end: str, before: int) -> None:
    """Cut anywhere, and however much came before the first of them."""
    stream = ROLE + b": ping\n\n" * before + TOKEN * 1999 + FINISH + USAGE + DONE
    stream = stream.replace(b"\n\n", end.encode())
    observer = fed(*(stream[at : at + size] for at in range(0, len(stream), size)))
    assert observer.report() == Report(prompt=10, cached=8, generated=7)
    assert observer.generated() == 1999


def test_a_stream_without_a_token_generated_nothing() -> None:
    assert fed(ROLE, FINISH, DONE).generated() == 0


def test_a_stream_that_breaks_off_within_an_event_keeps_its_tokens() -> None:
    assert fed(ROLE, TOKEN * 2 + DONE[:-1]).generated() == 2
    assert fed(ROLE, TOKEN * 2, FINISH, DONE[:7]).generated() == 2


@pytest.mark.parametrize(
    "said",
    [b'data: {"choices":\ndata: [{"text": "x"}]}\n\n', b'event: x\ndata:{"type": "content_block_delta"}\n\n'],
)
def test_an_event_may_have_several_lines(said: bytes) -> None:
    assert fed(said).first_token
    assert not fed(said.replace(b'"x"', b'""').replace(b"content_block_delta", b"ping")).first_token


@pytest.mark.parametrize("value", ["0", "false", "7", '{"a": null}', '["x"]', '"\\ud800"'])
def test_content_of_an_unknown_shape_counts(value: str) -> None:
    assert fed(event('{"choices": [{"text": VALUE}]}'.replace("VALUE", value))).first_token


def test_an_endless_event_without_an_end_counts_as_the_first_token() -> None:
    """Unknown streams pass; they are not parsed for ever."""
    assert fed(b"data: " + b"x" * 70_000).first_token


def test_the_report_is_read_from_the_last_events() -> None:
    observer = fed(ROLE, TOKEN * 3000, FINISH, USAGE, DONE)
    assert observer.report() == Report(prompt=10, cached=8, generated=7)


def test_our_own_event_fits_only_after_a_whole_one() -> None:
    assert StreamObserver().at_boundary()
    assert fed(ROLE, TOKEN).at_boundary()
    assert fed(b": ping\r\n\r\n").at_boundary()
    assert not fed(ROLE, TOKEN[:20]).at_boundary()
    assert not fed(TOKEN[:-1]).at_boundary()


def test_nothing_fits_into_a_compressed_stream() -> None:
    assert not fed(gzip.compress(TOKEN), observer=StreamObserver(encoding=b"gzip")).at_boundary()


def compressed(encoding: str, *pieces: bytes) -> list[bytes]:
    wbits = {"gzip": 31, "deflate": 15, "raw": -15}[encoding]
    zipper = zlib.compressobj(wbits=wbits)
    chunks = [zipper.compress(piece) + zipper.flush(zlib.Z_SYNC_FLUSH) for piece in pieces]
    return [*chunks, zipper.flush()]


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "raw"])
def test_a_compressed_stream_is_read_along(encoding: str) -> None:
    observer = StreamObserver(encoding=b"gzip" if encoding == "gzip" else b"deflate")
    role, token, usage, end = compressed(encoding, ROLE, TOKEN, USAGE)
    observer.feed(role)
    assert not observer.first_token
    observer.feed(token)
    assert observer.first_token
    assert fed(usage, end, observer=observer).report() == Report(prompt=10, cached=8, generated=7)


@pytest.mark.parametrize(
    ("encoding", "data"), [(b"br", b"\x0b\x02\x80"), (b"gzip", b"no gzip at all"), (b"gzip, br", b"x")]
)
def test_what_cannot_be_read_counts_from_its_first_byte(encoding: bytes, data: bytes) -> None:
    assert fed(data, observer=StreamObserver(encoding=encoding)).first_token


def test_a_bomb_is_not_followed() -> None:
    bomb = gzip.compress(b"data: " + b"0" * 30_000_000)
    assert fed(bomb, observer=StreamObserver(encoding=b"gzip")).first_token


def test_a_reply_that_is_no_stream_begins_with_its_first_byte() -> None:
    assert fed(b"{", observer=observer_for(200, b"application/json", b"")).first_token
    assert fed(b"{", observer=observer_for(503, SSE, b"")).first_token
    assert not observer_for(200, SSE, b"").first_token


@pytest.mark.parametrize("padding", [10, 100_000])
def test_the_usage_of_a_json_reply_is_found_in_short_and_long_ones(padding: int) -> None:
    reply = json.dumps(
        {
            "choices": [{"message": {"content": "x" * padding + '"usage": {"prompt_tokens": 1}'}}],
            "usage": {
                "prompt_tokens": 10,
                "completion_tokens": 7,
                "prompt_tokens_details": {"cached_tokens": 8},
            },
        }
    ).encode()
    observer = BodyObserver(keep=True)
    for at in range(0, len(reply), 1000):
        observer.feed(reply[at : at + 1000])
    assert observer.report() == Report(prompt=10, cached=8, generated=7)


def test_an_error_reports_nothing() -> None:
    body = b'{"usage": {"prompt_tokens": 1}}'
    assert fed(body, observer=observer_for(500, b"application/json", b"")).report() is None


@pytest.mark.parametrize(
    ("encoding", "chunk"),
    [(b"br", b"x" * 40), (b"gzip", b"no gzip"), (b"", b"data: 5\n\n"), (b"", b'data: {"text":"a"}\n\n' * 50)],
)
def test_what_is_kept_of_a_stream_has_a_bound(encoding: bytes, chunk: bytes) -> None:
    """Also of one that cannot be read along, or comes in the smallest of pieces: it may run for days."""
    observer = observer_for(200, b"text/event-stream", encoding)
    tracemalloc.start()
    try:
        for _ in range(20_000):
            observer.feed(chunk)
        kept_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept_bytes < 40 * 1024
