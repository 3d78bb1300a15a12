"""Any order of calls, time, lost replies and lost data: the scripts do what a small model says."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from services.permits.scripts import load
from tests.properties.fleet_machine import Fleet

if TYPE_CHECKING:
    import redis


@pytest.mark.timeout(3600)  # a failure is made small first, and the thorough profile takes its time
def test_any_order_of_calls_does_what_the_model_says(client: redis.Redis, budget: settings) -> None:
    class FleetOnThisRedis(Fleet):
        def __init__(self) -> None:
            super().__init__(client)

    run_state_machine_as_test(FleetOnThisRedis, settings=budget)


# Script, a line of it, and what it says after the mistake.
MISTAKES: Final = {
    "a cold place is granted without a look": (
        "acquire",
        "not engine and blocked or full(fleet, cap, 'cold', 'cold', cap.cold)",
        "not engine and blocked",
    ),
    "the quick way counts no total": ("acquire", "and in_total < (tonumber(found[1]) or 0)", ""),
    "the quick way knows no quota": (
        "acquire",
        "and in_tenant < (tonumber(found[5] or found[3] or found[1]) or 0)",
        "",
    ),
    "the quick way counts no cold place": (
        "acquire",
        "and (warm or in_cold < (tonumber(found[2]) or 0))",
        "",
    ),
    "the quick way takes any engine": ("acquire", "if in_use < limit and (not least", "if (not least"),
    "the quick way writes no cold place": ("acquire", "call('ZADD', cold, expiry, lease)", ""),
    "the quick way grants a lease twice": (
        "acquire",
        "call('EXISTS', record, waiting) == 0",
        "call('EXISTS', waiting) == 0",
    ),
    "the quick way takes what ran out for free": ("acquire", "overdue + left_ms", "left_ms"),
    "a plain release keeps the cold place": ("release", "call('ZREM', cold, lease)", ""),
    "a plain release keeps the record": ("release", "call('DEL', records .. lease)", ""),
    "a repeated call is granted anew": (
        "acquire",
        "if expiry and tonumber(expiry) > fleet.now then",
        "if false then",
    ),
    "a place of the engine is not given back": (
        "release",
        "if engine and engine ~= '' then",
        "if false then",
    ),
    "the record is left behind": ("release", "redis.call('DEL', prefix .. 'lease:' .. lease)", ""),
    "a tick renews and does not add": (
        "tick",
        "redis.call('ZADD', pool, unpack(scored))",
        "redis.call('ZADD', pool, 'XX', unpack(scored))",
    ),
    "a tick takes a lease that ran out for live": (
        "tick",
        "or tonumber(scores[n]) <= fleet.now then",
        "then",
    ),
    "a tick renews no cold place": ("tick", "ARGV[at + 2] == 'c' and #of_cold", "false"),
    "a lost record gets the tenant of another group": (
        "tick",
        "{ read, fields, tenant, engine }",
        "{ read, fields, ARGV[groups], engine }",
    ),
    "a lost record gets the facts of another": ("tick", "string.match(lines[n],", "string.match(lines[1],"),
    "what was given back comes back": ("acquire", "'XX', 'GT', fleet.now", "'GT', fleet.now"),
    "the old engine's place is kept": (
        "move",
        "redis.call('ZREM', fleet.prefix .. 'pool:engine:' .. engine, lease)",
        "",
    ),
    "a reclaimed lease is not reported": (
        "tick",
        "note(events, 'kind lease tenant holder class",
        "(function() end)(events, 'kind lease tenant holder class",
    ),
    "what ran out is counted": (
        "count",
        "count = count - redis.call('ZCOUNT', key, '-inf', fleet.clock)",
        "",
    ),
    "the lease clock follows the wall clock": (
        "witness",
        "math.min(wall - before, 2 * tick_ms)",
        "(wall - before)",
    ),
    "evidence that was contradicted stays": ("witness", "redis.call('ZREM', evidence, prefixes[i])", ""),
    "a revoked lease is told to nobody": ("revoke", "redis.call('HSET', record, 'cut', reason)", ""),
    "a drain is forgotten": ("drain", "redis.call('SADD', draining, holder)", "1"),
    "what a gateway remembers is not written back": (
        "set_limits",
        "if seen <= (tonumber",
        "if seen >= (tonumber",
    ),
    "only the first of some is downgraded": ("downgrade", "unpack(leases)) or 0", "leases[1]) - 1 or 0"),
}


@pytest.mark.timeout(600)  # seconds, on a machine that has nothing else to do
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_a_script_is_found(client: redis.Redis, mistake: str) -> None:
    """A machine that no wrong script can surprise would prove nothing about the right ones."""
    verb, right, wrong = MISTAKES[mistake]
    script = load()[verb]
    assert script.text.count(right) == 1, "the line that was to be spoiled is not there any more"
    # An unknown hash: the text is sent along.
    spoiled = replace(script, text=script.text.replace(right, wrong), sha="0" * 40)

    class FleetWithAMistake(Fleet):
        def __init__(self) -> None:
            super().__init__(client)
            self.fleet.scripts = {**self.fleet.scripts, verb: spoiled}

    budget = settings(
        deadline=None,
        max_examples=300,
        stateful_step_count=50,
        # The same search each time: a mistake that is found once is always found.
        derandomize=True,
        phases=[Phase.generate],
        database=None,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    with pytest.raises(AssertionError):
        run_state_machine_as_test(FleetWithAMistake, settings=budget)
