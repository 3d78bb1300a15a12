"""The watch on the lease clock: one word when it no longer runs at our speed, and one when it does again."""

from __future__ import annotations

import pytest

from services.permits.clockwatch import WINDOW_S, ClockWatch

TICK_S = 2.5


def seen(
    watch: ClockWatch, rate: float, *, seconds: float, at_s: float = 1000.0, epoch: str = "e"
) -> list[float]:
    """Return what the watch said over so many seconds of ticks with the clock at `rate`."""
    ticks = round(seconds / TICK_S) + 1
    readings = ((at_s + n * TICK_S, round((at_s + n * TICK_S * rate) * 1000)) for n in range(ticks))
    return [said for at, clock in readings if (said := watch.look(at, clock, epoch)) is not None]


@pytest.mark.parametrize("rate", [0.9, 1.0, 1.1])
def test_a_clock_at_our_speed_is_no_news(rate: float) -> None:
    assert seen(ClockWatch(gap_s=2 * TICK_S), rate, seconds=60) == []


@pytest.mark.parametrize("rate", [0.0, 0.3, 2.0])
def test_a_clock_that_runs_wrong_is_told_once(rate: float) -> None:
    watch = ClockWatch(gap_s=2 * TICK_S)
    assert seen(watch, rate, seconds=60) == [pytest.approx(rate, abs=0.01)]
    assert watch.is_off


def test_and_once_when_it_runs_right_again() -> None:
    watch = ClockWatch(gap_s=2 * TICK_S)
    seen(watch, 0.0, seconds=60)
    assert len(seen(watch, 1.0, seconds=60, at_s=1062.5)) == 1
    assert not watch.is_off


def test_an_outage_holds_the_clock_back_and_is_no_fault_of_it() -> None:
    watch = ClockWatch(gap_s=2 * TICK_S)
    clock_ms = 0
    for n in range(20):
        # Ten seconds without an answer, of which the lease clock counts two ticks.
        clock_ms += int(2 * TICK_S * 1000) if n % 2 else int(TICK_S * 1000)
        assert watch.look(1000.0 + n * 4 * WINDOW_S, clock_ms, "e") is None


def test_a_new_epoch_begins_a_new_clock() -> None:
    watch = ClockWatch(gap_s=2 * TICK_S)
    for n in range(20):
        assert watch.look(1000.0 + n * TICK_S, n * 100_000_000, f"e{n // 2}") is None
