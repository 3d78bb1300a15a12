"""The budgets of one request, kept by one timer."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from services.gateway.budgets import Deadlines, Seconds, Watch
from services.permits.clock import monotonic
from services.settings.schema import Budgets
from tests.support.waiting import wait_until


class Lease:
    renewed_until_s = 0.0


def deadlines(
    cuts: list[str], *, lease: Lease | None = None, watch: Watch | None = None, **budgets: Any
) -> Deadlines:
    facts: dict[str, Any] = {
        "first_token_ms": 10_000,
        "idle_ms": 10_000,
        "stall_ms": 10_000,
        "total_ms": 20_000,
    }
    return Deadlines(
        Seconds.of(Budgets(**facts | budgets)),
        lease or Lease(),
        cut=cuts.append,
        grace_s=1.0,
        watch=watch or Watch(),
    )


@pytest.mark.parametrize(
    ("budget", "reason"),
    [("first_token_ms", "first_token_timeout"), ("total_ms", "total_timeout")],
)
async def test_the_wait_for_the_engine_is_bounded(budget: str, reason: str) -> None:
    cuts: list[str] = []
    budgets: dict[str, Any] = {budget: 30}
    kept = deadlines(cuts, **budgets)
    kept.reading()
    await wait_until(lambda: cuts == [reason], f"cut as {reason}")


async def test_each_side_has_its_own_patience() -> None:
    cuts: list[str] = []
    kept = deadlines(cuts, idle_ms=30, stall_ms=60)
    kept.decoding(monotonic())
    kept.sending()
    await wait_until(lambda: cuts == ["client_stalled"], "the client's patience ran out first")


async def test_a_silent_engine_is_cut_after_the_first_token() -> None:
    cuts: list[str] = []
    kept = deadlines(cuts, idle_ms=30)
    kept.decoding(monotonic())
    kept.reading()
    await wait_until(lambda: cuts == ["idle_timeout"], "the gap ran out")


async def test_the_wait_for_the_first_token_does_not_bind_later_gaps() -> None:
    """A slow token is not a late first one."""
    cuts: list[str] = []
    kept = deadlines(cuts, first_token_ms=30)
    kept.decoding(monotonic())
    kept.reading()
    await asyncio.sleep(0.06)  # longer than the budget that must not bind
    assert cuts == []
    kept.stop()


either_way = pytest.mark.parametrize("push", [Deadlines.reading, Deadlines.token])


@either_way
async def test_chunks_push_the_deadline_on_and_the_timer_follows(push: Callable[[Deadlines], float]) -> None:
    cuts: list[str] = []
    kept = deadlines(cuts, idle_ms=60)
    kept.decoding(monotonic())
    started_s = monotonic()
    while monotonic() - started_s < 0.15:
        push(kept)
        await asyncio.sleep(0.01)
    assert cuts == []
    await wait_until(lambda: cuts == ["idle_timeout"], "the gap ran out at last")


@either_way
async def test_a_lease_outlives_its_deadline_by_the_grace_only(push: Callable[[Deadlines], float]) -> None:
    """A stream that hangs loses its lease even in a healthy process."""
    lease = Lease()
    kept = deadlines([], lease=lease, idle_ms=5_000)
    kept.decoding(monotonic())
    lease.renewed_until_s = 0
    now_s = push(kept)
    assert lease.renewed_until_s == pytest.approx(now_s + 5 + 1)
    kept.stop()


@either_way
async def test_no_chunk_pushes_the_lease_beyond_the_whole_request(
    push: Callable[[Deadlines], float],
) -> None:
    lease = Lease()
    began_s = monotonic()
    kept = deadlines([], lease=lease, idle_ms=30_000)
    kept.decoding(monotonic())
    push(kept)
    assert lease.renewed_until_s == pytest.approx(began_s + 20 + 1, abs=1)
    kept.stop()


async def test_nothing_is_cut_after_stop() -> None:
    cuts: list[str] = []
    kept = deadlines(cuts, first_token_ms=10)
    kept.stop()
    await asyncio.sleep(0.03)  # longer than the budget that must not bind
    assert cuts == []


async def test_many_requests_share_a_timer_and_each_is_cut_at_its_own_time() -> None:
    watch, cuts = Watch(), [[] for _ in range(4)]  # type: tuple[Watch, list[list[str]]]
    far = deadlines(cuts[0], watch=watch)
    deadlines(cuts[1], watch=watch, first_token_ms=60)
    deadlines(cuts[2], watch=watch, total_ms=30)
    ended = deadlines(cuts[3], watch=watch, first_token_ms=10)
    ended.stop()
    await wait_until(lambda: any(cuts), "the nearest was reached")
    assert cuts == [[], [], ["total_timeout"], []]
    await wait_until(lambda: bool(cuts[1]), "and the next")
    assert cuts == [[], ["first_token_timeout"], ["total_timeout"], []]
    far.stop()
    assert watch.due_s > monotonic() + 5, "it sleeps until the one that is left"


async def test_a_watch_with_nothing_to_watch_sleeps_for_good() -> None:
    watch = Watch()
    deadlines([], watch=watch, first_token_ms=10).stop()
    await wait_until(lambda: watch.due_s == float("inf"), "its timer fired for nobody")
