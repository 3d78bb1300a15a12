"""inspect shows an engineer with nothing but redis-cli who holds what, and changes nothing."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from services.permits.replies import lease_row
from services.permits.scripts import LUA_DIR
from tests.lua.fleet import SLACK_MS, TIMES, RawFleet, held
from tests.support.redis_server import cli_binary

if TYPE_CHECKING:
    from tests.support.redis_server import RedisServer

redis_cli = cli_binary()
needs_cli = pytest.mark.skipif(redis_cli is None, reason="no redis-cli or valkey-cli on PATH")


def by_hand(server: RedisServer, fleet: RawFleet, *words: str) -> list[str]:
    """Run the file as it lies in the repository."""
    command = [str(redis_cli), "-s", str(server.socket_path)]
    command += ["--eval", str(LUA_DIR / "inspect.lua"), fleet.keys.meta, *words]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20)
    return [line for line in done.stdout.splitlines() if line]


@needs_cli
def test_redis_cli_runs_the_file_as_it_is_and_nothing_changes(
    fleet: RawFleet, redis_server: RedisServer
) -> None:
    for n in range(3):
        fleet.acquire(f"g1~a1~{n}")
    fleet.tick(held("g1~a1~2", phase="decode", news=True))
    before = fleet.dump()
    lines = by_hand(redis_server, fleet)
    assert [lease_row(line).lease for line in lines] == ["g1~a1~0", "g1~a1~1", "g1~a1~2"]
    assert lines == [line for line in lines if "request_id=req-g1~a1~" in line]
    assert lease_row(lines[2]).phase == "decode"
    assert fleet.dump() == before


@needs_cli
def test_redis_cli_may_ask_for_fewer(fleet: RawFleet, redis_server: RedisServer) -> None:
    for n in range(3):
        fleet.acquire(f"g1~a1~{n}")
    assert len(by_hand(redis_server, fleet, ",", "2")) == 2
    assert by_hand(redis_server, RawFleet(fleet.client, name="unknown")) == []


def test_a_line_reads_as_a_row(fleet: RawFleet) -> None:
    fleet.acquire("g1~a1~1", engines=("e2",))
    row = lease_row(fleet.inspect()[0])
    assert (row.lease, row.request_id, row.tenant) == ("g1~a1~1", "req-g1~a1~1", "acme")
    assert (row.class_, row.engine, row.holder, row.phase) == ("cold", "e2", "g1~a1", "granted")
    assert 0 <= row.age_ms < SLACK_MS
    assert TIMES.provisional_ms - SLACK_MS < row.expires_in_ms <= TIMES.provisional_ms
    assert row.acquired_at == int(fleet.record("g1~a1~1")["acquired_at"])


def test_the_soonest_to_expire_comes_first_and_overdue_leases_are_left_out(fleet: RawFleet) -> None:
    for lease in "abc":
        fleet.acquire(lease)
    fleet.tick(held("b"))
    assert [lease_row(line).lease for line in fleet.inspect()] == ["a", "c", "b"]
    assert [lease_row(line).lease for line in fleet.inspect(1)] == ["a"]
    fleet.expire_provisional()
    before = fleet.dump()
    assert [lease_row(line).lease for line in fleet.inspect()] == ["b"]
    assert fleet.dump() == before


def test_a_lease_without_its_record_is_shown_as_far_as_it_is_known(fleet: RawFleet) -> None:
    fleet.acquire("a")
    fleet.client.delete(fleet.keys.lease("a"))
    row = lease_row(fleet.inspect()[0])
    assert (row.lease, row.tenant, row.acquired_at, row.age_ms) == ("a", "?", 0, 0)


def test_of_nothing_it_shows_nothing(new_fleet: RawFleet) -> None:
    assert new_fleet.inspect() == []
    assert new_fleet.dump() == {}
