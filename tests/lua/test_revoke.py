"""revoke ends one request, running or waiting, from any replica, and tells its gateway."""

from __future__ import annotations

import pytest

from tests.lua.fleet import held, told
from tests.lua.line import G1, G2, Line


def said(line: Line) -> list[str]:
    """Return what was published, as `channel: text`."""
    return [f"{gateway}: {text.splitlines()[1]}" for gateway, text in line.messages()]


def test_a_running_request_keeps_its_places_until_its_gateway_released_it(line: Line) -> None:
    """The engine still computes: the place is free when the stream is really over."""
    running = line.run_one(at=G2)
    waiting = line.join()
    assert line.revoke(running)[3:] == [running, "live"]
    assert said(line) == [f"{G2}: {running} 0 cut revoked"]
    assert line.live() == {running}
    line.end(running)
    assert line.live() == {waiting}


def test_the_next_tick_tells_it_again_until_it_is_released(line: Line) -> None:
    """The message may be lost."""
    running = line.run_one()
    line.revoke(running, reason="user_stop")
    for _ in range(2):
        assert told(line.tick(held(running))).cut == {running: "user_stop"}
    line.end(running)
    assert line.live() == set()


def test_one_who_waits_leaves_the_line_at_once(line: Line) -> None:
    running = line.run_one()
    waiting, next_ = line.join(at=G2), line.join()
    assert line.revoke(waiting)[3:] == [waiting, "line"]
    assert said(line) == [f"{G2}: {waiting} 0 cut revoked"]
    assert told(line.tick(holder=G2, waiters=(waiting,))).gone == [waiting]
    line.end(running)
    assert line.live() == {next_}


def test_a_request_is_found_by_its_id_whichever_gateway_has_it(line: Line) -> None:
    _, reply = line.ask(lease=f"{G2}~abc", at=G2)
    assert reply[0] == "GRANTED"
    line.ask(lease=f"{G1}~def")
    assert line.revoke(request_id="abc", tenant="acme", reason="user_stop")[3:] == [f"{G2}~abc", "live"]
    assert line.revoke(request_id="def", tenant="acme", reason="user_stop")[3:] == [f"{G1}~def", "line"]


@pytest.mark.parametrize("id_", ["ab", "abcd", "", "*", "a?c", "b2~abc"])
def test_only_the_exact_id_finds_it(line: Line, id_: str) -> None:
    line.ask(lease=f"{G2}~abc", at=G2)
    assert line.revoke(request_id=id_, tenant="acme")[0] == "UNKNOWN"
    assert line.revoke(lease=id_)[0] == "UNKNOWN"
    assert said(line) == []


@pytest.mark.parametrize("waits", [False, True])
def test_another_tenants_request_is_unknown(line: Line, waits: bool) -> None:
    if waits:
        line.run_one()
    line.ask("other", lease=f"{G2}~abc", at=G2)
    before = line.dump()
    assert line.revoke(request_id="abc", tenant="acme")[0] == "UNKNOWN"
    assert line.dump().keys() == before.keys()
    assert line.revoke(f"{G2}~abc", tenant="acme")[0] == "UNKNOWN"
    assert said(line) == []


def test_a_finished_request_is_unknown(line: Line) -> None:
    running = line.run_one()
    line.end(running)
    assert line.revoke(running)[0] == "UNKNOWN"
    assert line.record(running) == {}


def test_twice_is_as_once(line: Line) -> None:
    running = line.run_one()
    assert line.revoke(running)[3:] == line.revoke(running)[3:]
    assert told(line.tick(held(running))).cut == {running: "revoked"}


def test_who_ended_what_is_in_the_history(line: Line) -> None:
    running = line.run_one()
    line.revoke(running)
    (event,) = line.events("revoked")
    assert event == {
        "kind": "revoked",
        "lease": running,
        "tenant": "acme",
        "reason": "revoked",
        "who": "admin",
    }
