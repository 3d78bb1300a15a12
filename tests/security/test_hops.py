"""Headers that speak about one connection end with it, both ways, and no protocol is switched to."""

from __future__ import annotations

from typing import Final

import pytest

from tests.security.conftest import ENGINE_KEY
from tests.security.strict_http import replies_in
from tests.security.target import Target, exchange, good

pytestmark = pytest.mark.timeout(90)

HOPS: Final = {
    "connection": "keep-alive, x-named, X-Also-Named",
    "x-named": "1",
    "x-also-named": "1",
    "keep-alive": "timeout=5, max=100",
    "te": "trailers, deflate",
    "trailer": "x-sum",
    "proxy-authorization": "Basic c2VjcmV0",
    "proxy-connection": "keep-alive",
    "proxy-authenticate": "Basic",
    "proxy-x": "1",
}
OURS: Final = {
    "tenure-lease": "forged", "tenure-class": "warm", "tenure-refused": "x", "tenure_class": "warm",
    "x-tenant-id": "other", "x_tenant_id": "other", "x-conversation-id": "1", "X-Api-Key": "key-of-acme",
    "x_request_id": "1", "x_api_key": "1", "host_": "1",
}  # fmt: skip


async def test_what_speaks_about_the_callers_connection_does_not_reach_the_engine(target: Target) -> None:
    headers = [*HOPS.items(), *OURS.items(), ("x-kept", "1"), ("x-kept", "2"), ("accept", "*/*")]
    received, _ = await exchange(target.url, good(headers=headers))
    assert [reply.start for reply in replies_in(received)] == ["200"]
    (request,) = target.arrived()
    names = {name for name, _ in request.headers}
    assert not names & ({name.lower() for name in (*HOPS, *OURS)} - {"connection", "host_"})
    assert request.values("x-kept") == ["1", "2"]
    assert request.values("authorization") == [f"Bearer {ENGINE_KEY}"]
    # Of the engine's connection the gateway speaks for itself, or not at all.
    assert request.values("connection") in ([], ["keep-alive"])


@pytest.mark.parametrize(
    "named",
    [
        "authorization",
        "content-length",
        "host",
        "x-request-id",
        "content-type",
        "Transfer-Encoding, close",
        ",",
    ],
)
async def test_a_caller_cannot_have_the_gateways_own_headers_removed(target: Target, named: str) -> None:
    """Naming a header in `Connection` takes it off, also one that a hop adds after the caller."""
    received, _ = await exchange(target.url, good(headers=[("connection", named)]))
    assert [reply.start for reply in replies_in(received)] == ["200"]
    (request,) = target.arrived()
    assert request.values("authorization") == [f"Bearer {ENGINE_KEY}"]
    assert [len(value) for value in request.values("x-request-id")] == [32]
    assert request.values("content-length") == [str(len(request.body))]


SMUGGLED: Final = good(prompt="smuggled")
FRAMINGS: Final = {
    "none": [],
    "length": [("content-length", str(len(SMUGGLED)))],
    "chunks": [("transfer-encoding", "chunked")],
}
UPGRADES: Final = {
    "websocket": [("connection", "Upgrade"), ("upgrade", "websocket"), ("sec-websocket-version", "13"),
                  ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==")],
    "h2c": [("connection", "Upgrade, HTTP2-Settings"), ("upgrade", "h2c"), ("http2-settings", "AAMAAABk")],
    "tls": [("connection", "upgrade"), ("upgrade", "TLS/1.0")],
    "unknown": [("connection", "upgrade"), ("upgrade", "x")],
}  # fmt: skip


@pytest.mark.parametrize("case", UPGRADES)
@pytest.mark.parametrize("framing", ["none", "length", "chunks"])
@pytest.mark.parametrize("pieces", ["together", "apart", "byte_by_byte"])
async def test_no_protocol_is_switched_to_and_the_connection_goes_on(
    target: Target, case: str, framing: str, pieces: str
) -> None:
    """Java's client asks for h2c with each first request, and sends its body all the same.

    A parser that takes the body for the other protocol loses it, or takes it for a request of its own.
    """
    body = SMUGGLED if framing != "none" else b""
    headers = [*UPGRADES[case], *FRAMINGS[framing], ("content-type", "text/plain")]
    head = good("/v1/realtime", headers=headers, close=False, body=body or None)
    head = head[: head.index(b"\r\n\r\n") + 4]
    content = b"%x\r\n%s\r\n0\r\nx-trailer: 1\r\n\r\n" % (len(body), body) if framing == "chunks" else body
    whole = head + content + good(prompt="second")
    sent = {
        "together": [whole],
        "apart": [head, content, good(prompt="second")],
        "byte_by_byte": [whole[at : at + 1] for at in range(len(whole))],
    }[pieces]
    received, ended = await exchange(target.url, *sent, gap_s=0.05 if pieces == "apart" else 0.0)
    assert [reply.start for reply in replies_in(received)] == ["200", "200"]
    assert ended == "closed"
    first, second = target.arrived()
    assert (first.start, first.body) == ("POST /v1/realtime", body)
    assert not {name for name, _ in first.headers} & {"upgrade", "http2-settings", "x-trailer"}
    assert "upgrade" not in " ".join(first.values("connection")).lower()
    assert b"second" in second.body


async def test_frames_behind_an_upgrade_reach_nobody(target: Target) -> None:
    """A tunnel through the gateway would be a way to the engine that nobody counts."""
    sent = good("/v1/realtime", headers=UPGRADES["websocket"], close=False, method="GET", body=None)
    received, ended = await exchange(target.url, sent + b"\x81\x85\x00\x00\x00\x00hello")
    assert received.startswith((b"HTTP/1.1 200 ", b"HTTP/1.1 400 "))
    assert ended == "closed"
    assert len(target.arrived()) <= 1
