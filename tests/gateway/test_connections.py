"""Clients that speak HTTP in their own way: 1.0, pipelined, half closed."""

import gc
from typing import Any

import pytest

from services.gateway import server
from services.gateway.protocol import HEAD_WAIT_S, Protocol
from services.permits.clock import monotonic
from tests.support.answers import Dies, Stream
from tests.support.client import Call, chat_body, request_bytes
from tests.support.config_file import key_of
from tests.support.scripted_engine import ScriptedEngine
from tests.support.waiting import wait_until

KEY = key_of("acme")


def http10(gateway: Any, **body: Any) -> bytes:
    return request_bytes(gateway.url, key=KEY, body=chat_body(**body)).replace(
        b" HTTP/1.1\r\n", b" HTTP/1.0\r\n"
    )


async def test_an_http_1_0_client_gets_a_body_without_chunk_sizes(
    gateway: Any, engine: ScriptedEngine
) -> None:
    del engine
    call = await Call.connect(gateway.url)
    await call.send(http10(gateway))
    assert await call.head() == 200
    assert "transfer-encoding" not in call.headers
    body = await call.rest()
    assert body.startswith(b"data: {")
    assert body.endswith(b"data: [DONE]\n\n")
    call.close()
    assert (await gateway.record())["reason"] == "completed"


async def test_an_http_1_0_client_can_tell_a_broken_reply_from_a_whole_one(
    gateway: Any, engine: ScriptedEngine
) -> None:
    """Where the end of the connection is the end of the body, only a reset says otherwise."""
    engine.answer = Stream(ending="torn")
    call = await Call.connect(gateway.url)
    await call.send(http10(gateway))
    await call.head()
    await call.rest()
    assert call.ended == "reset"
    call.close()
    assert (await gateway.record())["reason"] == "engine_error"


async def test_an_http_1_0_client_gets_its_refusals(gateway: Any, engine: ScriptedEngine) -> None:
    engine.answer = Dies("before_head")
    call = await Call.connect(gateway.url)
    await call.send(http10(gateway))
    assert await call.head() == 502
    assert await call.error_code() == "engine_error"
    call.close()


async def test_a_client_that_sent_two_requests_and_left_is_noticed(
    gateway: Any, engine: ScriptedEngine
) -> None:
    """The second request must not hide that the first one's reader has gone."""
    engine.answer = Stream(tokens=None, gap_s=0.05)
    call = await Call.connect(gateway.url)
    await call.send(request_bytes(gateway.url, key=KEY, body=chat_body()) * 2)
    await call.first_token()
    call.reset()
    await wait_until(lambda: engine.open == 0, "the engine was let go")
    await gateway.is_idle()
    assert (await gateway.record())["reason"] == "client_disconnect"


async def test_two_requests_sent_at_once_are_answered_in_turn(gateway: Any, engine: ScriptedEngine) -> None:
    call = await Call.connect(gateway.url)
    await call.send(request_bytes(gateway.url, key=KEY, body=chat_body(stream=False)) * 2)
    for _ in range(2):
        assert await call.head() == 200
        await call.rest()
        call.ended = None
    call.close()
    assert engine.max_open == 1


async def test_garbage_behind_a_request_ends_it_without_a_second_head(
    gateway: Any, engine: ScriptedEngine
) -> None:
    engine.answer = Stream(tokens=None, gap_s=0.05)
    call = await Call.connect(gateway.url)
    await call.send(request_bytes(gateway.url, key=KEY, body=chat_body()))
    await call.first_token()
    await call.send(b"\x00\x01garbage\r\n\r\n")
    body = await call.rest()
    assert b"HTTP/1.1 400" not in body
    call.close()
    await wait_until(lambda: engine.open == 0, "the engine was let go")
    assert (await gateway.record())["reason"] == "client_disconnect"


async def test_a_connection_without_a_request_is_closed_in_time(gateway: Any) -> None:
    """Half a head must not hold a connection for ever."""
    call = await Call.start(gateway.url, method="GET", path="/healthz")
    assert await call.head() == 200
    await call.rest()
    call.ended = None
    await call.send(b"GET /healthz HTTP/1.1\r\nhost:")
    protocols = [one for one in _protocols() if not one.transport.is_closing()]
    for protocol in protocols:
        protocol.close_if_idle(monotonic())
    assert not any(protocol.transport.is_closing() for protocol in protocols)
    for protocol in protocols:
        protocol.close_if_idle(monotonic() + HEAD_WAIT_S + 1)
    assert await call.rest() == b""
    call.close()


async def test_connections_are_looked_at_without_anybody_asking(
    open_gateway: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "LOOK_S", 0.05)
    monkeypatch.setattr("services.gateway.protocol.HEAD_WAIT_S", 0.2)
    gateway = await open_gateway()
    call = await Call.connect(gateway.url)
    assert await call.rest() == b""
    call.close()


def _protocols() -> list[Protocol]:

    return [one for one in gc.get_objects() if isinstance(one, Protocol)]


async def test_a_head_without_end_is_cut_short(gateway: Any, engine: ScriptedEngine) -> None:
    call = await Call.connect(gateway.url)
    await call.send(b"POST /v1/x HTTP/1.1\r\nhost: a\r\nx-long: ")
    await call.send(b"x" * 200_000)
    assert await call.head() == 400
    call.close()
    assert not engine.requests


async def test_of_a_connection_that_was_reset_nothing_is_kept(gateway: Any, engine: ScriptedEngine) -> None:
    """A load balancer that resets its probes, ten a second, must not fill the memory."""
    del engine
    before = _connections()
    for _ in range(20):
        call = await Call.start(gateway.url, method="GET", path="/healthz")
        assert await call.head() == 200
        await call.rest()
        call.reset()
    await wait_until(lambda: _connections() <= before, "all of them are gone")


def _connections() -> int:
    gc.collect()
    return len(_protocols())
