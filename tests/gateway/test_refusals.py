"""From an error to status, code, Retry-After and envelope."""

import json
from typing import get_args

import pytest

from services.gateway.refusals import (
    STATUS,
    NotServed,
    Pace,
    Reason,
    error_event,
    refusal_at_end,
    refusal_of,
)
from services.permits.errors import REFUSAL_CODES, Refused, Unavailable


@pytest.mark.parametrize("code", sorted(REFUSAL_CODES - {"forbidden"}))
def test_every_refusal_of_the_library_has_a_status_and_a_wait(code: str) -> None:
    refusal = refusal_of(Refused(code, pool="total", in_use=4, limit=4))  # type: ignore[arg-type]
    assert refusal.status in (429, 503)
    assert refusal.retry_after_s is not None
    assert 1 <= refusal.retry_after_s <= 60


def test_who_was_ended_in_line_is_not_asked_to_come_back() -> None:
    refusal = refusal_of(Refused("forbidden", message="the request was ended while it waited: revoked"))
    assert (refusal.status, refusal.retry_after_s) == (403, None)


def test_the_envelope_is_openais() -> None:
    refusal = refusal_of(Refused("tenant_quota", pool="tenant:acme", in_use=3, limit=3))
    error = json.loads(refusal.envelope)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert (error["code"], error["type"], error["param"]) == ("tenant_quota", "rate_limit_error", None)
    assert "tenant:acme" in error["message"]


FULL = Refused("total_pool_full", pool="total", in_use=4, limit=4)


def waits_of(pace: Pace, count: int, refused: Refused = FULL, gateways: int = 1) -> list[int]:
    return [refusal_of(refused, pace, gateways=gateways, total=4).retry_after_s or 0 for _ in range(count)]


def paced(held_s: float) -> Pace:
    pace = Pace()
    for _ in range(200):
        pace.held(held_s)
    return pace


def test_each_of_those_refused_together_gets_a_turn_of_its_own() -> None:
    """Four places of 10 s each: one comes free every 2.5 s, and two are told to come for it."""
    for n, wait_s in enumerate(waits_of(paced(10), 20)):
        assert 0.8 * (2.5 + 1.25 * n) - 1 <= wait_s <= 1.2 * (2.5 + 1.25 * n) + 1


def test_turns_begin_behind_those_who_stand_in_line() -> None:
    """How long the line may be says nothing; four places of 8 s each free one every 2 s."""
    refused = Refused("line_full", pool="line", in_use=10, limit=10, waiting=10)
    assert 0.8 * 22 - 1 <= waits_of(paced(8), 1, refused)[0] <= 1.2 * 22 + 1


def test_one_whose_patience_ended_is_told_a_turn_and_not_a_whole_hold() -> None:
    assert waits_of(paced(8), 1, Refused("queue_timeout", pool="line"))[0] <= 4


def test_other_gateways_send_people_away_too() -> None:
    """Three replicas that refuse alike name every third turn each: together they fill them all."""
    last_s = waits_of(paced(10), 6, gateways=3)[-1]
    assert 0.8 * (2.5 + 5 * 3 * 1.25) - 1 <= last_s <= 1.2 * (2.5 + 5 * 3 * 1.25) + 1


def test_those_whose_turn_is_out_of_sight_are_spread_over_the_second_half_of_the_minute() -> None:
    waits = waits_of(paced(10), 200)[60:]
    assert min(waits) >= 24
    assert max(waits) <= 60
    assert len(set(waits)) >= 20


@pytest.mark.parametrize(("held_s", "least", "most"), [(0.001, 1, 1), (10_000, 24, 60)])
def test_the_wait_stays_between_one_second_and_a_minute(held_s: float, least: int, most: int) -> None:
    waits = waits_of(paced(held_s), 100)
    assert least <= min(waits) <= max(waits) <= most


def test_a_learning_fleet_says_how_long_it_learns() -> None:
    waits = [refusal_of(Refused("recovering", wait_ms=20_000)).retry_after_s or 0 for _ in range(50)]
    assert 10 <= min(waits) <= max(waits) <= 30


def test_redis_away_is_not_called_a_quota() -> None:
    refusal = refusal_of(Unavailable("timed out"))
    assert (refusal.status, refusal.code) == (503, "admission_unavailable")


def test_client_errors_carry_no_wait() -> None:
    assert refusal_of(NotServed("unknown_model", "x")).retry_after_s is None


@pytest.mark.parametrize("reason", get_args(Reason))
def test_every_end_has_an_answer_or_nobody_to_answer(reason: Reason) -> None:
    refusal = refusal_at_end(reason)
    if reason in ("completed", "client_disconnect", "client_stalled"):
        assert refusal is None
        return
    assert refusal is not None
    assert refusal.status == STATUS[refusal.code]
    error = json.loads(error_event(reason).removeprefix(b"data: "))["error"]
    assert error["code"] == refusal.code
    assert b"[DONE]" not in error_event(reason)
    assert "finish_reason" not in error
