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


@pytest.mark.parametrize("code", sorted(REFUSAL_CODES))
def test_every_refusal_of_the_library_has_a_status_and_a_wait(code: str) -> None:
    refusal = refusal_of(Refused(code, pool="total", in_use=4, limit=4))  # type: ignore[arg-type]
    assert refusal.status in (429, 503)
    assert refusal.retry_after_s is not None
    assert 1 <= refusal.retry_after_s <= 60


def test_the_envelope_is_openais() -> None:
    refusal = refusal_of(Refused("tenant_quota", pool="tenant:acme", in_use=3, limit=3))
    error = json.loads(refusal.envelope)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert (error["code"], error["type"], error["param"]) == ("tenant_quota", "rate_limit_error", None)
    assert "tenant:acme" in error["message"]


def test_the_wait_is_spread_so_that_nobody_returns_together() -> None:
    pace = Pace()
    for _ in range(100):
        pace.held(10)
    waits = {
        refusal_of(Refused("total_pool_full", pool="total", in_use=4, limit=4), pace).retry_after_s
        for _ in range(200)
    }
    assert len(waits) >= 5
    assert waits <= set(range(5, 16))


@pytest.mark.parametrize(("held_s", "least", "most"), [(0.001, 1, 1), (10_000, 60, 60)])
def test_the_wait_stays_between_one_second_and_a_minute(held_s: float, least: int, most: int) -> None:
    pace = Pace()
    for _ in range(200):
        pace.held(held_s)
    refused = refusal_of(Refused("total_pool_full", pool="total", in_use=4, limit=4), pace)
    assert refused.retry_after_s is not None
    assert least <= refused.retry_after_s <= most


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
