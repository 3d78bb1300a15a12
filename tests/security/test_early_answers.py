"""An answer before the end of the request arrives whole, and what follows it is taken in within bounds."""

from __future__ import annotations

import asyncio
import gzip
import json
from typing import TYPE_CHECKING, Any, Final

import pytest

from services.gateway.protocol import LINGER_BYTES_MAX
from tests.security.strict_http import replies_in
from tests.security.target import CHAT, KEY, Target, code_of, cpu_s, exchange, good, resident_bytes
from tests.support.answers import Stream
from tests.support.client import Call, chat_body
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.timeout(90)

MAX_BYTES: Final = 200_000
MIB: Final = 1 << 20
CHUNKED: Final = ("transfer-encoding", "chunked")
EXPECT: Final = ("expect", "100-continue")


@pytest.fixture(scope="module")
def settings() -> dict[str, Any]:
    return {
        "gateway": {"max_body_bytes": MAX_BYTES},
        "budgets": {"stall_ms": 1000},
        "fleet": {"total": 1, "cold": 1},
        "admin": {"token": "the-admin-token"},
    }


def too_long(**request: Any) -> bytes:
    """Return a request with a body of 3 MB, more than the kernel buffers between the two ends."""
    body = json.dumps(chat_body(prompt="x" * 3_000_000)).encode()
    if request.pop("chunked", False):
        body = (
            b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in _pieces(body, 100_000)) + b"0\r\n\r\n"
        )
        request["headers"] = (CHUNKED, *request.get("headers", ()))
    return good(body=body, close=False, **request)


def _pieces(data: bytes, size: int) -> Iterator[bytes]:
    return (data[at : at + size] for at in range(0, len(data), size))


EARLY: Final[dict[str, tuple[dict[str, Any], str, str]]] = {
    "too_large": ({}, "413", "request_too_large"),
    "too_large_in_chunks": ({"chunked": True}, "413", "request_too_large"),
    "wrong_key": ({"key": "wrong"}, "401", "invalid_api_key"),
    "wrong_key_in_chunks": ({"key": "wrong", "chunked": True}, "401", "invalid_api_key"),
    "admin_without_token": ({"path": "/admin/v1/fleets"}, "401", "invalid_api_key"),
    "admin_too_large": ({"path": "/admin/v1/fleets", "key": "the-admin-token"}, "413", "request_too_large"),
    "admin_too_large_in_chunks": (
        {"path": "/admin/v1/fleets", "key": "the-admin-token", "chunked": True},
        "413",
        "request_too_large",
    ),
    "nothing_there": ({"path": "/elsewhere"}, "404", "not_found"),
    "nothing_there_in_chunks": ({"path": "/elsewhere", "chunked": True}, "404", "not_found"),
    "a_stop_of_nothing": ({"path": "/v1/requests/x", "method": "DELETE"}, "404", "unknown_request"),
}


@pytest.mark.parametrize("expects", [False, True], ids=["", "expects_100"])
@pytest.mark.parametrize("closes", [False, True], ids=["", "last_request"])
@pytest.mark.parametrize("case", EARLY)
async def test_a_client_that_goes_on_sending_reads_the_whole_answer(
    target: Target, case: str, *, expects: bool, closes: bool
) -> None:
    """A reset on the way back would turn a clear no into a broken network.

    Also for a client that asks whether it may send and then does not wait for the word.
    """
    request, status, code = EARLY[case]
    more = [*([EXPECT] if expects else []), *([("connection", "close")] if closes else [])]
    received, ended = await exchange(target.url, too_long(**{**request, "headers": more}), quiet_s=2.0)
    (reply,) = replies_in(received)
    assert (reply.start, code_of(reply)) == (status, code)
    assert ended == ("closed" if "close" in reply.values("connection") else "open")
    assert target.arrived() == []


async def test_a_client_that_waits_for_the_word_is_refused_without_it(target: Target) -> None:
    """Who asks first need not send what nobody will take."""
    for request, status in (({"key": "wrong"}, "401"), ({}, "413")):
        head = too_long(**{**request, "headers": [EXPECT]}).partition(b"\r\n\r\n")[0] + b"\r\n\r\n"
        received, ended = await exchange(target.url, head)
        (reply,) = replies_in(received)
        assert (reply.start, ended) == (status, "closed")
        assert b"100 Continue" not in received
    assert target.arrived() == []


async def test_a_full_fleet_answers_429_and_keeps_the_connection(target: Target) -> None:
    """The body has been read by then, so the client may try again where it is."""
    target.engine.answer = Stream(hold_after=1)
    with await Call.start(target.url, key=KEY, body=chat_body()) as running:
        await running.first_token()
        body = chat_body(prompt="x" * 100_000)
        received, ended = await exchange(target.url, good(body=body, close=False), quiet_s=1.0)
        (reply,) = replies_in(received)
        assert (reply.start, code_of(reply), ended) == ("429", "total_pool_full", "open")


async def test_what_is_thrown_away_after_an_answer_is_bounded(target: Target) -> None:
    """A refused client cannot make the gateway read for ever."""
    piece = b"x" * MIB
    head = good(body=b"", close=False, headers=[("content-length", str(1 << 40))])
    with await Call.connect(target.url) as call:
        await call.send(head)
        assert await call.head() == 413
        sent = 0
        while sent <= 4 * LINGER_BYTES_MAX and not await _is_reset(call, piece):
            sent += len(piece)
    # What lies in the kernel's buffers of both ends was sent, but not read.
    assert sent <= LINGER_BYTES_MAX + 16 * MIB


async def test_a_client_that_stays_after_its_answer_is_left_in_time(target: Target) -> None:
    """Without a byte, and without a word of leave."""
    head = good(body=b"", close=False, headers=[("content-length", str(1 << 40))])
    with await Call.connect(target.url) as call:
        await call.send(head)
        assert await call.head() == 413
        await call.rest()
        # The answer ended with a FIN; after LINGER_S the socket is gone and says so.
        await wait_until(lambda: _is_reset(call), "the connection was cut", 10)


async def _is_reset(call: Call, data: bytes = b"x") -> bool:
    try:
        await call.send(data)
    except (ConnectionResetError, BrokenPipeError):
        return True
    return False


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_body_that_comes_byte_by_byte_is_given_up(target: Target, *, chunked: bool) -> None:
    """Each byte in time is not enough: all of it must come at a pace at which it ends."""
    framing = CHUNKED if chunked else ("content-length", "100000")
    with await Call.connect(target.url) as call:
        await call.send(good(body=b"", close=False, headers=[framing]))
        answered = asyncio.create_task(call.head(30.0))
        while not answered.done():
            await call.send(b"1\r\n \r\n" if chunked else b" ")
            await asyncio.wait({answered}, timeout=0.1)
        assert await answered == 400
        assert await call.error_code() == "bad_request"
    assert target.arrived() == []


async def test_chunks_without_a_byte_are_given_up(target: Target) -> None:
    """An endless chunk extension is no body either."""
    with await Call.connect(target.url) as call:
        await call.send(good(body=b"", close=False, headers=[CHUNKED]) + b"5;")
        answered = asyncio.create_task(call.head(30.0))
        while not answered.done():
            await call.send(b"extended" * 1000)
            await asyncio.wait({answered}, timeout=0.05)
        assert await answered == 400
    assert target.arrived() == []


async def test_many_slow_bodies_hold_no_place_and_little_memory(target: Target) -> None:
    before = resident_bytes(target.gateway)
    calls = [
        await Call.start(target.url, key=KEY, body=b'{"mod', headers=[("content-length", "150000")])
        for _ in range(200)
    ]
    try:
        await target.good_request()
        assert resident_bytes(target.gateway) - before < 20 * MIB
        assert {await call.head() for call in calls} == {400}
    finally:
        for call in calls:
            call.close()


BOMB: Final = gzip.compress(b'{"model": "demo", "messages": [' + b" " * 100 * MIB + b"]}")


async def test_a_zipped_request_is_never_unzipped_here(target: Target) -> None:
    """A hundred kilobytes of it are a hundred megabytes."""
    assert len(BOMB) < MAX_BYTES
    before, used_s = resident_bytes(target.gateway), cpu_s(target.gateway)
    for coding in ("gzip", "GZIP", "deflate", "x-gzip", "br", "identity, gzip"):
        received, _ = await exchange(target.url, good(body=BOMB, headers=[("content-encoding", coding)]))
        (reply,) = replies_in(received)
        assert (reply.start, code_of(reply)) == ("400", "bad_request"), coding
    assert target.arrived() == []
    assert resident_bytes(target.gateway) - before < 20 * MIB
    assert cpu_s(target.gateway) - used_s < 2.0


async def test_a_zipped_upload_that_is_no_json_passes_as_it_is(target: Target) -> None:
    """Its meaning is between the caller and the engine; nothing of it decides anything here."""
    headers = [("content-encoding", "gzip"), ("content-type", "application/octet-stream")]
    received, _ = await exchange(target.url, good(f"{CHAT}?model=demo", body=BOMB, headers=headers))
    assert [reply.start for reply in replies_in(received)] == ["200"]
    (request,) = target.arrived()
    assert (request.body, request.values("content-encoding")) == (BOMB, ["gzip"])
