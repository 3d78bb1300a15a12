"""Ten thousand names that a caller makes up leave no trace: no series, no key of Redis, no memory."""

from __future__ import annotations

import asyncio
import json
import re
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.security.strict_http import replies_in
from tests.security.target import KEY, Target, exchange, good, resident_bytes
from tests.support.admin_client import ADMIN, TOKEN
from tests.support.client import Call, chat_body, fetch, request_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.timeout(180)

AT_ONCE: Final = 4
# How far memory breathes after a third of the names: garbage that waits to be collected, caches, the
# allocator. A kilobyte kept of each name would be as much.
GROWTH_BYTES: Final = 8 << 20


@pytest.fixture(scope="module")
def settings() -> dict[str, Any]:
    # A glob: names that nobody configured are served, too.
    return {"fleet": {"models": ["demo", "any-*"], "total": 64, "cold": 64}, "admin": ADMIN}


def made_up(n: int) -> str:
    return f"made-up-{n:05d}-{n * 2654435761 % 2**32:08x}-name-of-a-caller"


def unknown_key(n: int) -> bytes:
    return request_bytes("http://g", key=made_up(n), body=chat_body(model=made_up(n)))


def unknown_model(n: int) -> bytes:
    """With a path of its own, and a tenant named in every way that somebody might believe."""
    spellings = (
        "X-Tenant-Id", "X-TENANT-ID", "x_tenant_id", "X-Tenant", "Tenant", "Tenure-Tenant", "Tenure_Tenant",
        "X-Org-Id", "OpenAI-Organization", "OpenAI-Project", "X-Forwarded-User", "X-User-Id",
        "Tenure-Class", "Tenure-Who", "Tenure-Lease", f"X-{made_up(n)}",
    )  # fmt: skip
    headers = [(name, made_up(n)) for name in spellings]
    body = chat_body(model=made_up(n), user=made_up(n), tenant=made_up(n))
    return request_bytes(
        "http://g", path=f"/v1/{made_up(n)}?q={made_up(n)}", key=KEY, body=body, headers=headers
    )


def unknown_path(n: int) -> bytes:
    where = ("", "admin/", "healthz/", "metrics/", "v1/models/../")[n % 5]
    return request_bytes("http://g", method="GET", path=f"/{where}{made_up(n)}", key=KEY)


def unknown_id(n: int) -> bytes:
    """Of what may be asked of Redis."""
    method, path, key = (
        ("DELETE", f"/v1/requests/{made_up(n)}", KEY),
        ("GET", f"/admin/v1/fleets/{made_up(n)}", TOKEN),
        ("GET", f"/admin/v1/tenants/{made_up(n)}", TOKEN),
        ("DELETE", f"/admin/v1/leases/{made_up(n)}", TOKEN),
        ("POST", f"/admin/v1/gateways/{made_up(n)}/drain", TOKEN),
    )[n % 5]
    return request_bytes("http://g", method=method, path=path, key=key)


def served_model(n: int) -> bytes:
    body = chat_body(model=f"any-{made_up(n)}", user=made_up(n), stream=False)
    return request_bytes("http://g", path=f"/v1/{made_up(n)}?{made_up(n)}=1", key=KEY, body=body)


# How a request is made, how many of them, and what may be answered.
KINDS: Final[dict[str, tuple[Callable[[int], bytes], int, set[int]]]] = {
    "keys": (unknown_key, 10_000, {401}),
    "models_tenants_and_paths": (unknown_model, 10_000, {404}),
    "paths_of_nothing": (unknown_path, 10_000, {400, 401, 404}),
    "ids": (unknown_id, 3_000, {404}),
    "models_that_are_served": (served_model, 3_000, {200}),
}


async def send_all(target: Target, make: Callable[[int], bytes], numbers: range) -> set[int]:
    """Send one request per number over a few connections; return the statuses."""

    async def some(first: int) -> set[int]:
        seen = set()
        with await Call.connect(target.url) as call:
            for n in numbers[first::AT_ONCE]:
                await call.send(make(n))
                seen.add(await call.head())
                await call.rest()
                call.ended = None
        return seen

    return set().union(*await asyncio.gather(*map(some, range(AT_ONCE))))


async def series_of(target: Target) -> set[str]:
    """Return the name and labels of each series of /metrics."""
    text = (await fetch(target.url, "/metrics")).body.decode()
    return {line.rpartition(" ")[0] for line in text.splitlines() if not line.startswith("#")}


def redis_keys(target: Target) -> set[str]:
    """Return the keys of Redis and the fields of its hashes; ids of requests read alike."""
    found = set()
    for key in target.redis.cli("KEYS", "*"):
        found.add(key)
        if target.redis.cli("TYPE", key) == "hash":
            found |= {f"{key} {field}" for field in target.redis.cli("HKEYS", key)}
    return {re.sub("[0-9a-f]{32}", "ID", name) for name in found}


@pytest.mark.parametrize("kind", KINDS)
async def test_names_that_callers_make_up_leave_no_trace(target: Target, kind: str) -> None:
    """What grows with what strangers send is theirs to fill: a scrape, a database, a process."""
    make, count, statuses = KINDS[kind]
    log_before = target.gateway.log_path.stat().st_size
    third = count // 3
    assert await send_all(target, make, range(third)) <= statuses
    series, keys, before = await series_of(target), redis_keys(target), resident_bytes(target.gateway)
    assert await send_all(target, make, range(third, count)) <= statuses
    assert await series_of(target) == series
    # Those of the leases that run just now come and go.
    assert not {name for name in redis_keys(target) - keys if not re.search(":lease:|:pool:", name)}
    assert resident_bytes(target.gateway) - before < GROWTH_BYTES
    assert "made-up" not in " ".join([*series, *keys])
    with target.gateway.log_path.open("rb") as log:
        log.seek(log_before)
        assert b"made-up" not in log.read()


@pytest.mark.parametrize(
    "sent",
    ["x" * 129, "x" * 8192, "a\tb", "na\xefve", "a\x80b", "\x1b[31mred", "{{7*7}}\x7f", ""],
    ids=["129", "8_kb", "tab", "latin_1", "c1_control", "escape", "delete", "empty"],
)
async def test_a_request_id_that_is_long_or_unprintable_is_neither_echoed_nor_told(
    target: Target, sent: str
) -> None:
    """It would be in every log and terminal behind this one."""
    log_before = target.gateway.log_path.stat().st_size
    for name in ("x-request-id", "x-client-request-id"):
        received, _ = await exchange(target.url, good(headers=[(name, sent)]))
        (reply,) = replies_in(received)
        assert reply.start in ("200", "400")
        assert not reply.values("x-client-request-id")
        assert not sent or sent.encode("latin-1") not in received
    for request in target.arrived():
        assert [len(value) for value in request.values("x-request-id")] == [32]
        assert not request.values("x-client-request-id")
    with target.gateway.log_path.open("rb") as log:
        log.seek(log_before)
        told = [json.loads(line) for line in log]
    assert not [line for line in told if line.get("client_request_id")]
