"""Who may administer, and what is said to those who err: before anything is read, asked or changed."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.support.admin_client import ADMIN, TOKEN, AdminClient
from tests.support.client import Call, fetch
from tests.support.config_file import key_of

if TYPE_CHECKING:
    from tests.gateway.conftest import Gateway, OpenGateway
    from tests.support.redis_server import RedisServer

CALLS = [
    ("GET", "/admin/v1/fleets"),
    ("GET", "/admin/v1/fleets/demo"),
    ("PATCH", "/admin/v1/fleets/demo"),
    ("GET", "/admin/v1/fleets/demo/leases"),
    ("GET", "/admin/v1/fleets/demo/line"),
    ("DELETE", "/admin/v1/leases/g1~a~1"),
    ("GET", "/admin/v1/tenants"),
    ("GET", "/admin/v1/tenants/acme"),
    ("PUT", "/admin/v1/tenants/acme"),
    ("DELETE", "/admin/v1/tenants/acme"),
    ("POST", "/admin/v1/tenants/acme/keys"),
    ("DELETE", "/admin/v1/tenants/acme/keys/0123456789ab"),
    ("GET", "/admin/v1/gateways"),
    ("POST", "/admin/v1/gateways/g1/drain"),
    ("GET", "/admin/v1/events"),
    ("GET", "/admin/v1/nothing"),
    ("GET", "/admin/"),
    ("OPTIONS", "/admin/v1/fleets"),
]
BODIES = {"PATCH": {"total": 1}, "PUT": {"weight": 5}}


@pytest.fixture
async def administered(open_gateway: OpenGateway) -> Gateway:
    started: Gateway = await open_gateway(admin=ADMIN)
    return started


@pytest.fixture
def admin(administered: Gateway) -> AdminClient:
    return AdminClient(administered.url)


async def codes(url: str, **sent: Any) -> set[tuple[int, str]]:
    """Make every call with what is given and return the answers."""
    found = set()
    for method, path in CALLS:
        answer = await fetch(url, path, method=method, body=BODIES.get(method), **sent)
        code = json.loads(answer.body)["error"]["code"]
        assert answer.headers["tenure-refused"] == code
        assert answer.headers["content-type"] == "application/json"
        found.add((answer.status, code))
    return found


async def test_without_a_token_in_the_configuration_every_call_is_refused(gateway: Gateway) -> None:
    """A fleet that nobody set up for administration cannot be administered, by no token at all."""
    for key in ("", "secret", " ", None):
        assert await codes(gateway.url, key=key) == {(403, "forbidden")}


async def test_a_wrong_token_opens_nothing(administered: Gateway, redis_server: RedisServer) -> None:
    before = redis_server.cli("HGETALL", "tenure:{demo}:limits")
    for key in (None, "", "x", TOKEN[:-1], f"{TOKEN}x", TOKEN.upper(), key_of("acme"), "\xff"):
        assert await codes(administered.url, key=key) == {(401, "invalid_api_key")}, key
    for headers in (
        [("authorization", TOKEN)],
        [("authorization", f"Basic {TOKEN}")],
        [("x-api-key", TOKEN)],
        [("authorization", f"Bearer {TOKEN}"), ("authorization", "Bearer x")],
    ):
        assert await codes(administered.url, headers=headers) == {(401, "invalid_api_key")}, headers
    assert redis_server.cli("HGETALL", "tenure:{demo}:limits") == before


async def test_the_scheme_of_the_token_may_be_written_in_any_case(administered: Gateway) -> None:
    answer = await fetch(
        administered.url, "/admin/v1/fleets", headers=[("authorization", f"bEARER   {TOKEN}")]
    )
    assert (answer.status, json.loads(answer.body)) == (200, {"fleets": ["demo"]})


async def test_the_admin_token_is_no_callers_key(administered: Gateway) -> None:
    answer = await fetch(administered.url, "/v1/models", key=TOKEN)
    assert answer.status == 401


async def test_a_body_is_bounded_with_and_without_a_length(administered: Gateway) -> None:
    body = b'{"total":' + b" " * 70_000 + b"1}"
    answer = await fetch(administered.url, "/admin/v1/fleets/demo", method="PATCH", key=TOKEN, body=body)
    assert (answer.status, json.loads(answer.body)["error"]["code"]) == (413, "request_too_large")
    chunked = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
    headers = [("transfer-encoding", "chunked")]
    answer = await fetch(
        administered.url, "/admin/v1/fleets/demo", method="PATCH", key=TOKEN, body=chunked, headers=headers
    )
    assert answer.status == 413


async def test_a_body_that_is_not_said_to_be_json_is_answered_with_the_cure(administered: Gateway) -> None:
    """What curl sends with -d alone."""
    headers = [("content-type", "application/x-www-form-urlencoded")]
    answer = await fetch(
        administered.url,
        "/admin/v1/fleets/demo",
        method="PATCH",
        key=TOKEN,
        body={"total": 6},
        headers=headers,
    )
    assert answer.status == 400
    assert "send a JSON object, with `Content-Type: application/json`" in answer.body.decode()


async def test_a_caller_that_leaves_before_its_body_is_whole_has_changed_nothing(
    administered: Gateway, admin: AdminClient
) -> None:
    headers = [("content-length", "20"), ("authorization", f"Bearer {TOKEN}")]
    path = "/admin/v1/fleets/demo"
    with await Call.start(administered.url, method="PATCH", path=path, headers=headers) as call:
        await call.send(b'{"total": 1}')
    assert (await admin.ok("GET", "/fleets/demo"))["pools"]["total"]["limit"] == 4


async def test_a_body_that_is_not_wanted_yet_is_not_read(administered: Gateway) -> None:
    """Without the token nobody can make a gateway hold bytes for it."""
    headers = [("content-length", "1000000000"), ("content-type", "application/json")]
    with await Call.start(
        administered.url, method="PUT", path="/admin/v1/tenants/acme", headers=headers
    ) as call:
        assert await call.head() == 401


WRONG_BODIES: Final = [
    b"", b"{", b"[]", b"null", b'"total"', b"\xff\xfe", b'{"total": NaN}', b'{"total": 1e999}', b"[" * 60_000,
]  # fmt: skip
WRONG_LIMITS: Final[list[dict[str, Any]]] = [
    {"total": -1},
    {"total": 1.5},
    {"total": 10**6 + 1},
    {"total": 10**400},
    {"total": "8"},
    {"total": None},
    {"total": True},
    {"total": [8]},
    {"cold": 1, "total": -1},
    {"cold": 1, "totl": 1},
    {"cold": 1, "tenant:acme": 1},
    {"cold": 1, "engine:": "x"},
    {"shadow": "total"},
    {"shadow": ["all"]},
    {"cold": 1, "\ud800": 1},
]
WRONG_CALLS: Final[list[tuple[str, str, Any, int]]] = [
    ("PUT", "/tenants/acme", {"quotas": {"nope": 1}}, 404),
    ("PUT", "/tenants/acme", {"weight": 7, "quotas": {"demo": -1}}, 400),
    ("PUT", "/tenants/acme", {"weight": 0}, 400),
    ("PUT", "/tenants/acme", {"weight": 7, "wait": 1}, 400),
    ("PUT", "/tenants/a%20b", {"weight": 7}, 400),
    ("PUT", "/tenants/total", {"weight": 7}, 400),
    ("PUT", f"/tenants/{'x' * 65}", {"weight": 7}, 400),
    ("DELETE", "/tenants/nobody", None, 404),
    ("POST", "/tenants/nobody/keys", None, 404),
    ("DELETE", "/tenants/acme/keys/0123456789ab", None, 404),
    ("GET", "/fleets/nope", None, 404),
    ("PATCH", "/fleets/nope", {"total": 1}, 404),
    ("PATCH", "/fleets/demo", {"total": 1, "engine:nope": 1}, 404),
    ("GET", "/fleets/demo/leases?limit=0", None, 400),
    ("GET", "/fleets/demo/leases?limit=ten", None, 400),
    ("GET", "/events?after=yesterday", None, 400),
    ("GET", "/events?fleet=nope", None, 404),
    ("DELETE", "/leases/g1~a~1", None, 404),
    ("DELETE", "/leases/%0d%0a%00", None, 404),
    ("POST", "/gateways/nope/drain", None, 404),
]


async def test_whatever_is_wrong_gets_the_right_status_one_sentence_and_changes_nothing(
    admin: AdminClient, redis_server: RedisServer
) -> None:
    keys = ("tenure:{demo}:limits", "tenure:keys")
    before = [redis_server.cli("HGETALL", key) for key in keys]
    wrong = [
        *(("PATCH", "/fleets/demo", body, 400) for body in (*WRONG_BODIES, *WRONG_LIMITS)),
        *WRONG_CALLS,
    ]
    for method, path, body, status in wrong:
        got, code, sentence = await admin.fails(method, path, body)
        shown = (method, path, str(body)[:60].encode("ascii", "replace"), sentence)
        assert (got, code) == (status, {400: "bad_request", 404: "not_found"}[status]), shown
        assert sentence.isprintable(), shown
        assert [redis_server.cli("HGETALL", key) for key in keys] == before, shown


async def test_a_method_that_a_path_lacks_is_answered_with_those_it_has(administered: Gateway) -> None:
    answer = await fetch(administered.url, "/admin/v1/tenants/acme", method="PATCH", key=TOKEN, body={})
    assert (answer.status, answer.headers["allow"]) == (405, "DELETE, GET, PUT")
    assert json.loads(answer.body)["error"]["code"] == "method_not_allowed"


@pytest.mark.leaves_leases("Redis is away when the test ends")
async def test_without_redis_the_answer_says_so_and_when_to_come_back(
    administered: Gateway, admin: AdminClient, redis_server: RedisServer
) -> None:
    redis_server.stop()
    answer = await fetch(administered.url, "/admin/v1/fleets", key=TOKEN)
    assert (answer.status, json.loads(answer.body)["error"]["code"]) == (503, "admission_unavailable")
    assert 1 <= int(answer.headers["retry-after"]) <= 60
    redis_server.start()
