"""`tenure limits`: what is in force beside what the file says, and changes that hold at once."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Serving, Tenure, only_line, refused
from tests.support.redis_server import free_port


async def limits_of(tenure: Tenure, *changes: str) -> dict[str, Any]:
    done = await tenure("limits", "demo", *changes, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    said: dict[str, Any] = json.loads(done.stdout)
    assert said["fleet"] == "demo"
    limits: dict[str, Any] = said["limits"]
    return limits


async def test_the_live_value_stands_beside_the_files(tenure: Tenure, quiet: Path) -> None:
    assert (await limits_of(tenure))["total"] == {"live": 3, "file": 3}
    changed = await limits_of(tenure, "total=7", "cold=2", "engine:e1=5", "shadow=cold,total")
    assert changed["total"] == {"live": 7, "file": 3}
    assert changed["engine:e1"] == {"live": 5, "file": 8}
    assert changed["shadow"] == {"live": "total cold", "file": ""}
    shown = (await tenure("limits", "demo")).stdout
    (row,) = [line for line in shown.splitlines() if line.startswith("total ")]
    assert row.split()[:3] == ["total", "7", "3"]
    assert "differs from the file; the live value holds" in row
    assert (await limits_of(tenure, "shadow="))["shadow"]["live"] == ""


@pytest.mark.timeout(120)
async def test_bad_input_is_one_line_and_nothing_is_half_done(tenure: Tenure, quiet: Path) -> None:
    table = {
        "total=-1": (2, "total must be a whole number from 0 to 1000000, not '-1'"),
        "total=1.5": (2, "total must be a whole number"),
        "total=many": (2, "total must be a whole number"),
        "total=99999999999": (2, "total must be a whole number"),
        "total=": (2, "total must be a whole number"),
        "totl=2": (2, "'totl' is no limit"),
        "engine:e9=2": (1, "there is no engine 'e9' in this fleet; its engines are e1"),
        "shadow=warm": (2, "shadow must be some of total cold tenant engine"),
        "total": (2, "'total' must be NAME=VALUE, like total=8"),
        "cold=2": (2, "cold is given twice"),
    }
    await refused(tenure, {("limits", "demo", "cold=1", word): what for word, what in table.items()})
    assert (await limits_of(tenure))["cold"]["live"] == 3


async def test_an_unknown_fleet_and_a_dead_redis_are_failures(tenure: Tenure, quiet: Path) -> None:
    done = await tenure("limits", "demos", "total=1")
    assert (done.returncode, done.stdout) == (1, "")
    assert only_line(done.stderr) == "tenure: there is no fleet 'demos'; the fleets are demo"
    done = await tenure("limits", "demo", "--redis-url", f"redis://:secret@127.0.0.1:{free_port()}/0")
    assert done.returncode == 1
    assert "does not answer (connection refused)" in only_line(done.stderr)
    assert "secret" not in done.stderr


async def test_a_higher_limit_starts_who_waits_and_a_lower_one_cuts_nobody(
    tenure: Tenure, serving: Serving
) -> None:
    streams = [await serving.stream("umbrella") for _ in range(3)]
    waiter = await serving.ask("umbrella")
    await limits_of(tenure, "total=4", "cold=4")
    assert await waiter.first_token(2)
    lowered = await limits_of(tenure, "total=1")
    assert lowered["total"]["live"] == 1
    serving.engine.finish_all()
    for call in (*streams, waiter):
        assert (await call.rest()).endswith(b"data: [DONE]\n\n")
