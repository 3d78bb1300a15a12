"""A request made to be expensive costs about what an honest one of its size does, in time and in memory.

Counted in CPU seconds and resident bytes of the gateway's own process; nobody's patience is measured.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.security.strict_http import replies_in
from tests.security.target import CHAT, Target, cpu_s, exchange, good, resident_bytes
from tests.support.admin_client import ADMIN, TOKEN
from tests.support.answers import EVENT_STREAM, JSON, Stream, Usage, Whole, event
from tests.support.client import Call, chat_body
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from tests.support.reply import Reply

pytestmark = pytest.mark.timeout(90)

MIB: Final = 1 << 20
STREAM_BYTES: Final = 4 * MIB
BODY_BYTES: Final = 10 * MIB - 200


@pytest.fixture(scope="module")
def settings() -> dict[str, Any]:
    return {
        "admin": ADMIN,
        "budgets": dict.fromkeys(("stall_ms", "first_token_ms", "idle_ms", "total_ms"), 60_000),
    }


@contextmanager
def at_most(target: Target, *, cpu: float, mib: int) -> Iterator[None]:
    """Fail when what happens within the block costs the gateway more than this."""
    used_s, before = cpu_s(target.gateway), resident_bytes(target.gateway)
    yield
    assert cpu_s(target.gateway) - used_s <= cpu
    assert resident_bytes(target.gateway) - before <= mib * MIB


def filled(pattern: bytes, before: bytes, after: bytes) -> bytes:
    """Repeat `pattern` until the body is as long as may be."""
    return before + pattern * ((BODY_BYTES - len(before) - len(after)) // len(pattern)) + after


BODIES: Final = {
    "ten_million_parts": filled(b"0,", b'{"model":"demo","messages":[', b"0]}"),
    "empty_parts": filled(b"{},", b'{"model":"demo","input":[', b"{}]}"),
    "tokens_as_numbers": filled(b"12345,", b'{"model":"demo","prompt":[', b"1]}"),
    "ten_million_fields": filled(b'"":0,', b'{"model":"demo",', b'"a":0}'),
    "one_string": filled(b"a", b'{"model":"demo","prompt":"', b'"}'),
    "one_string_of_escapes": filled(b"\\u0041", b'{"model":"demo","prompt":"', b'"}'),
    "one_number": filled(b"9", b'{"model":"demo","prompt":', b"}"),
    "brackets": filled(b"[", b'{"model":"demo","messages":', b""),
    "braces": filled(b'{"a":', b'{"model":"demo","messages":', b""),
    "a_long_model": filled(b"m", b'{"model":"', b'"}'),
    "white_space": filled(b" ", b"", b'{"model":"demo"}'),
    "commas_in_a_text": filled(b"a, ", b'{"model":"demo","messages":[{"role":"user","content":"', b'"}]}'),
}


@pytest.mark.parametrize("case", BODIES)
async def test_no_json_of_the_largest_size_blocks_the_gateway(target: Target, case: str) -> None:
    """A second in the event loop is a second for every stream of the replica."""
    with at_most(target, cpu=1.5, mib=80):
        received, _ = await exchange(target.url, good(body=BODIES[case]))
    (reply,) = replies_in(received)
    assert reply.start in ("200", "400"), reply
    if reply.start == "200":
        assert target.engine.requests[-1].body_sha256 == hashlib.sha256(BODIES[case]).hexdigest()


FORM: Final = [("content-type", "multipart/form-data; boundary=b")]
FORMS: Final = {
    "dispositions": b"content-disposition:",
    "dispositions_and_semicolons": b"content-disposition:;;;;;;",
    "dispositions_and_spaces": b"content-disposition:;" + b" " * 20,
    "fields_without_an_end": b"content-disposition:;name=model\r\n",
    "fields_with_headers": b"content-disposition:;name=model;\r\na: b\r\n",
    "semicolons": b";",
    "line_ends": b"\r\n",
}


@pytest.mark.parametrize("case", FORMS)
async def test_no_form_keeps_the_search_for_its_model_busy(target: Target, case: str) -> None:
    body = FORMS[case] * (100_000 // len(FORMS[case]))
    with at_most(target, cpu=1.0, mib=20):
        for _ in range(5):
            received, _ = await exchange(target.url, good("/v1/audio/translations", body=body, headers=FORM))
            assert replies_in(received)[0].start == "200"


QUERIES: Final = {
    "parameters": "a&" * 30_000,
    "encoded": "%61&" * 15_000,
    "keys": "key=1&" * 10_000,
    "encoded_keys": "k%65y=1&" * 7_500,
    "ampersands": "&" * 60_000,
    "percents": "%" * 60_000,
    "models": "model&" * 10_000,
}


@pytest.mark.parametrize("case", QUERIES)
async def test_a_stranger_cannot_keep_the_gateway_busy_with_a_query(target: Target, case: str) -> None:
    """What is looked at before the key is checked is open to everybody."""
    with at_most(target, cpu=0.6, mib=20):
        for _ in range(10):
            sent = good(f"{CHAT}?{QUERIES[case]}", key="wrong", body=b"x")
            received, _ = await exchange(target.url, sent)
            assert replies_in(received)[0].start == "401"


async def test_a_stranger_cannot_keep_the_gateway_busy_with_headers(target: Target) -> None:
    with at_most(target, cpu=1.5, mib=20):
        for headers in (
            [("connection", ",".join(f"a{n}" for n in range(9_000)))],
            [(f"x{n}", "") for n in range(7_000)],
            [("x", "")] * 10_000,
            [("_" * 1_000, "_")] * 50,
        ):
            for _ in range(5):
                received, _ = await exchange(target.url, good(key="wrong", headers=headers))
                assert replies_in(received)[0].start in ("401", "400")


DEPTHS: Final = (*range(1, 60, 7), *range(900, 1060, 3), 5_000, 10_000)


@pytest.mark.parametrize("shape", ["lists", "objects", "lists_in_messages", "unclosed"])
async def test_no_depth_of_json_is_an_error_of_ours(target: Target, shape: str) -> None:
    """Parsers give up at a depth of their own, and each at another."""
    target.engine.answer = Whole()
    with await Call.connect(target.url) as call:
        for depth in DEPTHS:
            value = {
                "lists": b"[" * depth + b"]" * depth,
                "objects": b'{"a":' * depth + b"1" + b"}" * depth,
                "lists_in_messages": b"[1," * depth + b"1" + b"]" * depth,
                "unclosed": b"[" * depth,
            }[shape]
            field = b"messages" if shape.endswith("messages") else b"total"
            body = b'{"model": "demo", "%s": %s}' % (field, value)
            for method, path, key in (("POST", CHAT, None), ("PATCH", "/admin/v1/fleets/demo", TOKEN)):
                more = {"key": key} if key else {}
                await call.send(good(path, method=method, body=body, close=False, **more))
                assert await call.head() in (200, 400), (depth, path)
                await call.rest()
                call.ended = None


@cache
def bomb(plain_bytes: int) -> bytes:
    """Return gzip of so many zeros, in a stream that any reader takes."""
    zipper = zlib.compressobj(9, wbits=31)
    block = b"\0" * MIB
    parts = [zipper.compress(block) for _ in range(plain_bytes // MIB)]
    return b"".join(parts) + zipper.flush()


class Zipped:
    """A reply with `coding` whose body is `body`, as a stream of events or as JSON."""

    def __init__(self, body: bytes, *, coding: str = "gzip", media: tuple[str, str] = EVENT_STREAM) -> None:
        self.body, self.coding, self.media = body, coding, media

    async def __call__(self, reply: Reply) -> None:
        await reply.head(200, (self.media, ("content-encoding", self.coding)))
        for at in range(0, len(self.body), 65536):
            await reply.piece(self.body[at : at + 65536])
        await reply.end()


@pytest.mark.parametrize("media", [EVENT_STREAM, JSON], ids=["stream", "json"])
@pytest.mark.parametrize("coding", ["gzip", "deflate", "x-gzip", "br", "gzip, gzip"])
async def test_a_reply_that_unzips_to_gigabytes_is_passed_on_and_not_followed(
    target: Target, coding: str, media: tuple[str, str]
) -> None:
    body = bomb(100 * MIB)
    target.engine.answer = Zipped(body, coding=coding, media=media)
    with at_most(target, cpu=1.0, mib=20):
        received, _ = await exchange(target.url, good())
    (reply,) = replies_in(received)
    assert (len(reply.body), reply.values("content-encoding")) == (len(body), [coding])


@pytest.mark.parametrize("media", [EVENT_STREAM, JSON], ids=["stream", "json"])
async def test_what_follows_the_end_of_a_zipped_reply_is_not_kept(
    target: Target, media: tuple[str, str]
) -> None:
    """An unzipper puts by whatever comes after its end, and copies all of it each time."""
    body = zlib.compress(b"data: {}\n\n", wbits=31) + b"\x01\x02\x03\x04" * (8 * MIB)
    target.engine.answer = Zipped(body, media=media)
    with at_most(target, cpu=4.0, mib=20):
        received, _ = await exchange(target.url, good(), patience_s=60)
    (reply,) = replies_in(received)
    assert len(reply.body) == len(body)


ENDLESS: Final = {
    "a_line": b"x" * 65536,
    "an_event": b"data: " + b"x" * 65536,
    "empty_events": b"\n\n" * 32768,
    "comments": b":\n\n" * 16384,
    "brackets": b"data: " + b"[" * 32768 + b"\n\n",
    "usages": b'data: {"usage":' * 4096,
    "role_only_deltas": event({"choices": [{"delta": {"role": "assistant"}}]}) * 1024,
}


@pytest.mark.parametrize("case", ENDLESS)
async def test_an_endless_stream_is_watched_at_a_bounded_price(target: Target, case: str) -> None:
    async def endless(reply: Reply) -> None:
        await reply.head(200, (EVENT_STREAM,))
        for _ in range(STREAM_BYTES // len(ENDLESS[case])):
            await reply.piece(ENDLESS[case])
        await reply.end()

    target.engine.answer = endless
    with at_most(target, cpu=4.0, mib=20):
        received, _ = await exchange(target.url, good(), patience_s=60)
    (reply,) = replies_in(received)
    assert len(reply.body) >= STREAM_BYTES - 65536 - len(ENDLESS[case])


async def test_a_prompt_that_hides_behind_a_cached_one_is_cold(target: Target) -> None:
    """Nothing that a client sends can make a request warm, whatever else the engine may read of it."""
    target.engine.answer = Stream(usage=Usage(prompt_tokens=100, cached_tokens=100))
    known = chat_body(prompt="known " * 500)

    async def class_of(path: str = CHAT, more: Mapping[str, Any] = {}) -> str:
        received, _ = await exchange(target.url, good(path, body={**known, **more}))
        (reply,) = replies_in(received)
        assert reply.start == "200"
        return reply.values("tenure-class")[0]

    async def is_warm() -> bool:
        return await class_of() == "warm"

    assert not await is_warm()
    await wait_until(is_warm, "the engine's word is known")
    hidden = "another prompt " * 5000
    assert await class_of("/v1/completions") == "cold"
    for field in ("prompt", "input", "documents", "tools", "system", "suffix", "chat_template", "functions"):
        assert await class_of(more={field: hidden}) == "cold", field
        assert await class_of(more={field: [hidden]}) == "cold", field
    assert await is_warm()
