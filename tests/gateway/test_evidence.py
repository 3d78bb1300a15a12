"""The engine's own report, and what it proves."""

import json
from typing import Any

import pytest

from services.gateway.evidence import Report, covered, read_events, read_report
from services.gateway.prefixes import Boundary

HALF, WHOLE = Boundary("half", 0.5), Boundary("whole", 1.0)


def report(**fields: Any) -> Report | None:
    return read_report(json.dumps(fields).encode())


def usage(**fields: Any) -> Report | None:
    return report(usage={"prompt_tokens": 100, "completion_tokens": 5, **fields})


def test_openai_usage_is_a_report() -> None:
    assert usage(prompt_tokens_details={"cached_tokens": 60}) == Report(100, 60, 5)


def test_the_responses_api_has_other_names_one_level_down() -> None:
    inner = {"input_tokens": 100, "output_tokens": 5, "input_tokens_details": {"cached_tokens": 60}}
    assert report(type="response.completed", response={"usage": inner}) == Report(100, 60, 5)


def test_llama_cpps_timings_are_a_report() -> None:
    assert report(timings={"cache_n": 60, "prompt_n": 40, "predicted_n": 5}) == Report(100, 60, 5)


@pytest.mark.parametrize("details", [None, {}, {"cached_tokens": None}, {"cached_tokens": 0}])
def test_null_in_a_report_is_a_report_of_none(details: object) -> None:
    """It can only make later requests colder."""
    assert usage(prompt_tokens_details=details) == Report(100, 0, 5)
    assert covered(usage(prompt_tokens_details=details), (HALF,)) == {"half": False}


def test_an_engine_that_does_not_say_proves_nothing() -> None:
    assert covered(usage(), (HALF, WHOLE)) == {}
    assert covered(None, (HALF,)) == {}


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[]", b'{"usage": 3}', b'{"usage": {"prompt_tokens": "x"}}', b"\xff"]
)
def test_what_is_no_report_is_none(data: bytes) -> None:
    assert read_report(data) is None


@pytest.mark.parametrize(
    ("cached", "facts"),
    [
        (100, {"half": True, "whole": True}),
        (90, {"half": True, "whole": True}),
        (89, {"half": True, "whole": False}),
        (45, {"half": True, "whole": False}),
        (44, {"half": False, "whole": False}),
        (0, {"half": False, "whole": False}),
    ],
)
def test_a_boundary_is_covered_when_the_cache_reached_it(cached: int, facts: dict[str, bool]) -> None:
    assert covered(Report(prompt=100, cached=cached), (HALF, WHOLE)) == facts


def test_later_events_complete_earlier_ones() -> None:
    """llama.cpp: timings in the finish chunk, usage in one of its own."""
    timings = json.dumps({"choices": [], "timings": {"cache_n": 60, "prompt_n": 40}}).encode()
    totals = json.dumps({"usage": {"prompt_tokens": 100, "completion_tokens": 5}}).encode()
    assert read_events([b"{}", timings, totals, b"[DONE]"]) == Report(100, 60, 5)
