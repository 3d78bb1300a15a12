"""`tenure line`, `gateways`, `revoke`, `drain` and `events`, beside a gateway that serves meanwhile."""

import json
import time
from pathlib import Path
from typing import Any

from tests.cli.conftest import Serving, Tenure, only_line
from tests.support.waiting import wait_until


async def said(tenure: Tenure, *words: str) -> dict[str, Any]:
    done = await tenure(*words, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


async def test_the_line_shows_who_waits_and_a_waiter_can_be_revoked(tenure: Tenure, serving: Serving) -> None:
    for _ in range(2):
        await serving.stream("acme")
    waits = await serving.ask("acme")

    async def stands_in_line() -> bool:
        return len((await said(tenure, "line"))["line"]) == 1

    await wait_until(stands_in_line, "the third request waits")
    (waiter,) = (await said(tenure, "line", "--fleet", "demo"))["line"]
    assert (waiter["fleet"], waiter["tenant"], waiter["class"]) == ("demo", "acme", "cold")
    assert 0 < waiter["deadline_in_ms"] <= 60_000
    assert waiter["lease"] in (await tenure("line")).stdout
    assert (await tenure("revoke", waiter["lease"])).returncode == 0
    assert await waits.head(2) >= 400
    assert (await tenure("line")).stdout.strip() == "nobody waits"


async def test_revoke_ends_a_live_stream_within_a_second_and_only_once(
    tenure: Tenure, serving: Serving
) -> None:
    stream = await serving.stream("acme")
    other = await serving.stream("acme")
    lease = stream.headers["tenure-lease"]
    done = await tenure("revoke", lease)
    assert (done.returncode, done.stderr) == (0, "")
    began = time.monotonic()
    assert b"[DONE]" not in await stream.rest()
    assert time.monotonic() - began < 1
    again = await tenure("revoke", lease)
    assert (again.returncode, again.stdout) == (1, "")
    assert only_line(again.stderr) == f"tenure: there is no live lease '{lease}': it has ended, or never was"
    serving.engine.finish_all()
    assert (await other.rest()).endswith(b"data: [DONE]\n\n")
    (event,) = (await said(tenure, "events", "--fleet", "demo", "--no-ends"))["events"]
    assert (event["kind"], event["lease"], event["reason"]) == ("revoked", lease, "revoked")
    assert "@" in event["who"]


async def test_a_drained_gateway_finishes_and_stops(tenure: Tenure, serving: Serving) -> None:
    stream = await serving.stream("acme")
    (row,) = (await said(tenure, "gateways"))["gateways"]
    assert (row["gateway"], row["fleets"], row["live"], row["draining"]) == ("g1", ["demo"], 1, False)
    assert row["holder"] in (await tenure("gateways")).stdout
    told = await said(tenure, "drain", "g1")
    assert told["draining"] == [row["holder"]]
    serving.engine.finish_all()
    assert (await stream.rest()).endswith(b"data: [DONE]\n\n")
    assert await serving.rig.gateways[0].wait(10) == 0
    nobody = await tenure("drain", "g7")
    assert nobody.returncode == 1
    assert "there is no gateway 'g7'" in only_line(nobody.stderr)


async def test_events_are_the_newest_and_a_cursor_leads_on(tenure: Tenure, quiet: Path) -> None:
    for total in (5, 6, 7):
        await tenure("limits", "demo", f"total={total}")
    newest = await said(tenure, "events", "--limit", "2")
    assert [event["new"] for event in newest["events"]] == ["6", "7"]
    assert newest["cursor"] == newest["events"][-1]["id"]
    assert (await said(tenure, "events", "--after", newest["cursor"]))["events"] == []
    oldest = await said(tenure, "events", "--after", "0", "--limit", "1")
    assert [event["new"] for event in oldest["events"]] == ["5"]
    following = await said(tenure, "events", "--after", oldest["cursor"])
    assert [event["new"] for event in following["events"]] == ["6", "7"]
    lines = (await tenure("events")).stdout.splitlines()
    assert "field=total old=3 new=5" in lines[1]
    bad = await tenure("events", "--after", "yesterday")
    assert bad.returncode == 2
    assert "after must be the id of an event" in only_line(bad.stderr)


async def test_nobody_and_nothing_are_said_in_words(tenure: Tenure, quiet: Path) -> None:
    for command, words in (("line", "nobody waits"), ("gateways", "no gateway ticks"), ("events", "nothing")):
        done = await tenure(command)
        assert (done.returncode, done.stderr) == (0, "")
        assert words in only_line(done.stdout)
    done = await tenure("line", "--fleet", "nope")
    assert done.returncode == 1
    assert "there is no fleet 'nope'" in only_line(done.stderr)
