"""The counts are of what they say: a guard that counts nothing guards nothing."""

import pytest

from bench import scale
from bench.__main__ import Options, parser
from bench.guard import Calls
from bench.scale import Scale, Step
from bench.scale_worker import Book


def _called(times: int) -> None:
    for _ in range(times):
        len(())


def test_calls_are_counted_python_and_c_alike() -> None:
    """One call of ours makes five of C; leaving the block is one of each."""
    with Calls() as none:
        pass
    with Calls() as some:
        _called(5)
    assert some.count - none.count == 1 + 5


def test_the_command_line_gives_every_option_that_a_run_reads() -> None:
    """A word that is missing would show after minutes of measuring."""
    options = parser().parse_args([], namespace=Options())
    assert set(vars(options)) == set(Options.__annotations__)


async def test_gateways_in_processes_hold_what_they_were_told_to_and_admit_at_the_rate() -> None:
    """A run of fifty thousand leases that held a few would look wonderful."""
    found = await scale.one_server(3, 4, rates=(0.0, 50.0), step_s=3.0)
    idle, busy = found.steps
    assert (idle.admitted_per_s, found.leases, found.gateways) == (0.0, 4, 3)
    assert 25 < busy.admitted_per_s < 75
    assert busy.redis_share > 0


def test_a_tick_that_does_not_come_is_late_too() -> None:
    """A gateway that stopped ticking altogether would otherwise look like one that is always in time."""
    book = Book(tick_ms=0)
    assert book.take() == []
    book.tick("demo", 0.0)
    first, overdue = book.take()
    assert first == 0.0
    assert overdue > 0.0
    book.tick("demo", 0.0)
    assert book.take()[0] >= overdue


@pytest.mark.parametrize(
    ("admitted", "late_ms", "reached"), [(91.0, 10.0, True), (89.0, 10.0, False), (100.0, 1_250.0, False)]
)
def test_a_step_is_reached_when_most_were_admitted_and_ticks_came_in_time(
    admitted: float, late_ms: float, *, reached: bool
) -> None:
    """Saturation is either: too few admissions, or leases that are renewed too late."""
    assert _step(100.0, admitted, late_ms=late_ms).is_reached is reached


def test_the_cost_of_an_admission_leaves_ticks_out_and_steps_that_were_not_reached() -> None:
    """Of a step that failed it is not known what was done in vain."""
    steps = [
        _step(0.0, 0.0, share=0.1),
        _step(1_000.0, 1_000.0, share=0.2),
        _step(2_000.0, 1_200.0, share=0.9),
    ]
    assert Scale("one", 1, 1, 1, steps).admission_us == pytest.approx(100)
    assert Scale("one", 1, 1, 1, [steps[0], steps[2]]).admission_us == 0.0


def _step(offered: float, admitted: float, *, share: float = 0.5, late_ms: float = 0.0) -> Step:
    return Step(
        offered_per_s=offered,
        admitted_per_s=admitted,
        redis_share=share,
        gateway_share=0.5,
        acquire_p99_ms=1.0,
        late_p99_ms=late_ms,
    )
