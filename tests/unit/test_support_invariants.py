"""The checker of histories is not blind: each kind of wrong line is found; a fault excuses what it may."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.support.history import Asked, Fault, Faults, Limits, Line, Span, Told
from tests.support.invariants import (
    answers_explained,
    killed_reclaimed,
    lines_match,
    metrics_match,
    over_limits,
    reclaims_explained,
    words_explained,
)

CALM = Faults([], tail_s=4.0)
LIMITS = Limits([(0.0, {"total": 2, "cold": 1, "tenant_default": 9, "tenant:acme": 1})])


def asked(number: int = 1, **more: Any) -> Asked:
    """Return a request that was served."""
    facts = {
        "start_s": 10.0,
        "end_s": 11.0,
        "status": 200,
        "end": "done",
        "request_id": f"r{number}",
        "lease": f"g1~n~r{number}",
    }
    return Asked(
        **{"id": f"acme.{number}", "tenant": "acme", "kind": "short", "gateway": "g1", **facts, **more}
    )


def line(number: int = 1, gateway: str = "g1", **more: Any) -> Line:
    """Return the line of that request."""
    fields = {
        "client_request_id": f"acme.{number}",
        "request_id": f"r{number}",
        "lease": f"g1~n~r{number}",
        "queued_at": 1,
        "admitted_at": 2,
        "released_at": 3,
        "reason": "completed",
        "refused": None,
        **more,
    }
    return Line(gateway, "g1~n", fields)


def told(kind: str, at_s: float = 10.0, by: str | None = "g1", **fields: Any) -> Told:
    return Told(kind, by, at_s, fields)


def checks(findings: list[Any]) -> set[str]:
    return {finding.check for finding in findings}


def span(opened_s: float, closed_s: float, tenant: str = "beta", class_: str | None = "warm") -> Span:
    return Span(tenant, class_, opened_s, closed_s)


class TestLimits:
    """Over the limit is seen in each pool, and excused by what may cause it and by nothing else."""

    def test_a_full_pool_is_fine_also_when_one_comes_as_another_goes(self) -> None:
        spans = [span(1, 2), span(1, 3), span(2, 3), span(3, 4)]
        excess = over_limits(spans, LIMITS, CALM)
        assert not excess.findings
        assert not excess.area_s

    @pytest.mark.parametrize(
        ("spans", "pool"),
        [
            ([span(1, 3), span(1.5, 3), span(2, 3)], "total"),
            ([span(1, 3, "acme"), span(2, 3, "acme")], "tenant:acme"),
            ([span(1, 3, class_="cold"), span(2, 3, class_="cold")], "cold"),
        ],
    )
    def test_one_too_many_without_a_fault_is_found(self, spans: list[Span], pool: str) -> None:
        excess = over_limits(spans, LIMITS, CALM)
        assert len(excess.findings) == 1
        assert pool in excess.findings[0].what
        kind = pool.partition(":")[0]
        assert excess.area_s == {(kind, "unexplained"): 1.0}
        assert excess.most == {(kind, "unexplained"): 1}

    @pytest.mark.parametrize(
        ("kind", "excused"),
        [("sigstop", True), ("slow", True), ("kill", False), ("flushall", False), ("script_flush", False)],
    )
    def test_only_a_gateway_that_was_apart_may_exceed(self, kind: str, excused: bool) -> None:
        spans = [span(1, 9), span(1, 9), span(8, 9)]
        faults = Faults([Fault(kind, "g1", 2.0, 5.0)], tail_s=4.0)
        excess = over_limits(spans, LIMITS, faults)
        assert bool(excess.findings) is not excused
        assert excess.area_s == {("total", kind if excused else "unexplained"): 1.0}

    def test_a_fault_that_is_over_for_long_excuses_nothing(self) -> None:
        spans = [span(10, 12), span(10, 12), span(11, 12)]
        assert over_limits(spans, LIMITS, Faults([Fault("sigstop", "g1", 2.0, 5.0)], 4.0)).findings

    def test_a_limit_that_is_lowered_below_use_cuts_nobody_and_admits_nobody(self) -> None:
        lowered = Limits([*LIMITS.seen, (5.0, {"total": 1, "cold": 1, "tenant_default": 9})])
        running = [span(1, 9), span(1, 9)]
        excess = over_limits(running, lowered, CALM)
        assert not excess.findings
        assert excess.area_s == {("total", "limit lowered"): 4.0}
        assert over_limits([*running, span(8, 9)], lowered, CALM).findings


class TestLines:
    """One request, one line, and both say the same."""

    def test_a_request_with_its_line_is_fine(self) -> None:
        assert not lines_match([asked()], [line()], CALM)

    def test_a_second_line_is_found(self) -> None:
        assert "line_twice" in checks(lines_match([asked()], [line(), line()], CALM))

    def test_a_line_of_nobody_is_found(self) -> None:
        assert checks(lines_match([], [line()], CALM)) == {"line_of_nobody"}

    def test_a_missing_line_is_found_unless_its_gateway_was_killed(self) -> None:
        assert checks(lines_match([asked()], [], CALM)) == {"line_missing"}
        killed = Faults([Fault("kill", "g1", 11.5, 14.0)], 4.0)
        assert not lines_match([asked()], [], killed)
        others = Faults([Fault("kill", "g2", 11.5, 14.0), Fault("sigstop", "g1", 11.5, 14.0)], 4.0)
        assert lines_match([asked()], [], others)

    def test_a_line_may_wait_for_redis_and_die_with_its_gateway(self) -> None:
        late = Fault("kill", "g1", 25.0, 28.0)
        assert lines_match([asked()], [], Faults([late], 4.0))
        assert not lines_match([asked()], [], Faults([Fault("stall", "g1", 10.0, 24.0), late], 4.0))

    @pytest.mark.parametrize(
        "wrong",
        [
            {"reason": "client_disconnect"},
            {"request_id": "r7"},
            {"lease": "g1~n~r7"},
        ],
    )
    def test_a_line_that_says_something_else_is_found(self, wrong: dict[str, Any]) -> None:
        assert checks(lines_match([asked()], [line(**wrong)], CALM)) == {"line_disagrees"}

    @pytest.mark.parametrize(
        "wrong",
        [
            {"reason": "completed", "refused": "draining"},
            {"reason": None},
            {"admitted_at": None},
            {"queued_at": 3},
            {"released_at": 1},
        ],
    )
    def test_a_line_that_cannot_be_true_is_found(self, wrong: dict[str, Any]) -> None:
        assert "line_unsound" in checks(lines_match([asked()], [line(**wrong)], CALM))

    def test_a_line_of_another_gateway_is_found(self) -> None:
        assert checks(lines_match([asked()], [line(gateway="g2")], CALM)) == {"line_disagrees"}

    def test_a_refusal_must_be_the_one_that_was_sent(self) -> None:
        refused = asked(status=429, code="tenant_quota", lease=None)
        right: dict[str, Any] = {"reason": None, "lease": None, "refused": "tenant_quota"}
        assert not lines_match([refused], [line(**right)], CALM)
        assert lines_match([refused], [line(**{**right, "refused": "line_full"})], CALM)

    def test_two_requests_with_one_lease_are_found(self) -> None:
        both = [asked(1), replace(asked(2), lease="g1~n~r1")]
        lines = [line(1), line(2, lease="g1~n~r1")]
        assert checks(lines_match(both, lines, CALM)) == {"id_twice"}


class TestAnswers:
    """Without a fault everybody is served or told to come back."""

    @pytest.mark.parametrize(
        ("answer", "fine"),
        [
            ({}, True),
            ({"status": 429, "code": "cold_pool_full"}, True),
            ({"status": 503, "code": "admission_unavailable"}, False),
            ({"status": 502, "code": "engine_error"}, False),
            ({"status": 500}, False),
            ({"end": "cut"}, False),
            ({"end": "cut", "stopped": True}, True),
            ({"end": "left", "status": 0}, True),
            ({"status": 404, "code": "unknown_model", "wanted": "unknown_model"}, True),
            ({"wanted": "unknown_model"}, False),
        ],
    )
    def test_of_a_calm_hour(self, answer: dict[str, Any], fine: bool) -> None:
        assert bool(answers_explained([asked(**answer)], CALM)) is not fine

    @pytest.mark.parametrize(
        "answer",
        [
            {"end": "hung", "status": 0},
            {"status": 500, "code": "internal_error"},
            {"status": 401, "code": "invalid_api_key"},
        ],
    )
    def test_what_no_fault_excuses(self, answer: dict[str, Any]) -> None:
        faults = Faults([Fault("redis_restart", None, 9.0, 12.0)], 4.0)
        assert checks(answers_explained([asked(**answer)], faults)) == {"answer_never"}
        assert not answers_explained([asked(status=503, code="recovering")], faults)


class TestCounts:
    """What is counted is what is logged."""

    def test_one_more_or_less_is_found(self) -> None:
        lines = [line(1), line(2, lease=None, reason=None, refused="line_full")]
        counted = {
            ("ends", "completed"): 1.0,
            ("admissions", "granted"): 1.0,
            ("admissions", "line_full"): 1.0,
        }
        assert not metrics_match("g1~n", lines, counted)
        for name in counted:
            for wrong in (0.0, 2.0):
                assert metrics_match("g1~n", lines, {**counted, name: wrong}), (name, wrong)


class TestReclaims:
    """Only who was gone loses leases, and loses each of them once."""

    def test_a_lease_taken_from_a_healthy_holder_is_found(self) -> None:
        mine = [told("reclaimed", lease="g1~n~r1")]
        assert checks(reclaims_explained(mine, CALM)) == {"reclaim_unexplained"}
        assert reclaims_explained(mine, Faults([Fault("kill", "g2", 9.0, 9.5)], 4.0))
        assert not reclaims_explained(mine, Faults([Fault("kill", "g1", 8.0, 9.5)], 4.0))

    @pytest.mark.parametrize("times", [0, 2])
    def test_a_lease_of_the_dead_that_never_or_twice_came_back_is_found(self, times: int) -> None:
        held = {"g1~n": (9.0, ["g1~n~r1"])}
        back = told("reclaimed", lease="g1~n~r1")
        assert not killed_reclaimed(held, [back], CALM)
        assert checks(killed_reclaimed(held, [back] * times, CALM)) == {"killed_lease"}
        forgotten = Faults([Fault("flushall", None, 10.0, 10.0)], 4.0)
        assert not killed_reclaimed(held, [], forgotten)


class TestWords:
    """A warning needs its fault; an error, a traceback and a stray line have no excuse."""

    @pytest.mark.parametrize(
        ("word", "fine"),
        [
            (told("listening", level="info"), True),
            (told("redis_unavailable", level="warning"), True),
            (told("redis_unavailable", at_s=40.0, level="warning"), False),
            (told("redis_unavailable", by="g2", level="warning"), False),
            (told("redis_unavailable", level="error", exception="Traceback"), False),
            (told("lease_reasserted", level="warning", cause="reaped_late"), True),
            (told("lease_reasserted", level="warning", cause="lost_epoch"), False),
            (told("internal error", level="error"), False),
            (told("Task exception was never retrieved", level="warning"), False),
            (told("no JSON", level="stray", text="Traceback (most recent call last):"), False),
        ],
    )
    def test_of_an_hour_with_one_outage(self, word: Told, fine: bool) -> None:
        faults = Faults([Fault("blackhole", "g1", 8.0, 9.5)], 4.0)
        assert bool(words_explained([word], faults)) is not fine

    @pytest.mark.parametrize(("apart", "fine"), [("g1", True), (None, True), ("g2", False)])
    def test_who_was_cut_off_since_a_loss_hears_of_it_late(self, apart: str | None, fine: bool) -> None:
        word = told("lease_reasserted", at_s=25.0, level="warning", cause="lost_epoch")
        loss = Fault("flushall", None, 10.0, 10.0)
        cut_off = [Fault("one_way", apart, 9.5, 16.0), Fault("stall", apart, 15.0, 22.0)]
        assert bool(words_explained([word], Faults([loss, *cut_off], 4.0))) is not fine
        # One who could hear of it in between did.
        later = [Fault("one_way", apart, 9.5, 16.0), Fault("stall", apart, 17.0, 22.0)]
        assert words_explained([word], Faults([loss, *later], 4.0))
