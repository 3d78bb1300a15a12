"""Whoever frees a place hands it to the fairest waiter in the same script, and tells that one's gateway."""

from __future__ import annotations

from collections import Counter
from itertools import permutations
from typing import TYPE_CHECKING

import pytest

from tests.lua.fleet import TIMES, held
from tests.lua.line import G1, G2, Line

if TYPE_CHECKING:
    from collections.abc import Callable


# --- who frees


def test_a_release_grants_a_provisional_lease_and_tells_the_waiters_gateway_only(line: Line) -> None:
    running = line.run_one()
    waiting = line.join("other", at=G2, engines=("e1", "e2"))
    line.end(running)
    for pool in ("total", "cold", "tenant:other", "engine:e1"):
        assert line.pool(pool) == {waiting: line.now + TIMES.provisional_ms}
    record = line.record(waiting)
    assert (record["holder"], record["tenant"], record["grant"]) == (G2, "other", "2")
    assert (record["request_id"], record["phase"]) == (f"req-{waiting}", "granted")
    assert line.messages() == [(G2, f"{line.meta('epoch')}\n{waiting} 2 cold e1\n")]
    assert line.no_line()


def test_a_downgrade_grants_the_cold_place(line: Line) -> None:
    line.set_limits({"total": 5, "cold": 1})
    running = line.run_one()
    waiting = line.join()
    line.downgrade(running)
    assert line.live() == {running, waiting}
    assert line.live("cold") == {waiting}


def test_a_move_grants_the_place_at_the_old_engine(line: Line) -> None:
    line.set_limits({"total": 5, "engine:e1": 1})
    running = line.run_one()
    waiting = line.join()
    assert line.move(running, "e2")[0] == "MOVED"
    assert line.live("engine:e1") == {waiting}


@pytest.mark.parametrize("verb", ["tick", "reap", "acquire", "release", "downgrade"])
def test_whoever_finds_an_overdue_lease_grants_its_place(line: Line, verb: str) -> None:
    """Its holder died: the place goes on with the first script that runs after the lease ended."""
    line.run_one()
    waiting = line.join(at=G2)
    line.expire_provisional()
    # A look of a living gateway keeps its session; on this lease clock a ttl is far longer than one.
    line.client.zadd(line.keys.gateways, {G1: line.now + 1000, G2: line.now + 1000})
    calls: dict[str, Callable[[], object]] = {
        "tick": lambda: line.tick(holder=G2),
        "reap": line.reap,
        "acquire": lambda: line.ask("late"),
        "release": lambda: line.release(f"{G1}~none"),
        "downgrade": line.downgrade,
    }
    calls[verb]()
    assert line.live() == {waiting}


def test_a_provisional_lease_nobody_picked_up_goes_on_to_the_next(line: Line) -> None:
    """The waiter's gateway died between the grant and its first tick."""
    running = line.run_one()
    first, second = line.join(), line.join(at=G2)
    line.end(running)
    assert line.live() == {first}
    line.expire_provisional()
    line.tick(holder=G2)
    assert line.live() == {second}


def test_many_places_freed_in_one_call_go_to_as_many_waiters(line: Line) -> None:
    line.set_limits({"total": 50})
    running = [line.run_one() for _ in range(50)]
    waiting = [line.join(at=G1 if n % 2 else G2) for n in range(60)]
    line.release(*running, tenant="acme", engine="e1")
    assert line.live() == set(waiting[:50])
    assert sorted(line.heard()) == sorted(f"{lease.rpartition('~')[0]} {lease}" for lease in waiting[:50])


def test_while_a_fleet_learns_nobody_is_granted(line: Line) -> None:
    running = line.run_one()
    waiting = line.join()
    line.client.delete(line.keys.meta)
    line.end(running)
    assert line.live() == set()
    line.advance(TIMES.learning_ms + 1)
    line.tick(waiters=(waiting,))
    line.tick(waiters=(waiting,))
    assert waiting in line.live() or line.ask(lease=waiting)[1][0] == "GRANTED"


# --- who is next


def test_within_a_tenant_the_oldest_is_first(line: Line) -> None:
    last = line.run_one()
    waiting = [line.join(at=G1 if n % 3 else G2) for n in range(10)]
    for lease in waiting:
        line.end(last)
        assert line.live() == {lease}
        last = lease


def test_the_tenant_that_holds_least_is_first_however_long_the_others_waited(line: Line) -> None:
    line.set_limits({"total": 4})
    running = [line.run_one("a") for _ in range(4)]
    for _ in range(40):
        line.join("a")
    late = line.join("b")
    line.end(running[0])
    assert late in line.live()


def test_between_tenants_that_hold_alike_the_oldest_waiter_is_first(line: Line) -> None:
    running = line.run_one("a")
    waiting = [line.join(tenant) for tenant in ("c", "b", "d", "b", "c")]
    for lease in waiting:
        line.end(running)
        assert line.live() == {lease}
        running = lease


def test_a_tenant_that_was_silent_has_saved_nothing_up(line: Line) -> None:
    """Fair is what is held now: nobody gains by staying away, and nobody pays for using what was idle."""
    line.set_limits({"total": 2})
    for _ in range(20):
        line.end(line.run_one("a"))
    running = [line.run_one("a"), line.run_one("a")]
    granted = []
    for _ in range(6):
        line.join("a")
        line.join("b")
    for _ in range(8):
        before = line.live()
        line.end(running.pop(0))
        (new,) = line.live() - before
        running.append(new)
        granted.append(line.tenant_of[new])
    assert granted[0] == "b"
    assert Counter(granted[2:]) == {"a": 3, "b": 3}


@pytest.mark.parametrize(("weights", "share"), [({"weight:a": 3}, 0.75), ({}, 0.5), ({"weight:b": 4}, 0.2)])
def test_shares_follow_the_weights(line: Line, weights: dict[str, int], share: float) -> None:
    """Whoever joins first, and however deep its backlog."""
    line.set_limits({"total": 8, **weights})
    running = [line.run_one("b") for _ in range(8)]
    for _ in range(420):
        line.join("b")
    for _ in range(420):
        line.join("a", at=G2)
    granted: Counter[str] = Counter()
    while granted.total() < 400:
        before = line.live()
        line.end(running.pop(0))
        (new,) = line.live() - before
        running.append(new)
        granted[line.tenant_of[new]] += 1
    assert abs(granted["a"] / 400 - share) <= 0.05


@pytest.mark.parametrize("weight", ["0", "-1", "x", "1e9", "0.5"])
def test_an_odd_weight_starves_nobody_and_breaks_nothing(line: Line, weight: str) -> None:
    line.client.hset(line.keys.limits, "weight:a", weight)
    running = line.run_one()
    first, second = line.join("a"), line.join("b")
    line.end(running)
    assert line.live() == {first}
    line.end(first)
    assert line.live() == {second}


# --- whom a full pool does not hold up


def test_a_full_cold_pool_never_blocks_those_who_are_warm(line: Line) -> None:
    line.set_limits({"total": 3, "cold": 1})
    line.witness("e1", {"p": True})
    line.run_one()
    others = [line.run_one(prefixes=("p",)) for _ in range(2)]
    cold = [line.join(f"t{n}") for n in range(20)]
    warm = line.join("late", prefixes=("p",))
    line.end(others[0])
    assert warm in line.live()
    assert set(line.waiting) == set(cold)


def test_a_tenant_at_its_quota_never_blocks_others(line: Line) -> None:
    line.set_limits({"total": 2, "tenant:a": 1})
    line.run_one("a")
    other = line.run_one("other")
    blocked = [line.join("a") for _ in range(20)]
    late = line.join("b")
    line.end(other)
    assert late in line.live()
    assert set(line.waiting) == set(blocked)


def test_a_tenant_below_its_quota_again_is_back_in_the_line_with_its_old_place(line: Line) -> None:
    line.set_limits({"total": 2, "tenant:a": 1})
    of_a, other = line.run_one("a"), line.run_one("other")
    old = line.join("a")
    line.join("b")
    line.end(of_a)
    assert line.live() == {other, old}


def test_one_whose_engine_is_full_lets_others_pass(line: Line) -> None:
    line.set_limits({"total": 9, "engine:e1": 1, "engine:e2": 1})
    line.run_one()
    on_e2 = line.run_one(engines=("e2",))
    line.join("a", engines=("e1",))
    wants_e2 = line.join("b", engines=("e2",))
    line.end(on_e2, engine="e2")
    assert line.live("engine:e2") == {wants_e2}


def test_one_whose_engine_is_full_lets_its_own_tenants_next_pass(line: Line) -> None:
    line.set_limits({"total": 9, "engine:e1": 1, "engine:e2": 1})
    line.run_one()
    on_e2 = line.run_one(engines=("e2",))
    line.join(engines=("e1",))
    wants_e2 = line.join(engines=("e2",))
    line.end(on_e2, engine="e2")
    assert line.live("engine:e2") == {wants_e2}


def test_a_tenant_that_was_passed_over_and_then_served_hides_nobody(line: Line) -> None:
    """Its grant moves it back in the order; whoever stood behind it moves up and must still be seen."""
    line.set_limits({"total": 2, "engine:e1": 1, "engine:e2": 9})
    line.witness("e2", {"p": True})
    line.run_one("x")
    on_e2 = line.run_one("y", engines=("e2",))
    line.join("a", engines=("e1",))
    warm = line.join("a", engines=("e2",), prefixes=("p",))
    cold = line.join("b", engines=("e2",))
    line.client.hset(line.keys.limits, "total", 4)
    line.end(on_e2, engine="e2")
    assert {warm, cold} <= line.live()


def test_warm_waiters_of_a_full_engine_run_cold_elsewhere_when_a_cold_place_is_free(line: Line) -> None:
    line.witness("e1", {"p": True})
    running = line.run_one(engines=("e1",))
    line.set_limits({"engine:e1": 0})
    waiting = line.join(engines=("e1", "e2"), prefixes=("p",))
    line.end(running)
    assert (line.record(waiting)["class"], line.record(waiting)["engine"]) == ("cold", "e2")


def test_many_who_cannot_run_hold_up_none_who_can(line: Line) -> None:
    """Thirty tenants with a deep backlog for a full engine; one late waiter for a free one."""
    line.set_limits({"total": 99, "engine:e1": 1})
    line.run_one()
    on_e2 = line.run_one(engines=("e2",))
    line.set_limits({"engine:e2": 1})
    for n in range(120):
        line.join(f"t{n % 30}", engines=("e1",))
    late = line.join("late", engines=("e2",))
    line.end(on_e2, engine="e2")
    for _ in range(30):
        if late in line.live():
            break
        line.tick()
    assert late in line.live()


@pytest.mark.parametrize("order", list(permutations(("total", "cold", "tenant:acme"))))
def test_one_that_needs_three_places_starts_with_the_last_of_them(line: Line, order: tuple[str, ...]) -> None:
    """Total, cold and tenant, made free one by one in all six orders."""
    line.set_limits(dict.fromkeys(order, 1))
    line.run_one()
    waiting = line.join()
    for last, pool in enumerate(order):
        line.set_limits({pool: 2})
        assert (waiting in line.live()) == (last == 2)


def test_a_held_permit_that_is_renewed_keeps_waiters_waiting(line: Line) -> None:
    running = line.run_one()
    waiting = line.join()
    for _ in range(3):
        line.advance(TIMES.tick_ms)
        line.tick(held(running), waiters=(waiting,))
        line.tick(holder=G2)
    assert line.live() == {running}
    assert waiting in line.waiting
