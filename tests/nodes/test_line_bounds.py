"""The bounds of waiting: how long, how many, and what the surplus costs the gateway."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
import pytest_asyncio

from tests.nodes.places import LONG, looking_at, nothing_runs
from tests.support.client import Call, chat_body
from tests.support.config_file import FLEET, key_of
from tests.support.rig import Rig, rig
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.support.redis_server import RedisServer
    from tests.support.scripted_engine import ScriptedEngine

pytestmark = [
    pytest.mark.xdist_group("nodes_line_bounds"),
    pytest.mark.usefixtures("leaves_nothing"),
    pytest.mark.timeout(180),
]

WAITING: Final = f"tenure:{{{FLEET}}}:line:waiting"
QUEUE_MS: Final = 1500
CLIENTS: Final = 2000


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def one(
    lasting_redis: RedisServer, lasting_engine: ScriptedEngine, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Rig]:
    """One replica that lets people wait for 1.5 s, and five of them."""
    fleet = {"total": 4, "cold": 4, "tenant_default": 100, "line_max": 5, "line_max_per_tenant": 5}
    async with rig(
        tmp_path_factory.mktemp("bounds"),
        lasting_redis.url,
        engines=[{"url": lasting_engine.url, "name": "e1", "slots": 1000}],
        gateways=1,
        fleet=fleet,
        budgets={"queue_ms": QUEUE_MS, "idle_ms": 60_000, "total_ms": 120_000},
    ) as started:
        lasting_engine.answer = LONG
        yield started


async def ask(one: Rig, *, patience: str | None = None, prompt: str = "hello") -> Call:
    headers = () if patience is None else (("Tenure-Patience-Ms", patience),)
    return await Call.start(one.urls[0], key=key_of("acme"), body=chat_body(prompt=prompt), headers=headers)


@asynccontextmanager
async def full(one: Rig, engine: ScriptedEngine) -> AsyncIterator[None]:
    """Hold all four places while the block runs."""
    calls = [await ask(one) for _ in range(4)]
    try:
        await wait_until(lambda: engine.open == 4, "four run")
        yield
    finally:
        for call in calls:
            call.reset()
        async with looking_at(one.configs[0]) as eye:
            await nothing_runs(eye, engine)


@pytest.mark.parametrize(
    ("patience", "least_s", "most_s"),
    [
        ("0", 0, 0.3),
        ("400", 0.39, 0.8),
        (None, 1.49, 2.0),
        ("3600000", 1.49, 2.0),
        ("99999999999999999999999", 1.49, 2.0),
    ],
)
async def test_a_caller_waits_as_long_as_it_wants_and_never_longer_than_the_fleet_allows(
    one: Rig, lasting_engine: ScriptedEngine, patience: str | None, least_s: float, most_s: float
) -> None:
    async with full(one, lasting_engine):
        with await ask(one, patience=patience) as call:
            assert await call.head() == 429
            assert least_s <= call.head_at - call.sent_at <= most_s
            assert call.headers["tenure-refused"] == ("queue_timeout" if least_s else "total_pool_full")
            assert await call.error_code() == call.headers["tenure-refused"]
            assert 1 <= int(call.headers["retry-after"]) <= 60


@pytest.mark.parametrize("patience", ["-5", "soon", "", "1e3", "4.5"])
async def test_a_patience_that_is_no_number_is_never_more_than_the_fleets(
    one: Rig, lasting_engine: ScriptedEngine, patience: str
) -> None:
    async with full(one, lasting_engine):
        with await ask(one, patience=patience) as call:
            assert await call.head() in (400, 429)
            assert call.head_at - call.sent_at <= 2.0


async def test_one_who_waited_says_for_how_long(
    one: Rig, lasting_engine: ScriptedEngine, lasting_redis: RedisServer
) -> None:
    async with full(one, lasting_engine):
        with await ask(one) as call:
            await wait_until(lambda: lasting_redis.cli("HLEN", WAITING) == 1, "one in line")
            waited_ms = (time.monotonic() - call.sent_at) * 1000
            lasting_engine.finish(1)
            assert await call.head() == 200
            # The gateway's clock starts a little after the client's.
            took_ms = (call.head_at - call.sent_at) * 1000
            assert waited_ms - 100 <= int(call.headers["tenure-queue-ms"]) <= took_ms + 1


@pytest.mark.parametrize("surplus", [(CLIENTS, 10, 1), (200, 2, 1024)], ids=["small", "large"])
async def test_two_thousand_clients_against_a_line_of_five(
    one: Rig, lasting_engine: ScriptedEngine, lasting_redis: RedisServer, surplus: tuple[int, int, int]
) -> None:
    """The surplus is refused at once, and costs no memory. A few at a time: two cores may have to do."""
    clients, at_once, kib = surplus
    async with full(one, lasting_engine):
        prompt = "x" * (kib * 1024)
        waits_s: list[float] = []
        codes: dict[str | None, int] = {}
        keepers = [asyncio.create_task(_stand_in_line(one)) for _ in range(5)]
        await wait_until(lambda: lasting_redis.cli("HLEN", WAITING) == 5, "five in line")
        # One wave to warm up, so that what is measured is growth and not the first use of code.
        await asyncio.gather(*(_refused(one, prompt, [], {}) for _ in range(at_once)))
        before_kib = _rss_kib(one.gateways[0].pid)
        for _ in range(clients // at_once):
            await asyncio.gather(*(_refused(one, prompt, waits_s, codes) for _ in range(at_once)))
        grown_kib = _rss_kib(one.gateways[0].pid) - before_kib
        for keeper in keepers:
            keeper.cancel()
        await asyncio.gather(*keepers, return_exceptions=True)
        assert codes.get("line_full", 0) >= 0.8 * clients, codes
        assert lasting_engine.max_open == 4
        waits_s.sort()
        assert waits_s[int(len(waits_s) * 0.99)] < 0.3, f"the slowest took {waits_s[-1]} s"
        assert grown_kib < 50 * 1024


async def _stand_in_line(one: Rig) -> None:
    """Keep one place of the line taken: whoever is refused for its patience asks again."""
    while True:
        with await ask(one) as call:
            assert await call.head() == 429


async def _refused(one: Rig, prompt: str, waits_s: list[float], codes: dict[str | None, int]) -> None:
    with await ask(one, prompt=prompt) as call:
        assert await call.head() == 429
        code = await call.error_code()
        codes[code] = codes.get(code, 0) + 1
        if code == "line_full":
            waits_s.append(call.head_at - call.sent_at)


def _rss_kib(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))


async def test_a_client_that_leaves_while_it_waits_frees_its_place_in_line_at_once(
    one: Rig, lasting_engine: ScriptedEngine, lasting_redis: RedisServer
) -> None:
    async with full(one, lasting_engine):
        calls = [await ask(one) for _ in range(5)]
        await wait_until(lambda: lasting_redis.cli("HLEN", WAITING) == 5, "five in line")
        began_s = time.monotonic()
        for call in calls:
            call.reset()
        await wait_until(lambda: lasting_redis.cli("HLEN", WAITING) == 0, "nobody in line")
        assert time.monotonic() - began_s < 1.0
