"""Who waits stands in line: joining, leaving, its bounds, and what people see of it."""

from __future__ import annotations

import pytest

from tests.lua.fleet import SLACK_MS, TIMES, Told, held, told
from tests.lua.line import G1, G2, PATIENT_MS, Line

# --- joining


def test_one_who_finds_no_place_joins_with_those_before_it_counted(line: Line) -> None:
    line.run_one()
    assert line.ask()[1] == ["QUEUED", line.meta("epoch"), 1, 1]
    assert line.ask(at=G2)[1] == ["QUEUED", line.meta("epoch"), 1, 2]
    assert len(line.live()) == 1


def test_one_without_patience_is_refused_and_leaves_no_trace(line: Line) -> None:
    line.run_one()
    line.join("other")
    before = line.dump()
    _, reply = line.ask(patience_ms=0)
    assert reply[0:7] == ["FULL", line.meta("epoch"), 1, "total", 1, 1, 1]
    after = line.dump()
    for dump in (before, after):
        dump[line.keys.meta].pop("clock")
        dump[line.keys.meta].pop("last")
    assert after == before


def test_the_same_id_again_keeps_its_place_and_takes_no_second(line: Line) -> None:
    """The answer to the first call was lost."""
    running = line.run_one()
    first = line.join()
    second = line.join()
    assert line.ask(lease=first)[1][0] == "QUEUED"
    assert line.ask(lease=second)[1] == ["QUEUED", line.meta("epoch"), 1, 2]
    line.end(running)
    assert line.live() == {first}


def test_the_same_id_again_after_its_grant_gets_the_grant(line: Line) -> None:
    """The wake-up was lost, and the gateway asks."""
    running = line.run_one()
    waiting = line.join()
    line.end(running)
    assert line.ask(lease=waiting)[1] == ["GRANTED", line.meta("epoch"), 2, "cold", "e1"]
    assert line.waiting == {}


def test_a_grant_that_a_tick_tells_of_lasts_anew(line: Line) -> None:
    """Its message was lost, so the gateway can know only now when it must have renewed it."""
    running = line.run_one()
    waiting = line.join()
    line.end(running)
    line.advance(TIMES.provisional_ms - SLACK_MS)
    assert set(told(line.tick(waiters=(waiting,))).granted) == {waiting}
    for pool in ("total", "cold", "tenant:acme", "engine:e1"):
        assert line.pool(pool)[waiting] >= line.now + TIMES.provisional_ms - SLACK_MS


def test_what_a_waiter_wants_can_be_read_in_its_record(line: Line) -> None:
    """An engineer with redis-cli sees who waits, since when, and for what."""
    line.run_one(engines=("e1", "e2"))
    lease = line.join(engines=("e1", "e2"))
    holder, tenant, class_, deadline, joined, request_id, engines, warm = line.waiting[lease].split(" ")
    assert (holder, tenant, class_, request_id) == (G1, "acme", "cold", f"req-{lease}")
    assert (engines, warm) == ("e1,e2", "-")
    assert int(deadline) - int(joined) == PATIENT_MS
    assert abs(line.now - int(joined)) < SLACK_MS


def test_no_newcomer_overtakes_an_eligible_waiter(line: Line) -> None:
    running = line.run_one()
    first = line.join()
    line.client.hset(line.keys.limits, "total", 2)
    # A limit edited by hand: nobody has dispatched yet, and the newcomer's own call finds the free place.
    late, reply = line.ask("newcomer", at=G2)
    assert reply[0] == "QUEUED"
    assert line.live() == {running, first}
    assert list(line.waiting) == [late]


def test_a_newcomer_passes_those_who_cannot_run_anyway(line: Line) -> None:
    line.set_limits({"total": 3, "tenant:acme": 1})
    line.run_one()
    line.join()
    assert line.ask("other")[1][0] == "GRANTED"


# --- its bounds


def test_the_line_is_no_longer_than_it_may_be(line: Line) -> None:
    line.set_limits({"line_max": 3})
    line.run_one()
    for n in range(3):
        line.join(f"t{n}")
    _, reply = line.ask("t3")
    assert reply[:7] == ["FULL", line.meta("epoch"), 1, "line", 3, 3, 3]
    assert len(line.waiting) == 3


def test_one_tenant_cannot_fill_the_line(line: Line) -> None:
    line.set_limits({"line_max_per_tenant": 2})
    line.run_one()
    line.join()
    line.join(prefixes=("p",))
    assert line.ask()[1][3:7] == ["line", 2, 2, 2]
    line.join("other")


def test_cold_and_warm_waiters_of_a_tenant_count_together(line: Line) -> None:
    line.set_limits({"line_max_per_tenant": 2})
    line.witness("e1", {"p": True})
    line.run_one()
    line.join()
    line.join(prefixes=("p",))
    assert line.ask(prefixes=("p",))[1][3:6] == ["line", 2, 2]


def test_a_fleet_without_line_limits_has_no_line(line: Line) -> None:
    line.client.hdel(line.keys.limits, "line_max", "line_max_per_tenant")
    line.run_one()
    assert line.ask()[1][0] == "FULL"


def test_a_tenant_that_is_shut_out_does_not_wait_for_what_never_comes(line: Line) -> None:
    line.set_limits({"tenant:acme": 0})
    assert line.ask()[1][3:6] == ["tenant:acme", 0, 0]


def test_while_a_fleet_learns_nobody_joins(line: Line) -> None:
    line.run_one()
    line.client.delete(line.keys.meta)
    assert line.ask()[1][0] == "LEARNING"
    assert line.waiting == {}


# --- leaving


def test_one_who_leaves_is_gone_without_a_trace(line: Line) -> None:
    line.run_one()
    leases = [line.join(), line.join("other")]
    assert [line.end(lease)[3] for lease in leases] == [0, 0], "it held nothing that could be returned"
    assert line.no_line()


def test_leaving_twice_harms_nobody(line: Line) -> None:
    running = line.run_one()
    left, stays = line.join(), line.join()
    line.end(left)
    line.end(left)
    line.end(running)
    assert line.live() == {stays}


def test_a_grant_to_one_who_left_goes_to_the_next_in_the_same_script(line: Line) -> None:
    """It was granted the moment it gave up: the blind release hands the place on."""
    running = line.run_one()
    first, second = line.join(), line.join(at=G2)
    line.end(running)
    assert line.heard() == [f"{G1} {first}"]
    assert line.end(first)[3] == 1
    assert line.live() == {second}
    assert line.heard() == [f"{G2} {second}"]


def test_thirty_leave_and_the_one_who_stays_is_next(line: Line) -> None:
    running = line.run_one()
    leaving = [line.join() for _ in range(30)]
    stays = line.join(at=G2)
    line.release(*leaving, tenant="acme", engine="")
    line.end(running)
    assert line.live() == {stays}
    assert line.heard() == [f"{G2} {stays}"]


# --- those who died or ran out of patience


def test_one_whose_patience_is_over_is_passed_over_and_dropped(line: Line) -> None:
    running = line.run_one()
    line.join(patience_ms=1000)
    patient = line.join()
    line.advance(1001)
    line.end(running)
    assert line.live() == {patient}
    assert line.waiting == {}


def test_a_dead_gateways_waiters_are_passed_over_and_dropped(line: Line) -> None:
    running = line.run_one(at=G2)
    for n in range(100):
        line.join(f"t{n % 7}")
    lives = line.join(at=G2)
    line.client.zrem(line.keys.gateways, G1)
    line.end(running)
    assert line.live() == {lives}, "in the very script that freed the place"
    assert line.heard() == [f"{G2} {lives}"]


def test_a_thousand_dead_waiters_are_dropped_in_bounded_numbers(line: Line) -> None:
    running = line.run_one(at=G2)
    for n in range(1000):
        line.join(f"t{n % 7}")
    lives = line.join("t0", at=G2)
    line.client.zrem(line.keys.gateways, G1)
    line.end(running)
    assert len(line.waiting) == 1001 - 128
    scripts = 1
    while line.live() != {lives}:
        line.tick(holder=G2)
        scripts += 1
    assert scripts <= 8


@pytest.mark.parametrize("verb", ["tick", "reap"])
def test_dead_waiters_do_not_fill_the_line_behind_one_who_lives(line: Line, verb: str) -> None:
    """Nobody reaches the head while a long stream runs; the line must not stay full of the dead."""
    line.run_one(at=G2)
    lives = [line.join(at=G2) for _ in range(40)]
    for _ in range(60):
        line.join()
    line.client.zrem(line.keys.gateways, G1)
    for _ in range(200):
        line.tick(holder=G2) if verb == "tick" else line.reap()
        if len(line.waiting) == 40:
            break
    assert set(line.waiting) == set(lives)


# --- what a tick tells a gateway of its waiters


def test_a_lost_wake_up_is_in_the_answer_to_the_next_tick(line: Line) -> None:
    running = line.run_one()
    first, second, never = line.join(), line.join(), f"{G1}~nobody"
    line.end(running)
    answer = told(line.tick(waiters=(first, second, never)))
    assert answer == Told(granted={first: ("cold", "e1", 2)}, gone=[never])


def test_the_first_tick_after_all_data_was_lost_sends_waiters_back_to_ask(line: Line) -> None:
    line.run_one()
    waiting = [line.join(), line.join("other")]
    line.client.flushall()
    assert told(line.tick(waiters=waiting)).gone == waiting
    assert line.no_line()


def test_after_all_data_was_lost_the_line_forms_anew(line: Line) -> None:
    running = line.run_one()
    waiting = line.join()
    line.client.flushall()
    line.tick(held(running), waiters=(waiting,))
    limits = {"total": 1, "cold": 1, "line_max": 9, "line_max_per_tenant": 9}
    line.set_limits(limits, mode="restore", seen=1)
    line.advance(TIMES.learning_ms + 1)
    line.tick(held(running))
    assert line.ask(lease=waiting)[1][0] == "QUEUED"
    line.end(running)
    assert line.live() == {waiting}


@pytest.mark.parametrize("gone", ["line:waiting", "line:queue:cold:acme", "line:next:cold", "line:tenants"])
def test_a_line_that_lost_a_key_heals_with_ticks(line: Line, gone: str) -> None:
    """Nobody may be left standing in half a line: a waiter is found again, or told to ask again."""
    running = line.run_one()
    first = line.join()
    line.client.delete(line.keys.meta.replace("meta", gone))
    answer = told(line.tick(held(running), waiters=(first,)))
    assert answer.gone in ([], [first])
    if answer.gone:
        assert line.ask(lease=first)[1][0] == "QUEUED"
    line.end(running)
    line.tick(waiters=(first,))
    assert line.live() == {first}
    assert line.no_line()


def test_rubbish_in_the_line_stops_nobody(line: Line) -> None:
    running = line.run_one()
    first = line.join()
    line.client.hset(
        line.keys.waiting, mapping={"x": "", f"{G1}~y": "rubbish", f"{G1}~z": "a b c d e f g h i"}
    )
    line.client.zadd(line.keys.meta.replace("meta", "line:queue:cold:acme"), {"ghost": 0})
    line.tick(waiters=(first,))
    line.end(running)
    assert line.live() == {first}
    line.tick()
    assert line.no_line()


# --- limits


def test_a_raised_limit_starts_those_who_fit_at_once(line: Line) -> None:
    line.run_one()
    waiting = [line.join(at=G2) for _ in range(5)]
    line.set_limits({"total": 4})
    assert line.live() >= set(waiting[:3])
    assert line.heard() == [f"{G2} {lease}" for lease in waiting[:3]]


def test_a_raised_quota_starts_those_who_fit_at_once(line: Line) -> None:
    line.set_limits({"total": 9, "tenant:acme": 1})
    line.run_one()
    waiting = [line.join() for _ in range(3)]
    line.set_limits({"tenant:acme": 3})
    assert line.live() >= set(waiting[:2])


def test_a_lowered_limit_cuts_nobody_and_starts_nobody_until_below(line: Line) -> None:
    line.set_limits({"total": 3})
    running = [line.run_one() for _ in range(3)]
    waiting = line.join()
    line.set_limits({"total": 1})
    for lease in running[:2]:
        line.end(lease)
        assert waiting in line.waiting
    assert line.live() == {running[2]}
    line.end(running[2])
    assert line.live() == {waiting}


@pytest.mark.parametrize("shadow", ["total", "tenant", "cold", "engine"])
def test_a_watched_pool_counts_and_refuses_nobody(line: Line, shadow: str) -> None:
    """How an operator learns a number before it is enforced."""
    limits = {"total": 9, "cold": 9, "tenant:acme": 9, "engine:e1": 9}
    narrow = {"total": "total", "tenant": "tenant:acme", "cold": "cold", "engine": "engine:e1"}[shadow]
    line.set_limits({**limits, narrow: 1})
    line.run_one()
    first = line.join()
    line.set_limits({"shadow": shadow})
    assert first in line.live(), "whoever waited for it starts when it is only watched"
    for _ in range(3):
        line.run_one()
    assert len(line.live(narrow)) == 5
    assert line.count(narrow)[8] == 5
    line.set_limits({"shadow": ""})
    assert line.ask(patience_ms=0)[1][3:6] == [narrow, 5, 1]


def test_two_pools_can_be_watched(line: Line) -> None:
    line.set_limits({"total": 1, "tenant:acme": 1, "shadow": "tenant, total"})
    for _ in range(3):
        line.run_one()
    assert len(line.live()) == 3
