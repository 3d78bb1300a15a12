"""`--once`: one whole pass, what it did in words, and an exit code."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path

from services.permits.store import Store
from tests.reaper.conftest import Orphan
from tests.support.config_file import FLEET, write_config
from tests.support.processes import ROOT
from tests.support.redis_server import RedisServer, free_port
from tests.support.waiting import wait_until


async def once(config: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "services.reaper", "--config", str(config), "--once", *options]
    return await asyncio.to_thread(
        subprocess.run, command, capture_output=True, text=True, check=False, cwd=ROOT
    )


async def all_overdue(store: Store) -> None:
    """Wait until every lease is past. The lease clock runs only while somebody calls, so call."""

    async def nobody_is_live() -> bool:
        await store.downgrade(FLEET, [])
        return (await store.count(FLEET)).total == 0

    await wait_until(nobody_is_live, "the leases run out")


async def test_a_pass_names_the_lease_that_it_took_back_and_its_holder(
    config: Path, orphan: Orphan, store: Store
) -> None:
    """The engineer on call sees whose crash it was."""
    await orphan("L1")
    await all_overdue(store)
    done = await once(config)
    assert done.returncode == 0
    first, second = done.stdout.splitlines()
    assert first.startswith(f"{FLEET}: 1 reclaimed")
    for word in ("L1", "acme", "dead~nonce", "cold", "e1"):
        assert word in second
    line = json.loads(done.stderr.splitlines()[-1])
    assert {key: line[key] for key in ("event", "fleet", "lease", "tenant", "holder", "class", "engine")} == {
        "event": "reclaimed",
        "fleet": FLEET,
        "lease": "L1",
        "tenant": "acme",
        "holder": "dead~nonce",
        "class": "cold",
        "engine": "e1",
    }
    assert 1200 <= line["age_ms"] < 60_000


async def test_a_second_pass_has_nothing_left_to_report(config: Path, orphan: Orphan, store: Store) -> None:
    await orphan("L1")
    await all_overdue(store)
    await once(config)
    done = await once(config, "--json")
    assert done.returncode == 0
    (fleet,) = json.loads(done.stdout)["fleets"]
    assert fleet == {"fleet": FLEET, "reclaimed": [], "settled": 0, "drift": 0}


async def test_a_live_lease_is_left_alone(config: Path, orphan: Orphan, store: Store) -> None:
    await orphan("L1")
    done = await once(config, "--json")
    (fleet,) = json.loads(done.stdout)["fleets"]
    assert fleet["reclaimed"] == []
    assert fleet["drift"] == 0
    assert (await store.count(FLEET)).total == 1
    await all_overdue(store)
    await once(config)


async def test_a_record_without_its_member_is_repaired(
    config: Path, store: Store, redis_server: RedisServer
) -> None:
    """Half deleted data must not stay half deleted."""
    redis_server.cli("HSET", f"tenure:{{{FLEET}}}:lease:ghost", "tenant", "acme", "engine", "e1")
    redis_server.cli("ZADD", f"tenure:{{{FLEET}}}:pool:tenant:acme", "99999999999999", "ghost")
    done = await once(config, "--json")
    (fleet,) = json.loads(done.stdout)["fleets"]
    assert fleet["drift"] >= 1
    await once(config)
    done = await once(config, "--json")
    (fleet,) = json.loads(done.stdout)["fleets"]
    assert fleet["drift"] == 0
    assert (await store.count(FLEET, ["acme"])).tenants == {"acme": 0}


async def test_a_fleet_that_only_redis_knows_is_swept_too(
    config: Path, store: Store, redis_server: RedisServer
) -> None:
    """A fleet taken out of the file may still have leases of old gateways."""
    redis_server.cli("SADD", "tenure:fleets", "old")
    done = await once(config, "--json")
    assert [fleet["fleet"] for fleet in json.loads(done.stdout)["fleets"]] == [FLEET, "old"]


async def test_without_redis_it_says_so_in_one_line(tmp_path: Path) -> None:
    config = write_config(tmp_path, f"redis://127.0.0.1:{free_port()}/0", ["http://127.0.0.1:9"])
    done = await once(config)
    assert done.returncode == 1
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert "Connection refused" in done.stderr or "connecting to" in done.stderr


async def test_a_wrong_configuration_is_one_line_that_names_the_field(tmp_path: Path, redis_url: str) -> None:
    config = write_config(tmp_path, redis_url, ["http://127.0.0.1:9"], lease={"ttl_ms": 1000, "tick_ms": 500})
    done = await once(config)
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert "ttl_ms" in done.stderr
