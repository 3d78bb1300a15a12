"""Figures are summarised, written and held against their aims without a mistake of ours in between."""

import re
from pathlib import Path

import pytest

from bench import chart, report
from bench.aims import Aim, of_redis
from bench.redis_cost import Cost
from bench.report import BEGIN, END, Sheet, put_between_marks
from bench.sheets import redis_core
from bench.stats import Spread, quantile

PAGE = f"# Title\n\nbefore\n\n{BEGIN}\nold\n{END}\n\nafter\n"


@pytest.mark.parametrize(
    ("share", "found"), [(0.0, 1), (0.5, 50), (0.501, 51), (0.99, 99), (1.0, 100)], ids=str
)
def test_a_quantile_is_a_figure_that_was_measured(share: float, found: float) -> None:
    """The p99 of a hundred is the 99th, not something between two."""
    assert quantile(list(range(100, 0, -1)), share) == found


def test_there_is_no_quantile_of_nothing() -> None:
    """A run that measured nothing must not print 0."""
    with pytest.raises(ValueError, match="no figures"):
        quantile([], 0.5)


def test_a_spread_shows_median_and_range() -> None:
    """One number would hide a machine that was busy with something else."""
    assert Spread.of([3.0, 1.0, 2.04]).text(1) == "2.0 (1.0-3.0)"
    assert Spread.of([2.0]).text() == "2"


def test_only_what_stands_between_the_marks_is_replaced() -> None:
    """The sentences around the tables are written by hand."""
    page = put_between_marks(PAGE, r"new \1")
    assert page == f"# Title\n\nbefore\n\n{BEGIN}\n\nnew \\1\n\n{END}\n\nafter\n"
    with pytest.raises(ValueError, match="the page has no lines"):
        put_between_marks("# Title\n", "new")


def test_a_page_gets_its_tables_and_pictures(tmp_path: Path) -> None:
    """A link to a picture that is not there would show nothing."""
    page = tmp_path / "performance.md"
    page.write_text(PAGE)
    sheet = Sheet("A table", ("what", "figure"), [["a|b", "1"]], "A note.")
    report.write(page, [sheet], {"cpu-per-token.svg": "<svg/>"}, "Which machine.")
    text = page.read_text()
    assert "| what | figure |\n| --- | --- |\n| a\\|b | 1 |\n\nA note.\n" in text
    assert "![cpu per token](performance/cpu-per-token.svg)" in text
    assert (tmp_path / "performance" / "cpu-per-token.svg").read_text() == "<svg/>"


def test_bars_are_as_long_as_their_figures() -> None:
    """Of two bars the one of twice the figure is twice as long."""
    drawn = chart.bars(
        "CPU <us>", [("one", Spread.of([10.0])), ("two", Spread.of([20.0]))], digits=0, ours="one"
    )
    one, two = _widths(drawn)
    assert two == pytest.approx(2 * one)
    assert "CPU &lt;us&gt;" in drawn


def test_bars_that_differ_by_far_are_logarithmic_and_say_so() -> None:
    """Beside 28 000 us the 25 us of others would be nothing to see."""
    figures = [(name, Spread.of([us])) for name, us in (("a", 10.0), ("b", 100.0), ("c", 1000.0))]
    drawn = chart.bars("CPU", figures, digits=0, ours="a")
    first, second, third = _widths(drawn)
    assert first == 0
    assert third == pytest.approx(2 * second)
    assert "logarithmic from 10" in drawn


def test_a_missed_aim_says_by_how_much() -> None:
    """A table of aims that hides a miss is worth nothing."""
    assert Aim("CPU", 450, 300).row() == ["CPU", "300", "450", "no, by 50%"]
    assert Aim("CPU", 300, 300).row()[-1] == "yes"


def test_growth_is_judged_over_the_rows_that_differ_in_one_thing() -> None:
    """A row with more tenants must not pass for growth with leases."""
    cheap = {"release_us": 10.0, "gathered_us": 5.0, "tick_per_lease_us": 5.0}
    rows = [
        Cost(100, 20, acquire_us=20.0, **cheap),
        Cost(1_000, 20, acquire_us=20.0, **cheap),
        Cost(10_000, 20, acquire_us=23.0, **cheap),
        Cost(1_000, 1, acquire_us=20.0, **cheap),
        Cost(1_000, 1_000, acquire_us=50.0, **cheap),
    ]
    whole, plain, leases, tenants, tick = of_redis(rows)
    assert (whole.found, plain.found, tick.found) == (80.0, 60.0, 5.0)
    assert leases.found == pytest.approx(33 / 30)
    assert tenants.found == 2.0


def test_what_a_core_carries_is_what_ticks_leave_of_it() -> None:
    """Whoever plans a fleet with this table must be able to trust the arithmetic."""
    dear = Cost(10_000, 20, acquire_us=60.0, release_us=40.0, gathered_us=1.0, tick_per_lease_us=9.0)
    rows = redis_core([Cost(100, 20, 1.0, 1.0, 1.0, 1.0), dear]).rows
    # 50 000 leases / 2.25 s x 9 us are a fifth of a core; of 0.6 there is 0.4 left for 100 us each.
    assert rows[-1] == ["50,000", "20.0%", "4,000", "12.5"]


def _widths(drawn: str) -> list[float]:
    return [float(width) for width in re.findall(r'<rect x.*? width="([^"]+)"', drawn)]
