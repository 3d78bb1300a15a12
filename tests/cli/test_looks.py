"""`tenure leases` and `tenure fleets`: the truth of Redis, for people and for programs."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from services.permits.connect import connect
from services.permits.model import Demand, Gone, Granted
from services.permits.store import Store
from services.settings.load import load
from services.settings.seed import lease_times
from tests.cli.conftest import Tenure, only_line
from tests.support.config_file import FLEET, write_config
from tests.support.redis_server import free_port
from tests.support.rig import begin_without_learning


@pytest.fixture
def config(tmp_path: Path, redis_url: str) -> Path:
    """Where every command looks by itself: ./tenure.toml."""
    engine = {"name": "e1", "url": "http://127.0.0.1:9", "slots": 8}
    return write_config(tmp_path, redis_url, [engine], tenants={"acme": 3, "umbrella": None})


@pytest.fixture
async def held(config: Path) -> AsyncIterator[list[str]]:
    """Two leases of acme and one of umbrella."""
    await begin_without_learning(config)
    settings = load(config, {})
    client = connect(settings.redis.url)
    store = Store(client, times=lease_times(settings))
    tenants = {"g1~n~1": "acme", "g1~n~2": "acme", "g1~n~3": "umbrella"}
    for lease, tenant in tenants.items():
        demand = Demand(fleet=FLEET, tenant=tenant, request_id=f"r{lease[-1]}", engines=("e1",))
        assert isinstance(await store.acquire(demand, lease=lease, holder="g1~n"), Granted)
    yield list(tenants)
    await store.release(FLEET, [Gone(lease, tenant, "e1") for lease, tenant in tenants.items()])
    await client.aclose()


async def test_leases_as_json_have_the_fields_of_the_contract(tenure: Tenure, held: list[str]) -> None:
    done = await tenure("leases", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    leases = json.loads(done.stdout)["leases"]
    assert {lease["lease"] for lease in leases} == set(held)
    first = next(lease for lease in leases if lease["lease"] == "g1~n~1")
    assert set(first) == {
        *("fleet", "lease", "request_id", "tenant", "class", "engine", "holder", "phase"),
        *("acquired_at", "age_ms", "expires_in_ms"),
    }
    assert (first["tenant"], first["class"], first["holder"]) == ("acme", "cold", "g1~n")
    assert (first["engine"], first["phase"], first["request_id"]) == ("e1", "granted", "r1")
    assert 0 < first["expires_in_ms"] <= 2000
    assert first["age_ms"] >= 0


async def test_leases_for_people_are_one_line_each_and_never_cut_off(tenure: Tenure, held: list[str]) -> None:
    done = await tenure("leases", "--fleet", FLEET)
    lines = done.stdout.splitlines()
    assert len(lines) == 1 + len(held)
    assert lines[0].split()[:3] == ["fleet", "lease", "tenant"]
    for lease in held:
        assert any(lease in line for line in lines)


async def test_leases_of_one_tenant(tenure: Tenure, held: list[str]) -> None:
    done = await tenure("leases", "--tenant", "umbrella", "--json")
    assert [lease["lease"] for lease in json.loads(done.stdout)["leases"]] == held[2:]


async def test_no_leases_is_said_in_words(tenure: Tenure, config: Path) -> None:
    done = await tenure("leases")
    assert done.returncode == 0
    assert only_line(done.stdout).strip() == "no live leases"


async def test_an_unknown_fleet_is_a_failure_that_names_the_fleets(tenure: Tenure, config: Path) -> None:
    done = await tenure("leases", "--fleet", "demos")
    assert (done.returncode, done.stdout) == (1, "")
    assert only_line(done.stderr) == "tenure: no fleet 'demos'; the fleets are: demo"


async def test_fleets_count_every_pool_against_its_limit(tenure: Tenure, held: list[str]) -> None:
    done = await tenure("fleets", "--json")
    (fleet,) = json.loads(done.stdout)["fleets"]
    assert fleet["pools"] == {
        "total": {"limit": 4, "in_use": 3},
        "cold": {"limit": 4, "in_use": 3},
        "tenants": {"acme": {"limit": 3, "in_use": 2}, "umbrella": {"limit": 1000, "in_use": 1}},
        "engines": {"e1": {"limit": 8, "in_use": 3}},
    }
    assert (fleet["fleet"], fleet["learning_ms"], fleet["over_commit"]) == (FLEET, 0, 0)
    table = (await tenure("fleets")).stdout
    assert "tenant:umbrella" in table
    assert "0 gateways" in table


async def test_without_redis_each_is_one_line_without_a_traceback(tenure: Tenure) -> None:
    port = free_port()
    for command in ("leases", "fleets"):
        done = await tenure(command, "--redis-url", f"redis://:secret@127.0.0.1:{port}/0")
        assert (done.returncode, done.stdout) == (1, "")
        assert f"127.0.0.1:{port} does not answer (connection refused)" in only_line(done.stderr)
        assert "secret" not in done.stderr


async def test_wrong_usage_is_exit_code_2(tenure: Tenure) -> None:
    assert (await tenure("leases", "--nonsense")).returncode == 2
    assert (await tenure("nonsense")).returncode == 2
    assert (await tenure("up", "--gateways", "0")).returncode == 2


async def test_an_unreadable_configuration_is_one_line(tenure: Tenure, tmp_path: Path) -> None:
    done = await tenure("fleets", "--config", str(tmp_path / "nowhere.toml"))
    assert done.returncode == 1
    assert "nowhere.toml" in only_line(done.stderr)


async def test_the_gateway_and_the_engine_fail_in_one_line_when_their_port_is_taken(
    tenure: Tenure, config: Path, redis_server: object
) -> None:
    taken = str(load(config, {}).redis.url.rpartition(":")[2].split("/")[0])
    for words in (("gateway", "--port", taken), ("engine", "--port", taken), ("reaper", "--port", taken)):
        done = await tenure(*words)
        assert done.returncode == 1, words
        assert "in use" in only_line(done.stderr), words
