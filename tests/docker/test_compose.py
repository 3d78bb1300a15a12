"""`docker-compose.yml`, built and run: streams through the front, a replica that dies, one that drains."""

from __future__ import annotations

import asyncio
import json
import time
from functools import partial
from typing import TYPE_CHECKING

import pytest

from tests.docker import engine
from tests.docker.compose import FLEET, KEY, LEASE, Stack, why_not
from tests.support.client import Call, chat_body, fetch
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

# The limit is for the first build, which fetches every dependency.
pytestmark = pytest.mark.timeout(1200)

# What asking through `docker exec` may add to a bound on a busy machine.
ASKING_S = 2.0


# Not per module: tests in random order may come back to this one.
@pytest.fixture(scope="session")
def started_stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    if why := why_not():
        pytest.skip(why)
    command = engine.compose_command()
    assert command is not None
    with engine.client() as client:
        stack = Stack(client, command, tmp_path_factory.mktemp("compose"))
        try:
            stack.up()
            yield stack
        finally:
            stack.down()


@pytest.fixture
async def stack(started_stack: Stack) -> Stack:
    """The stack with every part healthy and every place free, however the test before left it."""
    await started_stack.healthy()
    await wait_until(lambda: started_stack.in_use() == 0, "every place is free", 10)
    return started_stack


async def stream(url: str, *, tokens: int = 5000) -> Call:
    """Start a stream of `tokens` tokens, 20 ms apart, and wait for nothing."""
    return await Call.start(url, key=KEY, body=chat_body(max_tokens=tokens))


async def test_a_stream_comes_through_the_front_token_by_token(stack: Stack) -> None:
    with await stream(stack.url("front"), tokens=20) as call:
        first = await call.first_token()
        first_s = time.monotonic()
        assert call.status == 200
        assert first
        assert call.headers["tenure-lease"].startswith("gateway-")
        assert call.headers["x-accel-buffering"] == "no"
        rest = await call.rest()
        assert rest.endswith(b"data: [DONE]\n\n")
        # 19 more tokens, 20 ms apart: had they been held back, the first would have come with the last.
        assert time.monotonic() - first_s > 0.2


@pytest.mark.parametrize("way", ["reset", "half_close"])
async def test_a_caller_who_leaves_before_the_first_token_frees_the_place_through_the_front(
    stack: Stack, way: str
) -> None:
    """Without `option abortonclose` the front would let the engine work to the end for nobody."""
    # Prefill takes 0.2 ms a token: long enough to leave during it. Not streamed: the head comes at the end.
    body = chat_body(prompt=way + " wait" * 40_000, stream=False)
    with await Call.start(stack.url("front"), key=KEY, body=body) as call:
        await wait_until(lambda: stack.in_use() == 1, "the request is admitted")
        getattr(call, way)()
        await wait_until(lambda: stack.in_use() == 0, "its place is free", 3 + ASKING_S)


async def test_the_places_of_a_killed_gateway_come_back_and_so_does_the_gateway(stack: Stack) -> None:
    restarts = stack.container("gateway-1").attrs["RestartCount"]
    calls = [await stream(stack.url("gateway-1")) for _ in range(3)]
    other = await stream(stack.url("gateway-2"))
    for call in (*calls, other):
        assert await call.first_token()
    assert len(stack.leases_of("gateway-1")) == 3
    shown = json.loads(stack.run_in("reaper", "tenure", "leases", "--json"))["leases"]
    assert sorted(lease["holder"].partition("~")[0] for lease in shown) == ["gateway-1"] * 3 + ["gateway-2"]

    killed = [call.headers["tenure-lease"] for call in calls]
    stack.crash("gateway-1")
    # One lease, one period of the reaper, half a second.
    await wait_until(
        lambda: not set(killed) & set(stack.leases_of("gateway-1")),
        "the places of the dead gateway come back",
        LEASE["ttl_ms"] / 1000 + 1.0 + 0.5 + ASKING_S,
    )
    assert stack.leases_of("gateway-2") == [other.headers["tenure-lease"]]
    assert await other.next_token()
    for call in calls:
        await call.rest()
        assert call.ended != "clean"
        call.close()

    with await stream(stack.url("front"), tokens=5) as call:
        assert await call.head() == 200
        assert (await call.rest()).endswith(b"data: [DONE]\n\n")
    other.reset()
    await stack.healthy("gateway-1")
    assert stack.container("gateway-1").attrs["RestartCount"] == restarts + 1


async def test_a_stopped_gateway_finishes_its_streams_while_the_front_uses_the_other(stack: Stack) -> None:
    gateway = stack.container("gateway-2")
    for name in ("gateway-1", "gateway-2"):
        # One that another test has killed serves a moment before the front looks at it again.
        await wait_until(partial(taken_by, stack, name, times=1), f"the front uses {name}", 5)
    with (
        await stream(stack.url("front"), tokens=200) as one,
        await stream(stack.url("front"), tokens=200) as two,
    ):
        for call in (one, two):
            assert await call.first_token()
        # The front sends each new request to the replica with fewer.
        assert {call.headers["tenure-lease"].partition("~")[0] for call in (one, two)} == {
            "gateway-1",
            "gateway-2",
        }
        stopping = asyncio.create_task(asyncio.to_thread(gateway.stop, timeout=40))
        await wait_until(lambda: refused_by(stack, "gateway-2"), "gateway-2 says that it drains")
        # And so the front has looked at least once: it looks every second.
        await wait_until(lambda: taken_by(stack, "gateway-1", times=4), "the front uses gateway-1 alone", 5)
        for call in (one, two):
            assert (await call.rest()).endswith(b"data: [DONE]\n\n")
        await stopping
    gateway.reload()
    assert gateway.attrs["State"]["ExitCode"] == 0
    gateway.start()


async def test_a_limit_changed_at_run_time_outlives_a_restart_of_everything(stack: Stack) -> None:
    limits = f"tenure:{{{FLEET}}}:limits"
    stack.redis("HSET", limits, "tenant_default", "5")
    parts = ("gateway-1", "gateway-2", "reaper", "redis")
    await asyncio.gather(*(asyncio.to_thread(stack.container(part).stop) for part in parts))
    await asyncio.gather(*(asyncio.to_thread(stack.container(part).start) for part in parts))
    await stack.healthy()
    assert stack.redis("HGET", limits, "tenant_default") == "5"
    stack.redis("HSET", limits, "tenant_default", "6")
    await wait_until(lambda: serves(stack), "the front has found the gateways again", 10)


async def test_metrics_are_asked_at_each_replica_and_not_through_the_front(stack: Stack) -> None:
    through = await fetch(stack.url("front"), "/metrics")
    assert through.status == 404
    assert (await fetch(stack.url("gateway-1"), "/metrics")).status == 200
    assert (await fetch(stack.url("reaper"), "/metrics")).status == 200


async def test_the_image_is_no_root_and_has_the_scripts_and_no_compiler(stack: Stack) -> None:
    assert stack.run_in("gateway-1", "id", "-u").strip() != "0"
    found = stack.run_in(
        "gateway-1",
        *("python", "-c"),
        "import shutil; from services.permits.scripts import LUA_DIR, load;"
        "print(LUA_DIR, len(load()), [name for name in ('cc', 'gcc', 'ld', 'make') if shutil.which(name)])",
    )
    folder, scripts, tools = found.split(maxsplit=2)
    assert folder.endswith("/site-packages/services/permits/lua")
    assert int(scripts) >= 10
    assert tools.strip() == "[]"


async def test_the_doctor_finds_nothing_to_fix(stack: Stack) -> None:
    assert "nothing to fix" in stack.run_in("reaper", "tenure", "doctor")


async def refused_by(stack: Stack, gateway: str) -> bool:
    return (await fetch(stack.url(gateway), "/readyz")).status == 503


async def taken_by(stack: Stack, gateway: str, *, times: int) -> bool:
    """Say whether so many requests in a row through the front were taken by this gateway."""
    for _ in range(times):
        with await stream(stack.url("front"), tokens=1) as call:
            if await call.head() != 200 or not call.headers["tenure-lease"].startswith(f"{gateway}~"):
                return False
            await call.rest()
    return True


async def serves(stack: Stack) -> bool:
    return (await fetch(stack.url("front"), "/v1/models", key=KEY)).status == 200
