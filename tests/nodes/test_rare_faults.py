"""Faults that nobody plans for: each keeps its bound, on real processes, and says how near it came."""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.nodes.places import (
    META,
    SLOW,
    Ends,
    Eye,
    admits_exactly,
    looking_at,
    nothing_runs,
    passes,
    started,
)
from tests.support.burst import burst
from tests.support.config_file import LEASE
from tests.support.edition import edition
from tests.support.redis_shim import RedisShim
from tests.support.rig import rig
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.processes import Process
    from tests.support.redis_server import RedisServer
    from tests.support.scripted_engine import ScriptedEngine

pytestmark = pytest.mark.timeout(120)

TOTAL: Final = 4
TTL_S: Final = LEASE["ttl_ms"] / 1000
TICK_S: Final = LEASE["tick_ms"] / 1000
PROVISIONAL_S: Final = LEASE["provisional_ms"] / 1000
LEARNING_S: Final = LEASE["learning_ms"] / 1000
# A reaper's period, and what a busy machine takes to do it.
GRACE_S: Final = 1.0
PATIENT: Final = {"first_token_ms": 60_000, "idle_ms": 60_000, "stall_ms": 60_000, "total_ms": 120_000}


def fleet(engine: ScriptedEngine, **limits: Any) -> dict[str, Any]:
    engine.answer = SLOW
    limits = {"total": TOTAL, "cold": TOTAL, **limits}
    return {"engines": [{"url": engine.url, "name": "e1"}], "fleet": limits, "budgets": PATIENT}


async def test_a_gateway_that_dies_before_its_first_tick_costs_its_place_for_a_provisional_lease(
    redis_url: str, engine: ScriptedEngine, tmp_path: Path
) -> None:
    """Half a ttl is saved for whoever would have crashed anyway."""
    async with (
        rig(tmp_path, redis_url, reapers=1, gateways=2, **fleet(engine, total=1, cold=1)) as replicas,
        looking_at(replicas.configs[0]) as eye,
    ):
        for _ in range(5):
            with await Ends([]).call(replicas.urls[0]) as call:
                assert await call.head() == 200
                replicas.gateways[0].kill9()
                killed_s = time.monotonic()
            (orphan,) = await eye.leases()
            await eye.see(0, "the place of the dead is back", TTL_S + GRACE_S)
            back_s = time.monotonic() - killed_s
            # Otherwise a tick came between the two lines above.
            if orphan.expires_in_ms <= LEASE["provisional_ms"]:
                break
            await replicas.restart_gateway(0)
        assert PROVISIONAL_S - TICK_S < back_s < PROVISIONAL_S + GRACE_S
        await admits_exactly(1, replicas, engine, by=slice(1, 2))
        print(f"the place was back after {back_s:.2f} s")  # noqa: T201


async def test_a_place_granted_to_a_waiter_that_just_died_is_the_next_ones_after_a_provisional_lease(
    redis_url: str, engine: ScriptedEngine, tmp_path: Path
) -> None:
    """Its gateway still has a session, so nobody can know: it is granted, and lapses unheard."""
    how = fleet(engine, total=1, cold=1, line_max=10, line_max_per_tenant=10)
    how["budgets"] = {**PATIENT, "queue_ms": 30_000}
    async with (
        rig(tmp_path, redis_url, reapers=1, gateways=2, **how) as replicas,
        looking_at(replicas.configs[0]) as eye,
    ):
        with ExitStack() as opened:
            holder = (await started(Ends([]), replicas.urls[1], 1, opened))[0]

            async def waits(url: str, count: int) -> Any:
                call = opened.enter_context(await Ends([]).call(url))

                async def in_line() -> bool:
                    return (await eye.counts()).waiting == count

                await wait_until(in_line, f"{count} in line")
                return call

            await waits(replicas.urls[0], 1)
            following = await waits(replicas.urls[1], 2)
            replicas.gateways[0].kill9()
            holder.reset()

            async def granted_to_the_dead() -> bool:
                return [row.holder.partition("~")[0] for row in await eye.leases()] == ["g1"]

            await wait_until(granted_to_the_dead, "the dead one is granted")
            granted_s = time.monotonic()
            assert await following.head() == 200
            idle_s = time.monotonic() - granted_s
            assert idle_s < PROVISIONAL_S + GRACE_S
        await nothing_runs(eye, engine)
        assert engine.max_open == 1
        print(f"the next one started {idle_s:.2f} s after the grant to the dead")  # noqa: T201


async def test_a_pool_that_is_deleted_is_true_again_within_a_tick(
    redis_server: RedisServer, redis_url: str, engine: ScriptedEngine, tmp_path: Path
) -> None:
    """An operator's slip: what ran there is unknown until its gateways tick."""
    async with (
        rig(tmp_path, redis_url, gateways=2, **fleet(engine, total=20, cold=TOTAL)) as replicas,
        looking_at(replicas.configs[0]) as eye,
    ):
        with ExitStack() as opened:
            for url in replicas.urls:
                await started(Ends([]), url, TOTAL // 2, opened)
            await eye.all_tick(2)
            redis_server.cli("DEL", "tenure:{demo}:pool:cold")
            deleted_s = time.monotonic()
            true_s: list[float] = []

            async def refused() -> bool:
                cold = redis_server.cli("ZCARD", "tenure:{demo}:pool:cold")
                if not true_s and cold == engine.open:
                    true_s.append(time.monotonic() - deleted_s)
                more = opened.enter_context(await burst(2, replicas.urls, key=replicas.key()))
                return bool(true_s) and more.statuses[429] == 2

            await wait_until(refused, "the pool is counted again", TICK_S + GRACE_S)
            over = engine.max_open - TOTAL
            assert over <= TOTAL
        await nothing_runs(eye, engine)
        print(f"{over} over for {true_s[0]:.2f} s")  # noqa: T201


async def test_without_its_meta_record_a_fleet_learns_and_admits_nobody_meanwhile(
    redis_server: RedisServer, redis_url: str, engine: ScriptedEngine, tmp_path: Path
) -> None:
    async with (
        rig(tmp_path, redis_url, gateways=2, **fleet(engine)) as replicas,
        looking_at(replicas.configs[0]) as eye,
    ):
        with ExitStack() as opened:
            own = [call for url in replicas.urls for call in await started(Ends([]), url, 2, opened)]
            await eye.all_tick(2)
            redis_server.cli("DEL", META)
            deleted_s = time.monotonic()
            codes: list[str] = []

            async def learned() -> bool:
                with await Ends([]).call(replicas.urls[len(codes) % 2]) as asked:
                    assert await asked.head() in {429, 503}
                    codes.append(str(await asked.error_code()))
                return "recovering" in codes and codes[-1] == "total_pool_full"

            await wait_until(learned, "the window passes", LEARNING_S + TICK_S + GRACE_S)
            shut_s = time.monotonic() - deleted_s
            assert set(codes) <= {"recovering", "total_pool_full"}
            own.pop().reset()
            await eye.see(TOTAL - 1, "one place is free")
        await nothing_runs(eye, engine)
        assert engine.max_open == TOTAL
        await admits_exactly(TOTAL, replicas, engine)
        print(f"{codes.count('recovering')} answered `recovering`, the last {shut_s:.2f} s after")  # noqa: T201


async def test_a_redis_that_restarts_with_its_data_has_lost_no_lease_however_long_it_was_away(
    engine: ScriptedEngine, tmp_path: Path, spare_redis: Callable[..., RedisServer]
) -> None:
    server = spare_redis()
    how = fleet(engine, redis_loss="closed")
    async with (
        rig(tmp_path, server.url, gateways=2, reapers=1, **how) as replicas,
        looking_at(replicas.configs[0]) as eye,
    ):
        with ExitStack() as opened:
            own = [call for url in replicas.urls for call in await started(Ends([]), url, 2, opened)]
            await eye.all_tick(2)
            server.cli("SAVE")
            server.stop()
            await passes(2 * TTL_S)
            server.start()
            began_s = time.monotonic()
            assert int(server.cli("ZCARD", "tenure:{demo}:pool:total")) == TOTAL
            for gateway in replicas.gateways:
                await gateway.ready(within_s=3)
            ready_s = time.monotonic() - began_s
            with await burst(4, replicas.urls, key=replicas.key()) as asked:
                assert dict(asked.statuses) == {429: 4}
            for call in own:
                assert await call.next_token() is not None
            assert await eye.live() == TOTAL
            assert (await eye.lapsed(), await eye.reasserted()) == (0, set())
        await nothing_runs(eye, engine)
        assert engine.max_open == TOTAL
        print(f"away for {2 * TTL_S:.0f} s, no lease lost, ready after {ready_s:.2f} s")  # noqa: T201


async def test_a_tick_that_arrives_after_the_releases_takes_places_for_a_ttl_at_the_most(
    redis_server: RedisServer, redis_url: str, engine: ScriptedEngine, tmp_path: Path
) -> None:
    """A network may keep what its sender has given up, and deliver it over a path of its own."""
    with RedisShim(redis_server.port) as shim:
        async with (
            rig(tmp_path, shim.url, gateways=1, reapers=1, **fleet(engine)) as replicas,
            looking_at(replicas.configs[0], redis_url) as eye,
        ):
            (gateway,) = replicas.gateways
            # What is held back may be the answer to a tick, or a look at the limits: then nothing arrives.
            for _ in range(8):
                await _released_past_what_is_held_back(shim, gateway, eye)
                await nothing_runs(eye, engine)
                shim.healthy()
                late_s = time.monotonic()
                if await _comes_to(eye, 2, within_s=1.0):
                    break
            await eye.see(0, "its ghosts run out", TTL_S + GRACE_S)
            ghosts_s = time.monotonic() - late_s
            assert TTL_S - TICK_S < ghosts_s < TTL_S + GRACE_S
            await admits_exactly(TOTAL, replicas, engine)
            print(f"2 places were lost for {ghosts_s:.2f} s")  # noqa: T201


async def _released_past_what_is_held_back(shim: RedisShim, gateway: Process, eye: Eye) -> None:
    """Run two streams, hold back what is sent to Redis, and end them once it was given up."""
    with ExitStack() as opened:
        await started(Ends([]), gateway.url, 2, opened)
        await eye.all_tick(1)
        outages = gateway.log_text().count("redis_unavailable")
        shim.stall()
        await wait_until(
            lambda: gateway.log_text().count("redis_unavailable") > outages,
            "a call is given up",
            3 * TICK_S + 3,
        )
        # New connections pass; what is held back stays so.
        shim.mode = "pass"
        await gateway.ready()


async def _comes_to(eye: Eye, live: int, *, within_s: float) -> bool:
    """Whether exactly `live` leases are live at some moment from now on."""
    until_s = time.monotonic() + within_s
    while time.monotonic() < until_s:
        if await eye.live() == live:
            return True
    return False


async def test_a_place_that_a_bug_forgets_is_lost_for_idle_and_a_ttl(
    redis_url: str, engine: ScriptedEngine, tmp_path: Path
) -> None:
    """The progress rule: what is not read is not renewed, whatever the process believes to hold."""
    forgets = {
        "services/permits/gate.py": (
            r"(?s)(if self\._permit is not None:\n\s+)self\._permit\.close\(\)",
            r"\1pass",
        )
    }
    root, idle_ms = edition(tmp_path / "forgets", forgets), 1500
    how = fleet(engine)
    how["budgets"] = {**PATIENT, "idle_ms": idle_ms}
    async with (
        rig(tmp_path, redis_url, gateways=0, reapers=1, **how) as replicas,
        looking_at(replicas.configs[0]) as eye,
    ):
        gateway = await replicas.add_gateway(root=root)
        with ExitStack() as opened:
            await started(Ends([]), gateway.url, TOTAL, opened)
        ended_s = time.monotonic()
        await wait_until(lambda: engine.open == 0, "all have ended")
        assert await eye.live() == TOTAL
        await eye.see(0, "the forgotten places are back", idle_ms / 1000 + TTL_S + GRACE_S)
        lost_s = time.monotonic() - ended_s
        print(f"{TOTAL} places were lost for {lost_s:.2f} s")  # noqa: T201
