"""Administration opens to its token in its one place, and to nothing else that a request can say."""

from __future__ import annotations

import base64
import json
from typing import Final
from urllib.parse import quote

import pytest

from tests.security.strict_http import replies_in
from tests.security.target import KEY, Target, code_of, exchange, good
from tests.support.admin_client import ADMIN, TOKEN

pytestmark = pytest.mark.timeout(90)

FLEET: Final = "/admin/v1/fleets/demo"
LIMITS: Final = "tenure:{demo}:limits"


@pytest.fixture(scope="module")
def settings() -> dict[str, object]:
    return {"admin": ADMIN}


def basic(word: str) -> str:
    return "Basic " + base64.b64encode(word.encode()).decode()


ELSEWHERE: Final[dict[str, tuple[str, list[tuple[str, str]]]]] = {
    "nothing": (FLEET, []),
    "query": (
        f"{FLEET}?token={TOKEN}&access_token={TOKEN}&api_key={TOKEN}&authorization=Bearer%20{TOKEN}",
        [],
    ),
    "cookie": (FLEET, [("cookie", f"token={TOKEN}; authorization=Bearer {TOKEN}")]),
    "api_key_header": (FLEET, [("x-api-key", TOKEN)]),
    "admin_headers": (FLEET, [("x-admin-token", TOKEN), ("tenure-token", TOKEN), ("x-auth-token", TOKEN)]),
    "proxy_authorization": (FLEET, [("proxy-authorization", f"Bearer {TOKEN}")]),
    "underscores": (FLEET, [("authorization_", f"Bearer {TOKEN}")]),
    "basic": (FLEET, [("authorization", basic(f"admin:{TOKEN}"))]),
    "no_scheme": (FLEET, [("authorization", TOKEN)]),
    "another_scheme": (FLEET, [("authorization", f"Token {TOKEN}")]),
    "scheme_glued": (FLEET, [("authorization", f"Bearer{TOKEN}")]),
    "tab_for_a_space": (FLEET, [("authorization", f"Bearer\t{TOKEN}")]),
    "in_quotes": (FLEET, [("authorization", f'Bearer "{TOKEN}"')]),
    "in_a_list": (FLEET, [("authorization", f"Bearer x, Bearer {TOKEN}")]),
    "twice": (FLEET, [("authorization", f"Bearer {TOKEN}"), ("authorization", f"Bearer {TOKEN}")]),
    "beside_another": (FLEET, [("authorization", "Bearer x"), ("authorization", f"Bearer {TOKEN}")]),
    "callers_key": (FLEET, [("authorization", f"Bearer {KEY}")]),
    "empty": (FLEET, [("authorization", "Bearer ")]),
    "one_short": (FLEET, [("authorization", f"Bearer {TOKEN[:-1]}")]),
    "one_long": (FLEET, [("authorization", f"Bearer {TOKEN}x")]),
    "upper_case": (FLEET, [("authorization", f"Bearer {TOKEN.upper()}")]),
    "of_8_kb": (FLEET, [("authorization", "Bearer " + "x" * 8192)]),
    "not_ascii": (FLEET, [("authorization", f"Bearer {TOKEN}\xe9")]),
    "not_ascii_at_all": (FLEET, [("authorization", "Bearer \xff\xfe\xfd")]),
    "utf_8": (FLEET, [("authorization", f"Bearer {TOKEN}".encode().decode() + "\xc3\xa9")]),
    "forwarded_for_localhost": (FLEET, [("x-forwarded-for", "127.0.0.1"), ("forwarded", "for=127.0.0.1")]),
    "forwarded_user": (
        FLEET,
        [("x-forwarded-user", "admin"), ("remote-user", "admin"), ("x-real-ip", "::1")],
    ),
    "original_url": ("/healthz", [("x-original-url", FLEET), ("x-rewrite-url", FLEET)]),
    "trailer": (FLEET, [("trailer", "authorization")]),
    "named_by_connection": (FLEET, [("connection", "authorization"), ("authorization", "Bearer x")]),
}


@pytest.mark.parametrize("case", ELSEWHERE)
@pytest.mark.parametrize("method", ["GET", "PATCH", "OPTIONS", "HEAD"])
async def test_a_token_elsewhere_or_another_one_opens_nothing(target: Target, case: str, method: str) -> None:
    """A comparison that chokes on a byte would be a 500, and one that stops early a way to guess."""
    path, headers = ELSEWHERE[case]
    before = target.redis.cli("HGETALL", LIMITS)
    body = {"total": 1} if method == "PATCH" else None
    received, _ = await exchange(target.url, good(path, method=method, key=None, headers=headers, body=body))
    (reply,) = replies_in(received, [method])
    if path == "/healthz":
        assert reply.start in ("200", "405")
        assert b"pools" not in reply.body
    else:
        assert reply.start == "401"
        assert reply.values("www-authenticate") == ["Bearer"]
        assert method == "HEAD" or code_of(reply) == "invalid_api_key"
        assert TOKEN.encode() not in received
    assert target.redis.cli("HGETALL", LIMITS) == before


FOREIGN: Final = {
    "origin": [("origin", "http://evil.example")],
    "null_origin": [("origin", "null")],
    "own_origin": [("origin", "http://gateway")],
    "preflight": [("origin", "http://evil.example"), ("access-control-request-method", "PATCH"),
                  ("access-control-request-headers", "authorization")],
    "referer": [("referer", "http://evil.example/admin")],
}  # fmt: skip


@pytest.mark.parametrize("case", FOREIGN)
@pytest.mark.parametrize("token", [None, TOKEN], ids=["without", "with"])
async def test_no_other_site_is_let_in_by_a_browser(target: Target, case: str, token: str | None) -> None:
    """Without a word of consent a browser keeps the answer, and the right to ask, from other sites."""
    for path in (FLEET, "/admin/v1/tenants", "/metrics", "/healthz", "/v1/models", "/openapi.json"):
        for method in ("OPTIONS", "GET"):
            sent = good(path, method=method, key=token, headers=FOREIGN[case], body=None)
            received, _ = await exchange(target.url, sent)
            (reply,) = replies_in(received)
            assert not [name for name, _ in reply.headers if name.startswith("access-control-")], path
            if method == "OPTIONS":
                assert reply.start in ("401", "405"), path


async def test_the_host_that_is_named_and_the_method_that_is_wished_decide_nothing(target: Target) -> None:
    before = target.redis.cli("HGETALL", LIMITS)
    for headers in (
        [("x-http-method-override", "PATCH"), ("x-method-override", "DELETE"), ("x-http-method", "PUT")],
        [("x-forwarded-host", "evil.example"), ("x-forwarded-proto", "https"), ("x-forwarded-prefix", "/x")],
    ):
        sent = good(FLEET, method="GET", key=TOKEN, headers=headers, body={"total": 1})
        for host in (b"gateway", b"evil.example", b"127.0.0.1:1", b""):
            received, _ = await exchange(target.url, sent.replace(b"host: gateway", b"host: " + host))
            (reply,) = replies_in(received)
            assert reply.start == "200"
            assert json.loads(reply.body)["fleet"] == "demo"
            assert b"evil" not in received
    assert target.redis.cli("HGETALL", LIMITS) == before


@pytest.mark.parametrize(
    "media",
    [
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=b",
        "application/json+x",
    ],
)
async def test_a_body_that_a_form_could_send_changes_nothing(target: Target, media: str) -> None:
    """What needs no consent of the browser must do nothing, not even with a token that it keeps."""
    before = target.redis.cli("HGETALL", LIMITS)
    headers = [("content-type", media)]
    for method, path in (("PATCH", FLEET), ("PUT", "/admin/v1/tenants/acme"), ("POST", "/admin/v1/tenants")):
        sent = good(path, method=method, key=TOKEN, body=b'{"total": 1, "weight": 9}', headers=headers)
        received, _ = await exchange(target.url, sent)
        (reply,) = replies_in(received)
        assert reply.start in ("400", "405"), (method, reply)
    assert target.redis.cli("HGETALL", LIMITS) == before


NAMES: Final = (
    "*",
    "demo:limits",
    "{demo}",
    "demo\r\nFLUSHALL",
    "demo\x00",
    "demo}:x{",
    "*]",
    "\u2028",
    "a" * 300,
)


@pytest.mark.parametrize("name", NAMES, ids=range(len(NAMES)))
async def test_no_name_reaches_into_a_key_that_is_not_its_own(target: Target, name: str) -> None:
    """Names become parts of keys: one with the right characters in it would be another key."""
    keys = sorted(target.redis.cli("KEYS", "*"))
    before = {key: target.redis.cli("HGETALL", key) for key in (LIMITS, "tenure:keys")}
    word = quote(name, safe="")
    for method, path, body in (
        ("GET", f"/admin/v1/fleets/{word}", None),
        ("PATCH", f"/admin/v1/fleets/{word}", {"total": 1}),
        ("PATCH", FLEET, {f"tenant:{name}": 1}),
        ("PATCH", FLEET, {f"engine:{name}": 1}),
        ("PUT", f"/admin/v1/tenants/{word}", {"weight": 1}),
        ("PUT", "/admin/v1/tenants/acme", {"quotas": {name: 1}}),
        ("POST", f"/admin/v1/tenants/{word}/keys", None),
        ("DELETE", f"/admin/v1/tenants/acme/keys/{word}", None),
        ("DELETE", f"/admin/v1/leases/{word}", None),
        ("POST", f"/admin/v1/gateways/{word}/drain", None),
        ("GET", f"/admin/v1/events?fleet={word}&after={word}", None),
        ("GET", f"{FLEET}/leases?tenant={word}&cursor={word}", None),
    ):
        received, _ = await exchange(target.url, good(path, method=method, key=TOKEN, body=body))
        (reply,) = replies_in(received)
        # A filter that fits nobody shows nobody.
        assert reply.start in ("400", "404") or (method == "GET" and reply.start == "200"), (path, reply)
    assert {key: target.redis.cli("HGETALL", key) for key in before} == before
    assert sorted(target.redis.cli("KEYS", "*")) == keys
