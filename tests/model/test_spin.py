"""Every history of a few leases, clocks and faults keeps the promises, and each planted mistake is found."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import pytest

from tests.support import spin

MODEL: Final = Path(__file__).parents[2] / "models" / "lease.pml"
# The gateways have two leases and one; with ONE_EACH one each, which leaves room for two faults.
ONE: Final = ("-DFAULTS=1",)
ONE_SMALL: Final = ("-DFAULTS=1", "-DONE_EACH")
TWO_SMALL: Final = ("-DFAULTS=2", "-DONE_EACH")

GOOD: Final = {
    "no fault": (),
    "one fault, run_on": ONE,
    "one fault, stop": (*ONE, "-DSTOP"),
    "two faults, run_on": TWO_SMALL,
    "two faults, stop": (*TWO_SMALL, "-DSTOP"),
    "two faults, stop, a learning window of a ttl": (*TWO_SMALL, "-DSTOP", "-DNO_EXCUSE", "-DLEARN=4"),
}

# What a part of the broken promise looks like, with its macros expanded.
OVER_THE_LIMIT = "<=1)"
NOT_ASSERTED = "flushed)||apart"
NO_LEASE = "(left[i]>0)||flushed"
DEADLINE = "&&(sure["
NOT_FREED = "||strayed"

BAD: Final = {
    "no learning window": ((*ONE_SMALL, "-DNO_LEARNING"), NOT_ASSERTED),
    "a learning window of two ticks": ((*ONE, "-DLEARN=2"), NOT_ASSERTED),
    "a learning window shorter than a ttl, and nobody excused": (
        (*TWO_SMALL, "-DSTOP", "-DNO_EXCUSE"),
        OVER_THE_LIMIT,
    ),
    "a tick that renews and does not add": ((*ONE_SMALL, "-DUPDATE_ONLY"), NOT_ASSERTED),
    "a deadline counted from after the reply": ((*TWO_SMALL, "-DSTOP", "-DLATE_DEADLINE"), DEADLINE),
    "a deadline that is noticed when it has passed": ((*ONE_SMALL, "-DSTOP", "-DLATE_WATCH"), OVER_THE_LIMIT),
    "a late answer revives what was overdue": ((*ONE_SMALL, "-DSTOP", "-DREVIVE"), OVER_THE_LIMIT),
    "a release that overtakes a tick": (("-DNO_ORDER",), NOT_FREED),
    "a release that counts and does not name": ((*ONE, "-DBY_COUNT"), OVER_THE_LIMIT),
    "a grant that is not looked at when it comes late": ((*ONE_SMALL, "-DNO_RECHECK"), NO_LEASE),
    "a second attempt that keeps the first expiry": ((*ONE_SMALL, "-DFIRST_EXPIRY"), DEADLINE),
    "a message that is taken for a tick old": ((*ONE_SMALL, "-DWAKE_DEADLINE"), NO_LEASE),
    "a message of an earlier grant that is believed": ((*ONE, "-DSTALE_WAKE"), NO_LEASE),
}

pytestmark = pytest.mark.timeout(1800)  # seconds on a machine of its own


@pytest.fixture(autouse=True)
def spin_is_here() -> None:
    if missing := spin.missing_tools():
        why = f"{' and '.join(missing)} not installed: apt-get install {' '.join(missing)}"
        if os.environ.get("CI"):  # noqa: TID251  (there a missing tool is a failure, as in the Makefile)
            pytest.fail(why)
        pytest.skip(why)


@pytest.mark.parametrize("name", GOOD)
def test_every_history_keeps_the_promises(name: str, tmp_path: Path) -> None:
    explored = spin.explore(MODEL, GOOD[name], tmp_path)
    print(f"{explored}  {name}")  # noqa: T201  (what `make model` shows)
    assert explored.error == ""


@pytest.mark.parametrize("name", BAD)
def test_a_planted_mistake_breaks_its_promise(name: str, tmp_path: Path) -> None:
    """A model that stays silent when the protocol is wrong says nothing when it is right."""
    options, promise = BAD[name]
    explored = spin.explore(MODEL, options, tmp_path)
    print(f"{explored}  {name}")  # noqa: T201  (what `make model` shows)
    assert promise in explored.error


@pytest.mark.parametrize(
    ("mistake", "error"), [((), ""), (("-DNO_EXPIRY",), "acceptance cycle")], ids=["good", "no expiry"]
)
def test_the_places_of_a_dead_gateway_come_back_for_good(
    mistake: tuple[str, ...], error: str, tmp_path: Path
) -> None:
    options = (*ONE_SMALL, "-DLIVENESS", *mistake)
    explored = spin.explore(MODEL, options, tmp_path, liveness=True)
    print(f"{explored}  {' '.join(options)}")  # noqa: T201  (what `make model` shows)
    assert explored.error == error
