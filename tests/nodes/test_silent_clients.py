"""Clients that neither read nor say that they have gone cost little memory, and their place comes back."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.nodes.places import Ends, admits_exactly, looking_at, nothing_runs
from tests.support.answers import Flood, Stream
from tests.support.client import Call, chat_body
from tests.support.config_file import LEASE, key_of
from tests.support.rig import rig
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from tests.nodes.places import Eye
    from tests.support.scripted_engine import ScriptedEngine

pytestmark = pytest.mark.timeout(90)

MIB: Final = 1 << 20
ONE_PLACE: Final = {"total": 1, "cold": 1}
PATIENT: Final = {"first_token_ms": 60_000, "idle_ms": 60_000, "stall_ms": 60_000, "total_ms": 60_000}


def budgets(**short: int) -> dict[str, Any]:
    return {"gateways": 1, "fleet": ONE_PLACE, "budgets": {**PATIENT, **short}}


async def time_passes(eye: Eye, ms: int) -> None:
    """Return when the lease clock has gone on by so much."""
    until = (await eye.counts()).clock + ms

    async def is_over() -> bool:
        return (await eye.counts()).clock >= until

    await wait_until(is_over, f"{ms} ms pass", 2 * ms / 1000 + 5)


def rss_bytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return 1024 * next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))


async def test_a_client_that_stops_reading_costs_little_memory_and_keeps_its_place(
    redis_url: str, engine: ScriptedEngine, tmp_path: Path
) -> None:
    """A forwarder without back-pressure would take the whole gigabyte in for it."""
    async with (
        rig(tmp_path, redis_url, engines=[engine.url], **budgets()) as replicas,
        looking_at(replicas.configs[0]) as eye,
    ):
        (gateway,), ends = replicas.gateways, Ends(replicas.gateways)
        engine.answer = Stream(tokens=1)
        with await ends.call(gateway.url) as call:
            # So that what is measured is growth and not the first use of code.
            assert await call.head() == 200
            await call.rest()
        await nothing_runs(eye, engine)
        before = rss_bytes(gateway.pid)
        engine.answer = Flood()
        with await ends.call(gateway.url, receive_buffer=4096) as stalled:
            assert await stalled.head() == 200
            await time_passes(eye, 2 * LEASE["ttl_ms"])
            taken = engine.requests[-1].bytes_accepted
            assert taken < MIB
            assert rss_bytes(gateway.pid) - before < 16 * MIB
            # It is no hung stream yet: renewed all the while, so nobody was let in beside it.
            assert [row.lease for row in await eye.leases()] == [stalled.headers["tenure-lease"]]
            with await ends.call(gateway.url) as other:
                assert await other.head() == 429
            assert engine.requests[-1].bytes_accepted == taken
            assert engine.open == engine.max_open == 1
            stalled.reset()
        await nothing_runs(eye, engine)
        assert await eye.lapsed() == 0


async def test_a_client_that_vanished_from_a_silent_stream_is_let_go_of_at_the_total(
    redis_url: str, engine: ScriptedEngine, tmp_path: Path
) -> None:
    """Nothing is written that could reveal that nobody is there any more."""
    engine.answer = Stream(hold_after=1)
    async with (
        rig(tmp_path, redis_url, engines=[engine.url], **budgets(total_ms=4000)) as replicas,
        looking_at(replicas.configs[0]) as eye,
    ):
        ends = Ends(replicas.gateways)
        with await ends.call(replicas.urls[0]) as call:
            assert await call.first_token() is not None
            call.vanish()
            (line,) = await ends.reach(1)
            assert (line["reason"], engine.open) == ("total_timeout", 0)
            await nothing_runs(eye, engine)
            await admits_exactly(1, replicas, engine)
        assert await eye.lapsed() == 0


async def test_a_client_that_vanished_from_a_stream_is_let_go_of_long_before_the_total(
    redis_url: str, engine: ScriptedEngine, tmp_path: Path
) -> None:
    """Each token is sent and never acknowledged: the kernel gives up after stall_ms."""
    engine.answer = Stream(tokens=None, gap_s=0.1)
    async with (
        rig(tmp_path, redis_url, engines=[engine.url], **budgets(stall_ms=1500)) as replicas,
        looking_at(replicas.configs[0]) as eye,
    ):
        ends = Ends(replicas.gateways)
        body = chat_body()
        with await Call.start(
            replicas.urls[0], key=key_of("acme"), body=body, headers=[("x-request-id", ends.tag)]
        ) as call:
            assert await call.first_token() is not None
            call.vanish()
            await wait_until(lambda: len(ends.all()) == 1, "its stream has ended", 15)
            assert ends.lines[0]["reason"] in {"client_disconnect", "client_stalled"}
            await nothing_runs(eye, engine)
            await admits_exactly(1, replicas, engine)
        assert await eye.lapsed() == 0
