"""`tenure tenant`, `tenure key` and `tenure quota`, beside a gateway that serves meanwhile."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Serving, Tenure, only_line, refused
from tests.support.redis_server import RedisServer
from tests.support.waiting import wait_until


async def said(tenure: Tenure, *words: str) -> dict[str, Any]:
    done = await tenure(*words, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


async def test_a_new_tenants_key_opens_the_gateway_within_a_second_and_a_revoked_one_does_not(
    tenure: Tenure, serving: Serving, redis_server: RedisServer
) -> None:
    done = await tenure("tenant", "add", "initech")
    assert (done.returncode, done.stderr) == (0, "")
    assert "tenure key add initech" in done.stdout
    made = await said(tenure, "key", "add", "initech")
    key, key_id = made["key"], made["key_id"]

    async def status() -> int:
        with await serving.ask(key=key) as call:
            return await call.head()

    async def serves() -> bool:
        return await status() == 200

    await wait_until(serves, "the new key is known", 2)
    (row,) = (await said(tenure, "key", "list", "initech"))["keys"]
    assert (row["key_id"], row["last4"]) == (key_id, key[-4:])
    assert key not in (await tenure("tenant", "show", "initech")).stdout
    everything = "".join(redis_server.cli("HGETALL", "tenure:keys")) + (await tenure("events")).stdout
    assert key not in everything

    assert (await tenure("key", "revoke", "initech", key_id)).returncode == 0

    async def refuses() -> bool:
        return await status() == 401

    await wait_until(refuses, "the revoked key is refused", 2)
    again = await tenure("key", "revoke", "initech", key_id)
    assert again.returncode == 1
    assert only_line(again.stderr) == f"tenure: tenant initech has no key '{key_id}'"


async def test_a_key_for_people_stands_alone_on_its_line(tenure: Tenure, quiet: Path) -> None:
    """So that a script can take the first line."""
    key, about = (await tenure("key", "add", "acme")).stdout.splitlines()
    assert " " not in key
    assert key not in about
    listed = (await tenure("key", "list", "acme")).stdout
    assert key[-4:] in listed
    assert "by the file" in listed


async def test_quotas_stand_beside_the_files_and_go_back_to_the_default(tenure: Tenure, quiet: Path) -> None:
    assert await said(tenure, "quota", "acme") == {
        "tenant": "acme",
        "weight": {"live": 1, "file": 1},
        "quotas": {"demo": {"live": 2, "file": 2, "default": 1000}},
    }
    changed = await said(tenure, "quota", "acme", "demo=5", "--weight", "3")
    assert changed["weight"] == {"live": 3, "file": 1}
    assert changed["quotas"]["demo"] == {"live": 5, "file": 2, "default": 1000}
    shown = (await tenure("quota", "acme")).stdout
    assert "weight 3 (file: 1)" in shown
    back = await said(tenure, "quota", "acme", "demo=default")
    assert back["quotas"]["demo"] == {"live": None, "file": 2, "default": 1000}


@pytest.mark.timeout(120)
async def test_bad_input_is_one_line_and_nothing_is_half_done(tenure: Tenure, quiet: Path) -> None:
    whole = "must be a whole number from"
    table = {
        ("quota", "acme", "demo=9", "--weight", "0"): (2, f"weight {whole} 1 to 1000"),
        ("quota", "acme", "demo=-1"): (2, f"quotas.demo {whole} 0 to 1000000"),
        ("quota", "acme", "demo=9", "nope=1"): (1, "there is no fleet 'nope'; the fleets are demo"),
        ("quota", "acme", "demo"): (2, "must be NAME=VALUE, like demo=3"),
        ("quota", "nobody", "demo=9"): (1, "there is no tenant nobody"),
        ("tenant", "add", "total"): (2, "is the name of a pool"),
        ("tenant", "add", "a b"): (2, "must be 1-64 characters of A-Z a-z 0-9 . _ -"),
        ("tenant", "add", "x" * 65): (2, "must be 1-64 characters"),
        ("tenant", "add", "fine", "--weight", "heavy"): (2, f"weight {whole} 1 to 1000"),
        ("tenant", "show", "nobody"): (1, "there is no tenant nobody"),
        ("tenant", "remove", "nobody"): (1, "there is no tenant nobody"),
        ("key", "add", "nobody"): (1, "there is no tenant nobody"),
        ("key", "revoke", "acme", "zzz"): (1, "tenant acme has no key 'zzz'"),
    }
    await refused(tenure, table)
    tenants = (await said(tenure, "tenant", "list"))["tenants"]
    assert [tenant["tenant"] for tenant in tenants] == ["acme", "umbrella"]
    assert tenants[0]["quotas"] == {"demo": 2}


async def test_a_removed_tenant_is_refused_and_its_live_stream_runs_on(
    tenure: Tenure, serving: Serving
) -> None:
    stream = await serving.stream("umbrella")
    done = await tenure("tenant", "remove", "umbrella")
    assert (done.returncode, done.stderr) == (0, "")

    async def turned_away() -> bool:
        with await serving.ask("umbrella") as call:
            return await call.head() in (401, 403)

    await wait_until(turned_away, "new requests are refused", 2)
    serving.engine.finish_all()
    assert (await stream.rest()).endswith(b"data: [DONE]\n\n")
