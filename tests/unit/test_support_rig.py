"""The rig starts what it says, survives what tests do to it, and leaves no process behind."""

from pathlib import Path

import pytest

from tests.support.answers import Stream
from tests.support.burst import burst
from tests.support.client import chat_body, fetch
from tests.support.processes import Process
from tests.support.redis_server import RedisServer
from tests.support.redis_shim import RedisShim
from tests.support.rig import Rig, rig
from tests.support.scripted_engine import ScriptedEngine
from tests.support.waiting import wait_until


class OnPurposeError(Exception):
    """The test's own failure."""


def refusals(fleet: Rig) -> list[str]:
    return [line["refused"] for gateway in fleet.gateways for line in gateway.refused_lines()]


async def test_a_fleet_starts_serves_and_ends_also_when_the_test_fails(
    tmp_path: Path, redis_url: str
) -> None:
    processes: list[Process] = []

    async def failing_test(u: ScriptedEngine) -> None:
        async with rig(tmp_path, redis_url, engines=[u.url], gateways=2, reapers=1) as fleet:
            processes.extend([*fleet.gateways, *fleet.reapers])
            with await burst(8, fleet.urls, key=fleet.key()) as fired:
                assert fired.statuses == {200: 4, 429: 4}
                assert fired.codes == {"total_pool_full": 4}
                assert (u.open, u.max_open) == (4, 4)
            await wait_until(lambda: u.open == 0, "the engine is let go")
            await wait_until(lambda: len(fleet.log_lines()) == 4, "each end is recorded")
            assert {line["reason"] for line in fleet.log_lines()} == {"client_disconnect"}
            await wait_until(lambda: refusals(fleet) == ["total_pool_full"] * 4, "each refusal is recorded")
            fleet.gateways[0].sigstop()
            raise OnPurposeError

    with ScriptedEngine() as u:
        u.answer = Stream(hold_after=1)
        with pytest.raises(OnPurposeError):
            await failing_test(u)
    assert len(processes) == 3
    assert not any(process.alive for process in processes)


async def test_replicas_can_be_killed_restarted_and_added_each_on_its_own_path_to_redis(
    tmp_path: Path, redis_url: str, redis_server: RedisServer
) -> None:
    with ScriptedEngine() as u, RedisShim(redis_server.port) as shim:
        async with rig(tmp_path, [shim.url, redis_url], engines=[u.url], gateways=2) as fleet:
            assert shim.accepted > 0
            fleet.gateways[0].kill9()
            assert not fleet.gateways[0].alive
            again = await fleet.restart_gateway(0)
            added = await fleet.add_gateway()
            for gateway in (again, added, fleet.gateways[1]):
                answer = await fetch(
                    gateway.url,
                    "/v1/chat/completions",
                    method="POST",
                    key=fleet.key(),
                    body=chat_body(stream=False),
                )
                assert answer.status == 200
        assert [gateway.alive for gateway in fleet.gateways] == [False] * 3
