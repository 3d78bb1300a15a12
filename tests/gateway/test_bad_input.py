"""What cannot be served is refused with the right code, takes no permit, and harms no later request."""

import asyncio
import json
from typing import Any

import pytest

from tests.support.answers import Stream
from tests.support.client import Call, chat_body, fetch, request_bytes
from tests.support.config_file import key_of
from tests.support.scripted_engine import ScriptedEngine
from tests.support.waiting import wait_until

KEY = key_of("acme")
CHAT = "/v1/chat/completions"


async def ask(gateway: Any, body: Any, **request: Any) -> Any:
    return await fetch(gateway.url, CHAT, method="POST", **{"key": KEY, "body": body, **request})


async def served(gateway: Any) -> None:
    assert (await ask(gateway, chat_body())).status == 200


def code_of(answer: Any) -> str:
    error = json.loads(answer.body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["param"] is None
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["tenure-refused"] == error["code"]
    assert "tenure-lease" not in answer.headers
    return str(error["code"])


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"{", 400, "bad_request"),
        (b"[]", 400, "bad_request"),
        (b"null", 400, "bad_request"),
        (b"{}", 400, "bad_request"),
        (b'{"model": 5}', 400, "bad_request"),
        (b'{"model": "' + b"m" * 65_536 + b'"}', 400, "bad_request"),
        (b"\xff\xfe\x00", 400, "bad_request"),
        (b'{"model": "no-such-model"}', 404, "unknown_model"),
        (b'{"model": "DEMO"}', 404, "unknown_model"),
        (b'{"model": "demo/../x\\u0000"}', 404, "unknown_model"),
    ],
)
async def test_a_bad_body_is_refused(
    gateway: Any, engine: ScriptedEngine, body: bytes, status: int, code: str
) -> None:
    answer = await ask(gateway, body)
    assert (answer.status, code_of(answer)) == (status, code)
    assert b"mmmmmmmm" not in answer.body
    await served(gateway)
    assert len(engine.requests) == 1


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [("authorization", "Bearer wrong")],
        [("authorization", "Bearer ")],
        [("authorization", f"Basic {KEY}")],
        [("authorization", KEY)],
        [("x-api-key", "wrong")],
        [("authorization", f"Bearer {KEY}"), ("x-api-key", "other")],
        [("authorization", f"Bearer {KEY}"), ("authorization", "Bearer other")],
        [("authorization", "Bearer " + "x" * 10_000)],
        [("authorization", "Bearer clé")],
        [("x_api_key", KEY)],
    ],
)
async def test_without_a_valid_key_nothing_is_served(
    gateway: Any, engine: ScriptedEngine, headers: list[tuple[str, str]]
) -> None:
    answer = await ask(gateway, chat_body(), key=None, headers=headers)
    assert (answer.status, code_of(answer)) == (401, "invalid_api_key")
    assert "retry-after" not in answer.headers
    for _, value in headers:
        assert value.removeprefix("Bearer ").encode() not in answer.body or value == "Bearer "
    await served(gateway)
    assert len(engine.requests) == 1


async def test_a_key_in_either_header_is_good(gateway: Any, engine: ScriptedEngine) -> None:
    del engine
    for headers in (
        [("x-api-key", KEY)],
        [("authorization", f"bearer {KEY}")],
        [("authorization", f"Bearer {KEY}"), ("x-api-key", KEY)],
    ):
        assert (await ask(gateway, chat_body(), key=None, headers=headers)).status == 200


async def test_the_tenant_comes_from_the_key_alone(open_gateway: Any, engine: ScriptedEngine) -> None:
    """Whatever else of a request names a tenant: the place is charged to the key's."""
    gateway = await open_gateway(tenants={"acme": None, "other": None})
    engine.answer = Stream(hold_after=1)
    headers = [("x-tenant-id", "other"), ("X-TENANT-ID", "other"), ("x_tenant_id", "other")]
    call = await gateway.call(
        path=f"{CHAT}?tenant=other&user=other", body=chat_body(user="other", tenant="other"), headers=headers
    )
    await call.first_token()
    counts = await gateway.app.gate.count("demo", ["acme", "other"])
    assert counts.tenants == {"acme": 1, "other": 0}
    assert {name.lower().replace("_", "-") for name, _ in engine.requests[0].headers}.isdisjoint(
        {"x-tenant-id"}
    )
    engine.finish_all()
    await call.rest()
    call.close()
    assert (await gateway.record())["tenant"] == "acme"


@pytest.mark.parametrize("framing", ["length", "chunked"])
async def test_a_body_over_the_limit_gets_a_clean_413(
    open_gateway: Any, engine: ScriptedEngine, framing: str
) -> None:
    """A reset would look like a broken network, and 'invalid JSON' like the caller's fault."""
    gateway = await open_gateway(gateway={"max_body_bytes": 100_000})
    body = b"x" * 1_500_000
    headers = [("transfer-encoding", "chunked")] if framing == "chunked" else []
    sent = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body) if framing == "chunked" else body
    call = await Call.start(gateway.url, key=KEY, body=sent, headers=headers)
    assert await call.head() == 413
    assert call.headers["connection"] == "close"
    assert await call.error_code() == "request_too_large"
    call.close()
    await served(gateway)
    assert len(engine.requests) == 1


async def test_a_body_longer_than_it_says_is_no_request(gateway: Any, engine: ScriptedEngine) -> None:
    body = json.dumps(chat_body()).encode()
    headers = [("content-length", str(len(body)))]
    call = await Call.start(gateway.url, key=KEY, body=body + b"x" * 1_500_000, headers=headers)
    assert await call.head() in (200, 400)
    await call.rest()
    call.close()
    await served(gateway)
    assert len(engine.requests) <= 2


async def test_a_body_at_the_limit_is_served(open_gateway: Any, engine: ScriptedEngine) -> None:
    del engine
    body = json.dumps(chat_body()).encode()
    gateway = await open_gateway(gateway={"max_body_bytes": len(body)})
    assert (await ask(gateway, body)).status == 200
    assert (await ask(gateway, body + b" ")).status == 413


async def test_a_body_that_stops_coming_is_given_up_and_holds_no_permit(
    open_gateway: Any, engine: ScriptedEngine
) -> None:
    gateway = await open_gateway(budgets={"stall_ms": 200}, fleet={"total": 1, "cold": 1})
    call = await Call.start(gateway.url, key=KEY, body=b'{"model":', headers=[("content-length", "500")])
    await served(gateway)
    assert await call.head() == 400
    assert call.headers["connection"] == "close"
    call.close()
    assert len(engine.requests) == 1


async def test_a_client_that_leaves_within_its_body_leaves_nothing(
    gateway: Any, engine: ScriptedEngine
) -> None:
    call = await Call.start(gateway.url, key=KEY, body=b"{", headers=[("content-length", "500")])
    await wait_until(lambda: gateway.app.trips._running, "the request has begun")  # noqa: SLF001
    call.reset()
    await gateway.record()
    await served(gateway)
    assert len(engine.requests) == 1


async def test_an_early_refusal_does_not_read_on_into_the_next_request(
    gateway: Any, engine: ScriptedEngine
) -> None:
    """The rest of a refused body must never be taken for a request."""
    smuggled = request_bytes(gateway.url, key=KEY, body=chat_body())
    body = smuggled * 100
    call = await Call.start(gateway.url, key="wrong", body=body)
    assert await call.head() == 401
    assert await call.error_code() == "invalid_api_key"
    call.close()
    await served(gateway)
    assert len(engine.requests) == 1


async def test_expect_100_is_answered_or_the_refusal_comes_early(
    gateway: Any, engine: ScriptedEngine
) -> None:
    del engine
    body = json.dumps(chat_body(stream=False)).encode()
    for key, status in ((KEY, 200), ("wrong", 401)):
        whole = request_bytes(gateway.url, key=key, body=body, headers=[("expect", "100-continue")])
        head, _, content = whole.partition(b"\r\n\r\n")
        call = await Call.connect(gateway.url)
        await call.send(head + b"\r\n\r\n")
        if status == 200:
            first = await _line(call)
            assert first.startswith(b"HTTP/1.1 100")
            await call.send(content)
        assert await call.head() == status
        await call.rest()
        call.close()


async def _line(call: Call) -> bytes:

    return await asyncio.get_running_loop().sock_recv(call.sock, 25)


@pytest.mark.parametrize(
    "head",
    [
        b"POST /v1/x HTTP/1.1\r\nhost: a\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /v1/x HTTP/1.1\r\nhost: a\r\ncontent-length: 3\r\ncontent-length: 4\r\n\r\nabc",
        b"POST /v1/x HTTP/1.1\r\nhost: a\r\ntransfer-encoding : chunked\r\n\r\n0\r\n\r\n",
        b"POST /v1/x HTTP/1.1\r\nhost: a\r\ncontent-length: -3\r\n\r\n",
        b"GET /v1/x HTTP/1.1\r\nhost: a\r\n folded: x\r\n\r\n",
        b"GET /v1/x HTTP/1.1\nhost: a\n\n",
        b"NONSENSE\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ],
)
async def test_what_is_no_proper_http_is_answered_400_and_closed(
    gateway: Any, engine: ScriptedEngine, head: bytes
) -> None:
    """Two readings of one request let the second one smuggle another."""
    call = await Call.connect(gateway.url)
    await call.send(head)
    assert await call.head() == 400
    assert await call.error_code() == "bad_request"
    call.close()
    await served(gateway)
    assert len(engine.requests) == 1


async def test_no_key_and_no_prompt_is_ever_logged(gateway: Any, engine: ScriptedEngine) -> None:
    secret = "super-secret-value"
    await ask(gateway, chat_body(prompt=secret), key=secret)
    await ask(gateway, chat_body(prompt=secret))
    await ask(gateway, chat_body(model=secret))
    await fetch(gateway.url, f"{CHAT}?api_key={secret}", method="POST", key=KEY, body=chat_body())
    engine.refuse()
    engine.hang_up()
    await ask(gateway, chat_body(prompt=secret))
    await gateway.record(5)
    log = gateway.log.read_text()
    assert secret not in log
    assert KEY not in log


async def test_thousands_of_names_that_callers_make_up_grow_no_metric(
    gateway: Any, engine: ScriptedEngine
) -> None:
    """Models, tenants and ids of requests: each new one would stay in memory and in every scrape."""
    del engine

    async def series() -> int:
        return (await fetch(gateway.url, "/metrics")).body.count(b"\n")

    await served(gateway)
    before = await series()
    call = await Call.connect(gateway.url)
    for n in range(2000):
        made_up = [("x-tenant-id", f"t{n}"), ("x-request-id", f"{n}" + "x" * 8000 * (n % 100 == 0))]
        body = chat_body(model=f"m{n}")
        await call.send(request_bytes(gateway.url, key=KEY, body=body, headers=made_up))
        assert await call.head() == 404
        # Ours, and the caller's where it is no burden.
        assert len(call.headers["x-request-id"]) == 32
        assert call.headers.get("x-client-request-id") == (None if n % 100 == 0 else f"{n}")
        await call.rest()
        call.ended = None
    call.close()
    assert (await ask(gateway, chat_body(model="m" * 1_000_000))).status == 400
    assert (await ask(gateway, chat_body(), key="nobodys")).status == 401
    assert await series() - before < 5
