"""What people see of the line."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from services.permits.scripts import LUA_DIR
from tests.lua.fleet import SLACK_MS
from tests.lua.line import G1, G2, PATIENT_MS, Line
from tests.support.redis_server import cli_binary

if TYPE_CHECKING:
    from tests.support.redis_server import RedisServer


# --- what people see


def test_it_is_shown_in_the_order_in_which_it_is_served_as_things_stand(line: Line) -> None:
    line.set_limits({"total": 2})
    line.run_one("heavy")
    line.run_one("light")
    leases = [line.join("heavy"), line.join("light", at=G2), line.join("new")]
    shown = [dict(word.split("=", 1) for word in text.split(" ")) for text in line.line()]
    assert [row["lease"] for row in shown] == [leases[2], leases[0], leases[1]]
    assert [row["tenant"] for row in shown] == ["new", "heavy", "light"]
    assert shown[2]["holder"] == G2
    assert shown[0]["request_id"] == f"req-{leases[2]}"
    assert 0 < int(shown[0]["deadline_in_ms"]) <= PATIENT_MS
    assert 0 <= int(shown[0]["waited_ms"]) < SLACK_MS
    assert len(line.line(most=2)) == 2


def test_those_at_their_quota_are_shown_behind_all_others(line: Line) -> None:
    line.set_limits({"total": 2, "tenant:acme": 1})
    line.run_one()
    line.run_one("other")
    blocked, free = line.join(), line.join("other")
    assert [text.split(" ")[0] for text in line.line()] == [f"lease={free}", f"lease={blocked}"]


@pytest.mark.skipif(cli_binary() is None, reason="no redis-cli or valkey-cli on PATH")
def test_redis_cli_shows_it_from_the_file_as_it_is(line: Line, redis_server: RedisServer) -> None:
    line.run_one()
    lease = line.join()
    path = Path(LUA_DIR) / "line.lua"
    command = [str(cli_binary()), "-s", str(redis_server.socket_path), "--eval", str(path), line.keys.meta]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert f"lease={lease} holder={G1} tenant=acme class=cold deadline_in_ms=" in shown
    assert shown.count("lease=") == 1


def test_looking_changes_nothing(line: Line) -> None:
    line.run_one()
    line.join()
    before = line.dump()
    line.line()
    line.count("waiting:acme")
    assert line.dump() == before


def test_waiters_are_counted_per_tenant(line: Line) -> None:
    line.witness("e1", {"p": True})
    line.run_one()
    line.join()
    line.join(prefixes=("p",))
    line.join("other")
    assert line.count("waiting:acme", "waiting:other", "waiting:nobody")[7:11] == [3, 2, 1, 0]
