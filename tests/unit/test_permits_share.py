"""What one gateway admits while Redis is away: its part of every pool, what it already runs included."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.permits.model import Demand, Full, Granted, Stamp
from services.permits.permit import Permit
from services.permits.renewal import FleetView
from services.permits.share import admit
from tests.permits.keeper import Keeps

LIMITS = {"total": 8, "cold": 8, "tenant_default": 8}


def view(limits: dict[str, int], gateways: int = 2) -> FleetView:
    return FleetView(epoch="e", clock=1, grant=9, gateways=gateways, learning_until_s=0, limits=limits)


def demand(tenant: str = "acme", engines: tuple[str, ...] = ("e1",)) -> Demand:
    return Demand(fleet="f", tenant=tenant, request_id="r", engines=engines, prefixes=("p",))


def held(answer: Granted, tenant: str = "acme") -> Permit:
    permit = Permit("g1~a1~1", demand(tenant), Keeps())
    permit.granted(answer, deadline_s=0)
    return permit


def admitted(
    limits: dict[str, int], gateways: int, asked: int, engines: tuple[str, ...] = ("e1",)
) -> list[Permit]:
    permits: list[Permit] = []
    for _ in range(asked):
        answer = admit(demand(engines=engines), view(limits, gateways), permits)
        if isinstance(answer, Granted):
            permits.append(held(answer))
    return permits


@pytest.mark.parametrize(("gateways", "share"), [(1, 8), (2, 4), (3, 2), (8, 1), (9, 0)])
def test_the_share_is_the_limit_divided_by_the_gateways_rounded_down(gateways: int, share: int) -> None:
    assert len(admitted(LIMITS, gateways, 10)) == share


@given(
    total=st.integers(0, 20),
    cold=st.integers(0, 20),
    quota=st.integers(0, 20),
    slots=st.integers(0, 20),
    gateways=st.integers(1, 6),
)
def test_what_all_gateways_admit_together_never_exceeds_any_limit(
    total: int, cold: int, quota: int, slots: int, gateways: int
) -> None:
    limits = {"total": total, "cold": cold, "tenant:acme": quota, "engine:e1": slots, "engine:e2": slots}
    permits = admitted(limits, gateways, 25, engines=("e1", "e2"))
    assert gateways * len(permits) <= min(total, cold, quota)
    for engine in ("e1", "e2"):
        assert gateways * sum(permit.engine == engine for permit in permits) <= slots


def test_one_that_holds_more_than_its_share_admits_nothing_and_does_not_shut_the_others() -> None:
    """Nobody can know what the others hold, so together they may run more than the limit for a while."""
    greedy = admitted(LIMITS, 1, 8)
    assert isinstance(admit(demand(), view(LIMITS), greedy), Full)
    assert len(greedy) + len(admitted(LIMITS, 2, 10)) == 12


def test_a_refusal_names_the_pool_and_the_share() -> None:
    stamp = Stamp("e", 9)
    permits = admitted({**LIMITS, "tenant:acme": 5}, 2, 9)
    assert admit(demand(), view({**LIMITS, "tenant:acme": 5}), permits) == Full("tenant:acme", 2, 2, stamp)
    assert admit(demand(), view({**LIMITS, "cold": 4}), permits) == Full("cold", 2, 2, stamp)
    assert admit(demand(), view({**LIMITS, "total": 0}), []) == Full("total", 0, 0, stamp)
    assert admit(demand(), view({**LIMITS, "engine:e1": 4}), permits) == Full("engine:e1", 2, 2, stamp)


def test_nothing_is_warm_because_nobody_can_be_asked() -> None:
    answer = admit(demand(), view(LIMITS), [])
    assert isinstance(answer, Granted)
    assert answer.class_ == "cold"


def test_a_place_given_back_early_is_free_for_the_next() -> None:
    permits = admitted({**LIMITS, "cold": 2}, 1, 2)
    assert isinstance(admit(demand(), view({**LIMITS, "cold": 2}, 1), permits), Full)
    permits[0].downgrade()
    assert isinstance(admit(demand(), view({**LIMITS, "cold": 2}, 1), permits), Granted)


def test_the_least_loaded_engine_of_this_gateway_is_taken() -> None:
    permits = admitted(LIMITS, 1, 4, engines=("e1", "e2"))
    assert sorted(permit.engine for permit in permits) == ["e1", "e1", "e2", "e2"]


def test_an_engine_that_is_full_is_passed_over() -> None:
    """The least loaded one may be the one without slots."""
    limits = {**LIMITS, "engine:e1": 0, "engine:e2": 8}
    assert [permit.engine for permit in admitted(limits, 1, 3, engines=("e1", "e2"))] == ["e2"] * 3


def test_a_fleet_whose_limits_were_never_seen_admits_nothing() -> None:
    assert isinstance(admit(demand(), view({}), []), Full)
