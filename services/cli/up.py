"""`tenure up`: everything on one machine. The whole life of it is the function `up`."""

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, TypeVar

from services.cli.child import Child
from services.cli.crew import Crew, answers
from services.cli.doctor import examine_redis
from services.cli.embedded import start_embedded
from services.cli.failure import Failure
from services.cli.greeting import Report, Started
from services.cli.listeners import LOOPBACK
from services.cli.place import Place, occupy, write_private
from services.cli.plan import SLOTS, Plan, Wishes, make_plan
from services.cli.toml_text import toml_text
from services.permits.connect import connect
from services.permits.store import Store
from services.settings.schema import Settings
from services.settings.seed import lease_times, seed_limits

# On top of the longest drain budget: cutting what is left, telling Redis, closing.
DRAIN_SLACK_S: Final = 5.0
_WHO: Final = "tenure up"

_Result = TypeVar("_Result")


async def up(wishes: Wishes, environ: Mapping[str, str], report: Report) -> None:
    """Start everything, say where it is, keep it running, and stop it in order on a signal.

    Raises Failure with one line when anything cannot be started; nothing is left running then.
    """
    with occupy(Path.cwd()) as place, _signals() as told:
        plan = await make_plan(wishes, environ)
        report.starting(plan)
        async with _crew(place, plan, environ, report, told) as crew:
            started = await _unless_told(told, _start(crew, place, plan, environ.get("PATH", "")))
            if started:
                report.started(started)
                crew.watch()
                await told.stop.wait()
                report.stopping()
    report.stopped()


class Told:
    """What the signals said: the first one to stop, any further one to hurry."""

    def __init__(self) -> None:
        """Nothing was said yet."""
        self.stop = asyncio.Event()
        self.hurry = asyncio.Event()

    def signal(self) -> None:
        """Take one signal."""
        (self.hurry if self.stop.is_set() else self.stop).set()


@contextlib.contextmanager
def _signals() -> Iterator[Told]:
    """Take the signals that mean the end, for as long as the block lasts."""
    told = Told()
    loop = asyncio.get_running_loop()
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    for number in numbers:
        loop.add_signal_handler(number, told.signal)
    try:
        yield told
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


@contextlib.asynccontextmanager
async def _crew(
    place: Place, plan: Plan, environ: Mapping[str, str], report: Report, told: Told
) -> AsyncIterator[Crew]:
    """Yield a crew whose every process is gone when the block is left, however it is left."""
    # The written file holds every value in force, so no variable may change one behind its back.
    kept = {name: value for name, value in environ.items() if not name.startswith("TENURE_")}
    crew = Crew(logs=place.logs, environ=kept, say=report.event)
    try:
        yield crew
    finally:
        await crew.end(drain_s=_drain_s(plan.settings), hurry=told.hurry)


async def _unless_told(told: Told, work: Coroutine[None, None, _Result]) -> _Result | None:
    """Return what `work` returns; None, with `work` cancelled, when a signal comes first."""
    working = asyncio.ensure_future(work)
    stopping = asyncio.create_task(told.stop.wait())
    await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if working.done():
        return working.result()
    working.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await working
    return None


async def _start(crew: Crew, place: Place, plan: Plan, search_path: str) -> Started:
    """Start Redis, then all others at once, and wait until every one of them is ready."""
    settings = plan.settings
    server = None
    if plan.embedded:
        server = await start_embedded(crew, place.redis, search_path=search_path)
        settings = settings.model_copy(
            update={"redis": settings.redis.model_copy(update={"url": server.url})}
        )
        await _found_fleets(settings)
    else:
        await _require_fit(settings)
    _write(place, plan, settings)
    waits = await _hire(crew, place, plan)
    await _all([answers(child, url) for child, url in waits])
    pids = {child.name: child.pid for child in crew.all}
    return Started(plan=plan, place=place, settings=settings, server=server, pids=pids)


async def _hire(crew: Crew, place: Place, plan: Plan) -> list[tuple[Child, str]]:
    """Start everybody but Redis; return who answers where once it is ready."""
    config = ("--config", str(place.config.absolute()), "--host", LOOPBACK)
    waits = []
    options: tuple[str, ...]
    for listener in plan.gateways:
        options = (*config, "--port", str(listener.port), "--name", listener.name.split()[-1])
        child = await crew.hire_python(listener.name, "services.gateway", *options, among=crew.gateways)
        waits.append((child, f"{listener.url}/readyz"))
    options = (*config, "--port", str(plan.reaper.port))
    child = await crew.hire_python("reaper", "services.reaper", *options, among=crew.helpers)
    waits.append((child, f"{plan.reaper.url}/readyz"))
    if plan.engine:
        options = ("--host", LOOPBACK, "--port", str(plan.engine.port), "--slots", str(SLOTS))
        child = await crew.hire_python("engine", "services.engine", *options, among=crew.helpers)
        waits.append((child, f"{plan.engine.url}/health"))
    return waits


async def _all(waits: Sequence[Coroutine[None, None, None]]) -> None:
    """Wait for all at once; the first failure is the one to tell."""
    try:
        async with asyncio.TaskGroup() as group:
            for wait in waits:
                group.create_task(wait)
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from None


async def _found_fleets(settings: Settings) -> None:
    """Tell a server that was empty a moment ago that its fleets are new: nobody holds anything yet."""
    client = connect(settings.redis.url, max_connections=1)
    try:
        store = Store(client, prefix=settings.redis.prefix, times=lease_times(settings))
        for fleet in settings.fleets:
            await store.set_limits(fleet, seed_limits(settings, fleet), seed=True, who=_WHO, learning_ms=0)
    finally:
        await client.aclose()


async def _require_fit(settings: Settings) -> None:
    """Raise Failure with the first reason why somebody else's Redis cannot hold leases."""
    for finding in await examine_redis(settings):
        if finding.level == "problem":
            raise Failure(f"Redis: {finding.detail}; {finding.cure}")


def _write(place: Place, plan: Plan, settings: Settings) -> None:
    """Leave the configuration and the key where other commands and terminals find them."""
    write_private(
        place.config, f"# Written by `{_WHO}` at each start; changes here are lost.\n\n{toml_text(settings)}"
    )
    if plan.key:
        write_private(place.demo_key, plan.key + "\n")
    else:
        place.demo_key.unlink(missing_ok=True)


def _drain_s(settings: Settings) -> float:
    budgets = (settings.budgets, *(fleet.budgets for fleet in settings.fleets.values()))
    return max(budget.drain_ms for budget in budgets) / 1000 + DRAIN_SLACK_S
