"""One request is one request: what two readers could frame in two ways is refused, with all after it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

import pytest

from tests.security.strict_http import replies_in
from tests.security.target import CHAT, KEY, Target, code_of, exchange, good
from tests.support.answers import Stream
from tests.support.client import Call, chat_body

if TYPE_CHECKING:
    from tests.security.strict_http import Message

pytestmark = pytest.mark.timeout(90)

BODY: Final = json.dumps(chat_body(stream=False)).encode()
SMUGGLED: Final = good(prompt="smuggled")
CHUNKED: Final = b"transfer-encoding: chunked"


def post(*fields: bytes, body: bytes = b"", line: bytes = b"POST /v1/chat/completions HTTP/1.1") -> bytes:
    """Return a request with a good key whose framing is the caller's business."""
    head = [line, b"host: gateway", b"authorization: Bearer " + KEY.encode(), *fields]
    return b"".join(field + b"\r\n" for field in head) + b"\r\n" + body


def chunks(body: bytes, *, size: bytes | None = None, last: bytes = b"0\r\n\r\n") -> bytes:
    return (b"%x" % len(body) if size is None else size) + b"\r\n" + body + b"\r\n" + last


def length(value: bytes) -> bytes:
    return b"content-length: " + value


SIZE: Final = b"%d" % len(BODY)

IN_DOUBT: Final[dict[str, bytes]] = {
    "length_then_chunked": post(length(SIZE), CHUNKED, body=chunks(BODY)),
    "chunked_then_length": post(CHUNKED, length(SIZE), body=chunks(BODY)),
    "length_0_then_chunked": post(length(b"0"), CHUNKED, body=chunks(BODY)),
    "two_lengths": post(length(SIZE), length(b"%d" % (len(BODY) + 5)), body=BODY),
    "two_equal_lengths": post(length(SIZE), length(SIZE), body=BODY),
    "a_list_of_lengths": post(length(SIZE + b", " + SIZE), body=BODY),
    "length_with_a_sign": post(length(b"+" + SIZE), body=BODY),
    "length_below_zero": post(length(b"-1"), body=BODY),
    "length_in_hex": post(length(b"0x%x" % len(BODY)), body=BODY),
    "length_with_a_space_within": post(length(b"1 " + SIZE), body=BODY),
    "length_with_an_underscore": post(length(b"1_0"), body=BODY),
    "length_of_nothing": post(length(b""), body=BODY),
    "length_beyond_64_bits": post(length(b"18446744073709551617"), body=BODY),
    "length_with_a_space_before_the_colon": post(b"content-length : " + SIZE, body=BODY),
    "length_folded": post(b"content-length:\r\n " + SIZE, body=BODY),
    "chunked_with_a_space_before_the_colon": post(b"transfer-encoding : chunked", body=chunks(BODY)),
    "chunked_with_a_tab_before_the_colon": post(b"transfer-encoding\t: chunked", body=chunks(BODY)),
    "chunked_folded": post(b"transfer-encoding:\r\n chunked", body=chunks(BODY)),
    "another_header_folded": post(length(SIZE), b"x-a: 1\r\n continued: 2", body=BODY),
    "xchunked": post(b"transfer-encoding: xchunked", body=chunks(BODY)),
    "chunked_in_quotes": post(b'transfer-encoding: "chunked"', body=chunks(BODY)),
    "chunked_with_a_vertical_tab": post(b"transfer-encoding: \x0bchunked", body=chunks(BODY)),
    "chunked_not_last": post(b"transfer-encoding: chunked, identity", body=chunks(BODY)),
    "chunked_not_last_of_two": post(CHUNKED, b"transfer-encoding: identity", body=chunks(BODY)),
    "chunked_twice_in_a_list": post(b"transfer-encoding: chunked, chunked", body=chunks(BODY)),
    "chunked_twice": post(CHUNKED, CHUNKED, body=chunks(BODY)),
    "zipped_and_chunked": post(b"transfer-encoding: gzip, chunked", body=chunks(BODY)),
    "identity": post(b"transfer-encoding: identity", body=BODY),
    "identity_with_a_length": post(b"transfer-encoding: identity", length(SIZE), body=BODY),
    "coding_of_nothing": post(b"transfer-encoding:", length(SIZE), body=BODY),
    "chunked_in_http_1_0": post(CHUNKED, body=chunks(BODY), line=b"POST /v1/chat/completions HTTP/1.0"),
    "chunk_size_that_overflows": post(CHUNKED, body=chunks(BODY, size=b"1%016x" % len(BODY))),
    "chunk_size_of_all_ones": post(CHUNKED, body=chunks(BODY, size=b"f" * 16)),
    "chunk_size_below_zero": post(CHUNKED, body=chunks(BODY, size=b"-%x" % len(BODY))),
    "chunk_size_with_a_sign": post(CHUNKED, body=chunks(BODY, size=b"+%x" % len(BODY))),
    "chunk_size_with_a_prefix": post(CHUNKED, body=chunks(BODY, size=b"0x%x" % len(BODY))),
    "chunk_size_with_a_space_before": post(CHUNKED, body=chunks(BODY, size=b" %x" % len(BODY))),
    "chunk_size_of_nothing": post(CHUNKED, body=chunks(BODY, size=b"")),
    "chunk_extension_with_a_bare_line_feed": post(CHUNKED, body=chunks(BODY, size=b"%x;a\nb" % len(BODY))),
    "chunk_size_with_a_bare_line_feed": post(CHUNKED, body=b"%x\n" % len(BODY) + BODY + b"\r\n0\r\n\r\n"),
    "chunk_longer_than_its_size": post(CHUNKED, body=chunks(BODY + b"x", size=b"%x" % len(BODY))),
    "chunk_ended_by_a_bare_line_feed": post(CHUNKED, body=b"%x\r\n" % len(BODY) + BODY + b"\n0\r\n\r\n"),
    "trailer_of_framing": post(CHUNKED, body=chunks(BODY, last=b"0\r\ncontent-length: 3\r\n\r\n")),
    "bare_line_feeds": post(length(SIZE), body=BODY).replace(b"\r\n", b"\n"),
    "bare_line_feed_in_a_head": post(length(SIZE), b"x-a: 1\nx-b: 2", body=BODY),
    "bare_line_feeds_at_the_end_of_a_head": post(length(SIZE), body=BODY).replace(b"\r\n\r\n", b"\n\n"),
    "bare_carriage_return_in_a_value": post(length(SIZE), b"x-a: 1\rx-b: 2", body=BODY),
    "nul_in_a_value": post(length(SIZE), b"x-a: 1\x002", body=BODY),
    "nul_in_a_name": post(length(SIZE), b"x\x00a: 1", body=BODY),
    "control_character_in_a_value": post(length(SIZE), b"x-a: \x01", body=BODY),
    "delete_in_a_value": post(length(SIZE), b"x-a: \x7f", body=BODY),
    "space_in_a_name": post(length(SIZE), b"x a: 1", body=BODY),
    "no_name": post(length(SIZE), b": 1", body=BODY),
    "no_colon": post(length(SIZE), b"nonsense", body=BODY),
    "space_before_the_first_header": post(length(SIZE), body=BODY).replace(b"\r\nhost", b"\r\n host"),
    "http_0_9": b"GET /v1/models\r\n\r\n",
    "http_0_9_in_words": post(length(SIZE), body=BODY, line=b"POST /v1/chat/completions HTTP/0.9"),
    "http_2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "http_1_2": post(length(SIZE), body=BODY, line=b"POST /v1/chat/completions HTTP/1.2"),
    "http_3_1": post(length(SIZE), body=BODY, line=b"POST /v1/chat/completions HTTP/3.1"),
    "no_version": post(length(SIZE), body=BODY, line=b"POST /v1/chat/completions"),
}


@pytest.mark.parametrize("case", IN_DOUBT)
async def test_what_can_be_framed_in_two_ways_is_refused_and_ends_the_connection(
    target: Target, case: str
) -> None:
    """Whoever stands in front may have read it the other way: what follows could be anybody's request."""
    received, ended = await exchange(target.url, IN_DOUBT[case] + SMUGGLED)
    (reply,) = replies_in(received)
    assert (reply.start, code_of(reply)) == ("400", "bad_request")
    assert reply.values("connection") == ["close"]
    assert ended == "closed"
    assert target.arrived() == []


@pytest.mark.parametrize("case", IN_DOUBT)
async def test_a_good_request_before_one_in_doubt_is_at_most_served_itself(target: Target, case: str) -> None:
    """Its neighbour on the connection must not turn its reply into two, nor get a turn itself."""
    received, ended = await exchange(
        target.url, good(close=False, prompt="first") + IN_DOUBT[case] + SMUGGLED
    )
    replies = replies_in(received)
    assert [reply.start for reply in replies] in (["400"], ["200", "400"])
    assert ended == "closed"
    assert {prompt_of(request) for request in target.arrived()} <= {"first"}


def prompt_of(request: Message) -> str:
    return str(json.loads(request.body)["messages"][0]["content"])


ODD_BUT_CLEAR: Final[dict[str, bytes]] = {
    "length_with_space_around": post(b"content-length: \t " + SIZE + b" \t", body=BODY),
    "length_with_zeros_before": post(length(b"000" + SIZE), body=BODY),
    "length_with_a_thousand_digits": post(length(SIZE.rjust(5000, b"0")), body=BODY),
    "names_in_any_case": post(b"CONTENT-length: " + SIZE, body=BODY),
    "chunked_in_any_case": post(b"Transfer-Encoding: ChunKed", body=chunks(BODY)),
    "chunks_of_one_byte": post(CHUNKED, body=b"".join(b"1\r\n%c\r\n" % byte for byte in BODY) + b"0\r\n\r\n"),
    "chunk_size_with_zeros_before": post(CHUNKED, body=chunks(BODY, size=b"0000%x" % len(BODY))),
    "chunk_extension": post(CHUNKED, body=chunks(BODY, size=b'%x;a=b;c="d;e"' % len(BODY))),
    "chunk_extension_of_60_kb": post(CHUNKED, body=chunks(BODY, size=b"%x;" % len(BODY) + b"a" * 60_000)),
    "name_with_an_underscore": post(
        length(SIZE), b"content_length: 5", b"transfer_encoding: chunked", body=BODY
    ),
    "empty_lines_before": b"\r\n\r\n" + post(length(SIZE), body=BODY),
    "two_spaces_in_the_request_line": post(
        length(SIZE), body=BODY, line=b"POST  /v1/chat/completions  HTTP/1.1"
    ),
    "trailers": post(
        CHUNKED,
        body=chunks(BODY, last=b"0\r\nx-trailer: 1\r\nx-api-key: another\r\nhost: b\r\n\r\n"),
    ),
}


@pytest.mark.parametrize("case", ODD_BUT_CLEAR)
@pytest.mark.parametrize("cut_in_bytes", [False, True], ids=["at_once", "byte_by_byte"])
async def test_what_is_odd_but_clear_reaches_the_engine_as_one_plain_request(
    target: Target, case: str, *, cut_in_bytes: bool
) -> None:
    """Whatever the caller's framing was, the engine gets the body with one length, and nothing else of it."""
    sent = ODD_BUT_CLEAR[case]
    pieces = [sent[at : at + 1] for at in range(len(sent))] if cut_in_bytes and len(sent) < 2000 else [sent]
    received, ended = await exchange(target.url, *pieces, SMUGGLED)
    assert [reply.start for reply in replies_in(received)] == ["200", "200"]
    assert ended == "closed"
    odd, after = target.arrived()
    assert (odd.start, odd.body) == (f"POST {CHAT}", BODY)
    assert odd.values("content-length") == [str(len(BODY))]
    assert not {name for name, _ in odd.headers} & {
        "transfer-encoding", "transfer_encoding", "content_length", "x-trailer", "trailer", "x-api-key",
    }  # fmt: skip
    assert prompt_of(after) == "smuggled"


async def test_what_follows_the_last_request_of_a_connection_is_not_served(target: Target) -> None:
    """`Connection: close` ends what a client may say; more of it is none of the client's."""
    received, ended = await exchange(target.url, good(prompt="last"), SMUGGLED)
    assert [reply.start for reply in replies_in(received)] == ["200"]
    assert ended != "open"
    assert [prompt_of(request) for request in target.arrived()] == ["last"]


async def test_garbage_never_lands_within_the_reply_before_it(target: Target) -> None:
    """A 400 in the midst of a stream would be read as its content, or as the reply to another request."""
    streamed = good(close=False, body=chat_body(prompt="first", stream=True))
    target.engine.answer = Stream(tokens=None, gap_s=0.02)
    with await Call.connect(target.url) as call:
        await call.send(streamed)
        assert await call.first_token()
        await call.send(good(close=False, prompt="second") + b"\x00 nonsense \r\n\r\n" + SMUGGLED)
        body = await call.rest()
    assert call.ended != "clean"
    assert b"HTTP/1.1" not in body
    assert b"bad_request" not in body
    assert {prompt_of(request) for request in target.arrived()} == {"first"}


async def test_a_request_within_a_refused_body_is_never_served(target: Target) -> None:
    """What is refused unread is thrown away as what it was framed to be: a body."""
    for refused in (
        good("/v1/x", key="wrong", close=False, body=SMUGGLED * 50),
        good("/v1/x", close=False, body=SMUGGLED, headers=[("content-length", "1000000000")]),
        good("/elsewhere", close=False, body=SMUGGLED * 50),
        good("/admin/v1/fleets", close=False, body=SMUGGLED * 50),
        good("/v1/models", close=False, body=SMUGGLED * 50),
        good("/healthz", close=False, body=SMUGGLED * 50),
    ):
        received, _ = await exchange(target.url, refused, quiet_s=1.0)
        (reply,) = replies_in(received)
        assert int(reply.start) in (401, 403, 404, 405, 413), reply
    assert target.arrived() == []
