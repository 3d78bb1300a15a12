"""A frozen replica: for less than a lease nothing is lost; after longer it finds out and does as told."""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.nodes.places import (
    Ends,
    Eye,
    admits_exactly,
    frozen,
    looking_at,
    nothing_runs,
    passes,
    started,
    third_gets,
)
from tests.support.answers import Stream
from tests.support.burst import burst
from tests.support.client import Call, fetch
from tests.support.config_file import LEASE
from tests.support.rig import Rig, rig
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.redis_server import RedisServer
    from tests.support.scripted_engine import ScriptedEngine

pytestmark = pytest.mark.timeout(120)

TTL_S: Final = LEASE["ttl_ms"] / 1000
# Nothing but the lease ends a stream here.
LONG_BUDGETS: Final = {"first_token_ms": 60000, "idle_ms": 60000, "stall_ms": 60000, "total_ms": 120000}
STREAM: Final = Stream(tokens=None, gap_s=0.05)
TOTAL: Final = 4


def fleet(engine: ScriptedEngine, lost_lease: str, **more: Any) -> dict[str, Any]:
    return {
        **more,
        "engines": [{"url": engine.url, "name": "e1"}],
        "fleet": {"total": TOTAL, "cold": TOTAL, "lost_lease": lost_lease},
        "budgets": LONG_BUDGETS,
    }


@pytest.mark.parametrize("lost_lease", ["run_on", "stop"])
async def test_a_pause_of_less_than_a_lease_loses_nothing(
    redis_url: str, engine: ScriptedEngine, tmp_path: Path, lost_lease: str
) -> None:
    """A long garbage collection or a busy host is no reason to end anybody's stream or to admit one more."""
    engine.answer = STREAM
    # Longer than elsewhere: what the test itself does at the end of the pause takes time on a busy machine.
    lease = {"ttl_ms": 6000}
    async with rig(tmp_path, redis_url, reapers=1, **fleet(engine, lost_lease, lease=lease)) as replicas:
        ends = Ends(replicas.gateways)
        async with looking_at(replicas.configs[0]) as eye:
            with ExitStack() as opened:
                held = await started(ends, replicas.urls[0], 3, opened)
                held += await started(ends, replicas.urls[1], 1, opened)
                await _all_renewed(eye, lease["ttl_ms"])
                with frozen(replicas.gateways[:1]):
                    await passes(0.6 * lease["ttl_ms"] / 1000)
                    assert await eye.live() == TOTAL
                    with await burst(2, replicas.urls[1:], key=replicas.key()) as others:
                        assert dict(others.statuses) == {429: 2}
                for call in held:
                    assert await call.next_token() is not None
                await _ticks(eye, 3)
                assert {row.lease for row in await eye.leases()} == {
                    call.headers["tenure-lease"] for call in held
                }
            await nothing_runs(eye, engine)
        assert engine.max_open == TOTAL
        lines = await ends.reach(TOTAL)
        assert {line["reason"] for line in lines} == {"client_disconnect"}
        assert "lease_reasserted" not in replicas.gateways[0].log_text()
        await admits_exactly(TOTAL, replicas, engine)


async def test_a_holder_that_slept_through_its_leases_stops_its_streams_and_frees_nobody_elses_place(
    redis_server: RedisServer, redis_url: str, engine: ScriptedEngine, tmp_path: Path
) -> None:
    """With `stop` the excess lasts only as long as the sleep; the late releases count for nothing."""
    engine.answer = STREAM
    async with rig(tmp_path, redis_url, reapers=1, **fleet(engine, "stop")) as replicas:
        ends = Ends(replicas.gateways)
        async with looking_at(replicas.configs[0]) as eye:
            with ExitStack() as opened:
                lost = await started(ends, replicas.urls[0], 3, opened)
                kept = await _sleep_while_others_fill(replicas, eye, ends, opened)
                assert engine.open == TOTAL + 3
                woke_s = time.monotonic()
                await wait_until(lambda: engine.open == TOTAL, "its streams are ended", 2)
                stopped_s = time.monotonic() - woke_s
                for call in lost:
                    assert b'"code":"admission_unavailable"' in await call.rest()
                    assert call.ended == "clean"
                lines = await ends.reach(3)
                assert {line["reason"] for line in lines} == {"lease_lost"}
                assert {line["lease"] for line in lines} == {call.headers["tenure-lease"] for call in lost}
                # Its releases have been acknowledged by now, and freed nothing.
                assert all(line["released_at"] for line in lines)
                assert {row.lease for row in await eye.leases()} == {
                    call.headers["tenure-lease"] for call in kept
                }
                await third_gets(replicas, 0)
                kept.pop().reset()
                await eye.see(TOTAL - 1, "one place is free")
                await third_gets(replicas, 1)
                for call in kept:
                    assert await call.next_token() is not None
            await nothing_runs(eye, engine)
        assert engine.max_open <= TOTAL + 3
        await admits_exactly(TOTAL, replicas, engine)
        print(f"the streams were ended {stopped_s:.2f} s after waking")  # noqa: T201


async def test_a_holder_that_slept_through_its_leases_runs_on_as_a_visible_over_commit(
    redis_server: RedisServer, redis_url: str, engine: ScriptedEngine, tmp_path: Path
) -> None:
    """With `run_on` no stream is cut; what runs is counted again; nobody is admitted until it drained."""
    engine.answer = STREAM
    async with rig(tmp_path, redis_url, reapers=1, **fleet(engine, "run_on")) as replicas:
        ends = Ends(replicas.gateways)
        async with looking_at(replicas.configs[0]) as eye:
            with ExitStack() as opened:
                mine = await started(ends, replicas.urls[0], 3, opened)
                others = await _sleep_while_others_fill(replicas, eye, ends, opened)
                woke_s = time.monotonic()
                await eye.see(TOTAL + 3, "what it runs is counted again", 2)
                counted_s = time.monotonic() - woke_s
                assert (await eye.counts()).over_commit == 3
                metrics = (await fetch(replicas.urls[2], "/metrics")).body.decode()
                assert 'tenure_over_commit{fleet="demo"} 3.0' in metrics
                first = (await fetch(replicas.urls[0], "/metrics")).body.decode()
                assert 'tenure_reasserted_total{cause="reaped_late",fleet="demo"} 3.0' in first
                for call in (*mine, *others):
                    assert await call.next_token() is not None
                for still in range(TOTAL + 2, TOTAL - 1, -1):
                    await third_gets(replicas, 0)
                    mine.pop().reset()
                    await eye.see(still, "one of the excess has ended")
                await third_gets(replicas, 0)
                others.pop().reset()
                await eye.see(TOTAL - 1, "one place is free")
                await third_gets(replicas, 1)
            await nothing_runs(eye, engine)
        assert {line["reason"] for line in await ends.reach(7)} == {"client_disconnect"}
        assert engine.max_open <= TOTAL + 3
        await admits_exactly(TOTAL, replicas, engine)
        print(f"what ran was counted again {counted_s:.2f} s after waking")  # noqa: T201


async def _sleep_while_others_fill(replicas: Rig, eye: Eye, ends: Ends, opened: ExitStack) -> list[Call]:
    """Freeze the first replica, which holds three places, for two leases; the second one fills the pool."""
    with frozen(replicas.gateways[:1]):
        asleep_s = time.monotonic()
        calls = await started(ends, replicas.urls[1], 1, opened)
        await eye.see(1, "the sleeper's leases lapse", 2 * TTL_S)
        calls += await started(ends, replicas.urls[1], TOTAL - 1, opened)
        await passes(2 * TTL_S - (time.monotonic() - asleep_s))
        assert await eye.live() == TOTAL
    return calls


async def _all_renewed(eye: Eye, ttl_ms: int) -> None:
    """Return when every lease is a whole one: the first one of a permit is shorter, till the next tick."""

    async def whole() -> bool:
        return all(row.expires_in_ms > ttl_ms - LEASE["tick_ms"] for row in await eye.leases())

    await wait_until(whole, "all were renewed")


async def _ticks(eye: Eye, count: int) -> None:
    """Return when the lease clock has gone on by so many ticks."""
    until = (await eye.counts()).clock + count * LEASE["tick_ms"]

    async def reached() -> bool:
        return (await eye.counts()).clock >= until

    await wait_until(reached, "ticks pass")
