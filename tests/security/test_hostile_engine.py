"""An engine that says what it should not: the client gets one plain reply, and its neighbours theirs."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.security.strict_http import Message, replies_in
from tests.security.target import Target, code_of, exchange, good
from tests.support.answers import Whole
from tests.support.client import Call
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from tests.support.reply import Reply

pytestmark = pytest.mark.timeout(90)

OK: Final = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\n"
# What an attacker in the engine would like the next client to take for its own reply.
POISON: Final = OK + b"x-poison: 1\r\ncontent-length: 6\r\n\r\npoison"


@dataclass(frozen=True)
class Says:
    """Sends bytes as they are, one piece after the other, then closes, resets or waits for more requests."""

    pieces: tuple[bytes, ...]
    end: str = "close"

    async def __call__(self, reply: Reply) -> None:
        for piece in self.pieces:
            await reply.raw(piece)
            await reply.pause(0.05)
        if self.end == "close":
            reply.close()


def says(*pieces: bytes, end: str = "close") -> Says:
    return Says(pieces, end)


async def ask(target: Target, **request: Any) -> tuple[list[Message], str]:
    """Return the replies that a strict client sees, and how the connection ended; a cut one has none."""
    received, ended = await exchange(target.url, good(**request))
    return replies_in(received, [request.get("method", "POST")]), ended


BAD_HEADS: Final = {
    "nothing": b"",
    "no_http": b"hello\r\n\r\n",
    "ssh": b"SSH-2.0-OpenSSH_9.2\r\n",
    "tls_alert": b"\x15\x03\x03\x00\x02\x02\x28",
    "http_2": b"\x00\x00\x12\x04\x00\x00\x00\x00\x00" + b"\x00" * 18,
    "half_a_head": b"HTTP/1.1 200 OK\r\ncontent-le",
    "status_of_words": b"HTTP/1.1 OK 200\r\ncontent-length: 0\r\n\r\n",
    "status_of_four_digits": b"HTTP/1.1 2000 OK\r\ncontent-length: 0\r\n\r\n",
    "status_below_100": b"HTTP/1.1 042 OK\r\ncontent-length: 0\r\n\r\n",
    "status_600": b"HTTP/1.1 600 OK\r\ncontent-length: 0\r\n\r\n",
    "status_999": b"HTTP/1.1 999 OK\r\ncontent-length: 0\r\n\r\n",
    "switches_protocols": b"HTTP/1.1 101 Now\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n\x81\x05hello",
    "continues_for_ever": b"HTTP/1.1 100 Continue\r\n\r\n" * 100,
    "nul_in_a_name": OK + b"x\x00y: 1\r\ncontent-length: 2\r\n\r\nok",
    "space_in_a_name": OK + b"x y: 1\r\ncontent-length: 2\r\n\r\nok",
    "no_colon": OK + b"nonsense\r\ncontent-length: 2\r\n\r\nok",
    "length_below_zero": OK + b"content-length: -1\r\n\r\nok",
    "length_of_words": OK + b"content-length: two\r\n\r\nok",
    "length_that_overflows": OK + b"content-length: 99999999999999999999999\r\n\r\nok",
    "two_lengths": OK + b"content-length: 2\r\ncontent-length: 3\r\n\r\nok!",
    "a_list_of_lengths": OK + b"content-length: 2, 3\r\n\r\nok!",
    "head_of_1_mb": OK + b"x-long: " + b"a" * 1_000_000 + b"\r\ncontent-length: 2\r\n\r\nok",
    "head_of_100_000_headers": OK + b"x-a: 1\r\n" * 100_000 + b"content-length: 2\r\n\r\nok",
    "status_line_of_1_mb": b"HTTP/1.1 200 " + b"a" * 1_000_000 + b"\r\ncontent-length: 2\r\n\r\nok",
}


@pytest.mark.parametrize("case", BAD_HEADS)
async def test_a_head_that_makes_no_sense_is_a_502(target: Target, case: str) -> None:
    target.engine.answer = says(BAD_HEADS[case])
    (reply,), ended = await ask(target)
    assert (reply.start, code_of(reply)) == ("502", "engine_error")
    assert ended == "closed"


# What a strict client would read in two ways, or take for more than one reply.
TWO_WAYS: Final = {
    "two_equal_lengths": OK + b"content-length: 2\r\ncontent-length: 2\r\n\r\nok",
    "length_and_chunks": OK + b"content-length: 2\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
    "shorter_length_and_chunks": OK
    + b"content-length: 1\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
    "chunks_and_longer_length": OK
    + b"transfer-encoding: chunked\r\ncontent-length: 9\r\n\r\n2\r\nok\r\n0\r\n\r\n",
    "unknown_coding": OK + b"transfer-encoding: xchunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
    "zipped_and_chunked": OK + b"transfer-encoding: gzip, chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
    "chunked_twice": OK
    + b"transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
    "space_before_the_colon": OK + b"content-length : 2\r\n\r\nok",
    "folded": OK + b"x-a: 1\r\n content-length: 1\r\ncontent-length: 2\r\n\r\nok",
    "bare_line_feeds": OK.replace(b"\r\n", b"\n") + b"content-length: 2\n\nok",
    "bare_carriage_return": OK + b"x-a: 1\rcontent-length: 9\r\ncontent-length: 2\r\n\r\nok",
    "line_end_injected": OK + b"x-a: 1\r\nset-cookie: stolen=1\r\ncontent-length: 2\r\n\r\nok",
    "nul_in_a_value": OK + b"x-a: 1\x002\r\ncontent-length: 2\r\n\r\nok",
    "trailers": OK + b"transfer-encoding: chunked\r\ntrailer: x-a\r\n\r\n2\r\nok\r\n0\r\nx-a: 1\r\n\r\n",
    "chunk_extension": OK + b"transfer-encoding: chunked\r\n\r\n2;a=b\r\nok\r\n0\r\n\r\n",
    "another_reply_behind": OK + b"content-length: 2\r\n\r\nok" + POISON,
    "another_reply_behind_chunks": OK + b"transfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n" + POISON,
    "body_behind_204": b"HTTP/1.1 204 No Content\r\n\r\n" + POISON,
    "body_behind_304": b"HTTP/1.1 304 Not Modified\r\ncontent-length: 6\r\n\r\npoison",
    "length_with_204": b"HTTP/1.1 204 No Content\r\ncontent-length: 6\r\n\r\n",
    "http_1_0": b"HTTP/1.0 200 OK\r\ncontent-type: text/plain\r\n\r\nok",
    "lowercase_http": b"http/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok",
    "reason_of_control_characters": b"HTTP/1.1 200 \x01\x02\r\ncontent-length: 2\r\n\r\nok",
    "continue_first": b"HTTP/1.1 100 Continue\r\nx-a: 1\r\n\r\n" + OK + b"content-length: 2\r\n\r\nok",
    "early_hints_first": b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n"
    + OK
    + b"content-length: 2\r\n\r\nok",
}
BODIES: Final = {"", "ok", "2\r\nok\r\n0\r\n\r\n"}


@pytest.mark.parametrize("case", TWO_WAYS)
@pytest.mark.parametrize("keeps", [True, False], ids=["kept", "closed"])
async def test_a_client_never_sees_two_ways_to_read_a_reply(
    target: Target, case: str, *, keeps: bool
) -> None:
    """Either one plain reply, or our own 502, or a connection that is cut where the engine broke its word."""
    target.engine.answer = says(TWO_WAYS[case], end="keep" if keeps else "close")
    with await Call.connect(target.url) as call:
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(call.sock, good())
        received = b""
        async with asyncio.timeout(15):
            while data := await loop.sock_recv(call.sock, 65536):
                received += data
    assert b"poison" not in received
    assert received.count(b"HTTP/1.1 ") == 1, received
    head, _, rest = received.partition(b"\r\n\r\n")
    if b"502 Bad Gateway" in head:
        (reply,) = replies_in(received)
        assert code_of(reply) == "engine_error"
        return
    names = [line.partition(b":")[0] for line in head.split(b"\r\n")[1:]]
    assert names.count(b"content-length") + names.count(b"transfer-encoding") <= 1
    assert not {b"trailer", b"x-hidden"} & set(names)
    try:
        (reply,) = replies_in(received)
    except AssertionError:
        # Cut in the middle: a strict client knows that it is not whole.
        assert b"promised" in repr(rest).encode() or rest[-5:] != b"0\r\n\r\n"
    else:
        assert reply.body.decode() in BODIES


@pytest.mark.parametrize("delay_s", [0.0, 0.1])
@pytest.mark.parametrize("framing", ["length", "chunks"])
async def test_bytes_that_an_engine_sends_unasked_are_nobodys_reply(
    target: Target, framing: str, *, delay_s: float
) -> None:
    """An engine's connection serves one caller after the other: a reply too many would be the next one's."""
    body = {
        "length": b"content-length: 2\r\n\r\nok",
        "chunks": b"transfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
    }

    async def one_too_many(reply: Reply) -> None:
        await reply.raw(OK + body[framing])
        await reply.pause(delay_s)
        await reply.raw(POISON)

    target.engine.choose = lambda seen: one_too_many if b"first" in seen.body else None
    for _ in range(5):
        (reply,), _ = await ask(target, prompt="first")
        assert (reply.start, reply.body) == ("200", b"ok")
        await wait_until(lambda: target.engine.open == 0, "the engine has said all")
        (reply,), _ = await ask(target, prompt="second")
        assert reply.start == "200"
        assert not reply.values("x-poison")
        assert b"token" in reply.body


async def test_a_reply_to_head_has_no_body_whatever_the_engine_sends(target: Target) -> None:
    target.engine.answer = says(OK + b"content-length: 6\r\n\r\npoison", end="keep")
    (reply,), ended = await ask(target, method="HEAD", path="/v1/models/x", body=None)
    assert (reply.start, reply.body) in (("200", b""), ("502", b""))
    assert not reply.values("x-poison")
    assert ended == "closed"


BAD_BODIES: Final = {
    "shorter_than_its_length": OK + b"content-length: 100\r\n\r\nok",
    "chunk_size_of_words": OK + b"transfer-encoding: chunked\r\n\r\n2\r\nok\r\nzz\r\n",
    "chunk_size_below_zero": OK + b"transfer-encoding: chunked\r\n\r\n2\r\nok\r\n-2\r\nok\r\n0\r\n\r\n",
    "chunk_size_that_overflows": OK
    + b"transfer-encoding: chunked\r\n\r\n2\r\nok\r\n10000000000000002\r\nok\r\n0\r\n\r\n",
    "chunk_longer_than_its_size": OK + b"transfer-encoding: chunked\r\n\r\n2\r\nok, and more\r\n0\r\n\r\n",
    "no_last_chunk": OK + b"transfer-encoding: chunked\r\n\r\n2\r\nok\r\n",
    "last_chunk_cut": OK + b"transfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n",
}


@pytest.mark.parametrize("case", BAD_BODIES)
async def test_a_body_that_breaks_its_word_is_cut_and_never_ended_by_us(target: Target, case: str) -> None:
    """An answer that was cut in the middle must not look complete."""
    target.engine.answer = says(BAD_BODIES[case])
    received, _ = await exchange(target.url, good())
    if received.startswith(b"HTTP/1.1 502 "):
        return
    with pytest.raises(AssertionError):
        replies_in(received)
    assert not received.endswith(b"0\r\n\r\n")


HEADERS: Final[tuple[tuple[str, str], ...]] = (
    ("connection", "x-named, keep-alive"),
    ("x-named", "1"),
    ("keep-alive", "timeout=9"),
    ("proxy-authenticate", "Basic"),
    ("proxy-connection", "close"),
    ("te", "trailers"),
    ("trailer", "x-sum"),
    ("upgrade", "h2c"),
    ("tenure-refused", "line_full"),
    ("tenure-lease", "forged"),
    ("x-request-id", "forged"),
    ("x-client-request-id", "forged"),
)


async def test_an_engine_cannot_speak_for_the_gateway_or_for_the_connection(target: Target) -> None:
    target.engine.answer = Whole(body=b"ok", headers=(*HEADERS, ("x-kept", "1"), ("set-cookie", "a=1")))
    (reply,), _ = await ask(target)
    assert (reply.start, reply.body) == ("200", b"ok")
    assert (reply.values("x-kept"), reply.values("set-cookie")) == (["1"], ["a=1"])
    names = {name for name, _ in reply.headers}
    gone = {"x-named", "keep-alive", "proxy-authenticate", "proxy-connection", "te", "trailer", "upgrade"}
    assert not names & {*gone, "tenure-refused", "x-client-request-id"}
    assert "forged" not in [value for _, value in reply.headers]
    assert reply.values("connection") == ["close"]  # the client's own wish


@pytest.mark.parametrize("header", ["x-bad: a\x01b", "x-bad: a\x7fb", "x\x01bad: 1", "x(bad): 1", 'x"bad: 1'])
async def test_a_header_that_no_client_should_see_is_lost_or_fails_the_reply(
    target: Target, header: str
) -> None:
    target.engine.answer = says(OK + header.encode() + b"\r\ncontent-length: 2\r\n\r\nok")
    (reply,), _ = await ask(target)
    assert reply.start in ("200", "502")
    assert not [name for name, _ in reply.headers if "bad" in name]


async def test_a_neighbours_request_is_served_well_beside_an_engine_gone_mad(target: Target) -> None:
    """One caller's broken reply must cost the others neither their place nor their engine."""
    # A framed reply whose status alone makes no sense leaves a connection that is as good as before.
    bad = [sent for name, sent in {**BAD_HEADS, **BAD_BODIES}.items() if not name.startswith("status_")]
    for sent in bad:
        target.engine.choose = lambda seen, sent=sent: None if b"honest" in seen.body else says(sent)
        (broken, _), (honest, _) = await asyncio.gather(
            exchange(target.url, good(prompt="x")), exchange(target.url, good(prompt="honest"))
        )
        assert broken.startswith((b"HTTP/1.1 502", b"HTTP/1.1 200"))
        (reply,) = replies_in(honest)
        assert reply.start == "200", sent[:100]
