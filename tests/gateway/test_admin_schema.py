"""The admin API against its own OpenAPI: whatever its schema allows or forbids, no defect and no surprise."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

from tests.support.admin_client import ADMIN, TOKEN
from tests.support.client import fetch

if TYPE_CHECKING:
    from pathlib import Path

    from tests.gateway.conftest import Gateway, OpenGateway

CONTRACT = {
    ("get", "/admin/v1/fleets"),
    ("get", "/admin/v1/fleets/{fleet}"),
    ("patch", "/admin/v1/fleets/{fleet}"),
    ("get", "/admin/v1/fleets/{fleet}/leases"),
    ("get", "/admin/v1/fleets/{fleet}/line"),
    ("delete", "/admin/v1/leases/{lease}"),
    ("get", "/admin/v1/tenants/{tenant}"),
    ("put", "/admin/v1/tenants/{tenant}"),
    ("delete", "/admin/v1/tenants/{tenant}"),
    ("post", "/admin/v1/tenants/{tenant}/keys"),
    ("delete", "/admin/v1/tenants/{tenant}/keys/{key_id}"),
    ("get", "/admin/v1/gateways"),
    ("post", "/admin/v1/gateways/{gateway}/drain"),
    ("get", "/admin/v1/events"),
    ("delete", "/v1/requests/{request_id}"),
}


@pytest.fixture
async def gateway(open_gateway: OpenGateway) -> Gateway:
    started: Gateway = await open_gateway(admin=ADMIN)
    return started


async def test_the_schema_has_every_call_of_the_contract_with_its_errors(gateway: Gateway) -> None:
    schema = json.loads((await fetch(gateway.url, "/openapi.json")).body)
    calls = {
        (method, path): call for path, calls in schema["paths"].items() for method, call in calls.items()
    }
    assert set(calls) >= CONTRACT
    assert len({call["operationId"] for call in calls.values()}) == len(calls)
    for (method, path), call in calls.items():
        statuses = set(call["responses"])
        assert {"401", "503"} <= statuses, (method, path)
        assert "422" not in statuses, (method, path)
        assert call["security"], (method, path)
        for status, response in call["responses"].items():
            if status != "204":
                assert "$ref" in response["content"]["application/json"]["schema"], (method, path, status)
            if status >= "400":
                reference = response["content"]["application/json"]["schema"]["$ref"]
                assert reference == "#/components/schemas/ErrorEnvelope"


@pytest.mark.skipif(find_spec("schemathesis") is None, reason="schemathesis is not installed")
@pytest.mark.timeout(300)
async def test_no_call_that_can_be_made_up_breaks_the_schema(gateway: Gateway, tmp_path: Path) -> None:
    """Hundreds of calls, legal and not: no 5xx, no answer that the schema does not have.

    The gateway under test is not told to drain: its process is that of the tests.
    """
    command = (
        sys.executable, "-m", "schemathesis.cli", "run", f"{gateway.url}/openapi.json",
        "--header", f"Authorization: Bearer {TOKEN}",
        "--max-examples", "20", "--generation-deterministic", "--phases", "examples,coverage,fuzzing",
        "--no-color",
    )  # fmt: skip
    run = await asyncio.create_subprocess_exec(
        *command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    try:
        report, _ = await run.communicate()
    finally:
        if run.returncode is None:
            run.kill()
            await run.wait()
    assert run.returncode == 0, report.decode()[-6000:]
