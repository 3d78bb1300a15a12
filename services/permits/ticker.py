"""Renews what this process holds and flushes its outbox, on a thread of its own.

The gateway's event loop may be blocked for seconds (a large body, a garbage collection, a bug); its leases
must not lapse for that. So one thread with a loop and a connection of its own does, for each fleet and
strictly in order: flush its outbox, tick when it is due; see `lane.py`. The owners' loop flushes too, and
sooner, but never while a tick is under way: a release must not be overtaken by an older tick of the process.

`tick_soon` and the views may be called from any thread, all else in the event loop that started the ticker;
there permits are told what became of them (lost, released).
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import structlog

from services.permits.clock import monotonic
from services.permits.connect import connect
from services.permits.directory import REFRESH_S, Directory
from services.permits.errors import Unavailable, Unusable
from services.permits.events import Listener
from services.permits.holdings import Holdings
from services.permits.lane import Lane
from services.permits.model import Cut, Ended, FleetPolicy, LeaseTimes
from services.permits.outbox import Downgrade, Evidence, Release
from services.permits.permit import Permit
from services.permits.probe import probe
from services.permits.renewal import WATCHES_PER_TICK, FleetView, Renewal
from services.permits.states import Move, State
from services.permits.store import Store
from services.permits.waiters import News, Waiters

# How long a stopping process tries to hand its last releases to Redis.
LAST_FLUSH_S: Final = 2.0
# The layout of a fleet's keys that this version writes; see `schema` in lua/README.md.
SCHEMA: Final = 1
# In place of a lease id: what follows is said to the gateway itself. See lua/drain.lua.
WHOLE_GATEWAY: Final = "*"
# For plain commands: each fleet looks at its limits once per tick.
CONNECTIONS_MAX: Final = 4

log = structlog.get_logger(__name__)


class Ticker:
    """One per process. Started by `open_gate`, which also stops it."""

    def __init__(
        self,
        *,
        redis_url: str,
        prefix: str,
        holder: str,
        times: LeaseTimes,
        fleets: Mapping[str, FleetPolicy],
        keys: Mapping[str, str],
        listener: Listener,
        on_drain: Callable[[], None] | None = None,
        loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None,
    ) -> None:
        """Build everything; nothing runs before `start`."""
        self._on_drain = on_drain
        self.holdings = Holdings()
        self.waiters = Waiters()
        self._times = times
        self._loop_factory = loop_factory
        self._listener = listener
        self._client = connect(redis_url, max_connections=CONNECTIONS_MAX)
        self._prefix = prefix
        self._store = store = Store(self._client, prefix=prefix, times=times, listener=listener)
        self.directory = Directory(store, keys, _tenants_of(fleets.values()))
        self._holder = holder
        self.lanes = {
            fleet: Lane(
                Renewal(
                    fleet,
                    policy=policy,
                    times=times,
                    store=store,
                    holdings=self.holdings,
                    waiters=self.waiters,
                    holder=holder,
                    listener=listener,
                    lose=self._deliver_lost,
                    tell=self._deliver_news,
                ),
                store=store,
                times=times,
                listener=listener,
                to_owners=self._to_owners,
                report=self._report,
            )
            for fleet, policy in fleets.items()
        }
        self._thread = threading.Thread(target=self._run_thread, name="tenure-ticker", daemon=True)
        # The event loop of the permits' owners.
        self._owners: asyncio.AbstractEventLoop | None = None
        self._started: asyncio.Future[None] | None = None

    async def start(self) -> None:
        """Start the thread and wait for its first attempt; raises Unusable when this Redis can never work.

        A Redis that is away is not an error: the ticker goes on trying.
        """
        self._owners = asyncio.get_running_loop()
        self._started = self._owners.create_future()
        self._thread.start()
        await self._started

    async def stop(self) -> None:
        """Flush what is left, for LAST_FLUSH_S at the most, and end the thread."""
        for lane in self.lanes.values():
            lane.stop()
        await asyncio.get_running_loop().run_in_executor(None, self._thread.join)

    def view(self, fleet: str) -> FleetView | None:
        """Return what the fleet's last acknowledged tick said; None before the first."""
        lane = self.lanes.get(fleet)
        return lane.renewal.view if lane else None

    def tick_soon(self, fleet: str) -> None:
        """Tick a fleet now; see `Lane.tick_soon`."""
        self.lanes[fleet].tick_soon()

    def tick_waiters(self, fleets: Iterable[str]) -> None:
        """Tick those of `fleets` in which somebody waits: a message may have been lost."""
        for fleet in fleets:
            if self.waiters.of(fleet):
                self.tick_soon(fleet)

    def hear(self, fleet: str, news: Iterable[tuple[str, News]]) -> None:
        """Tell waiters and holders what Redis said of them; in the owners' event loop."""
        for lease, one in self.waiters.tell(fleet, news):
            if lease == WHOLE_GATEWAY:
                self._drain()
                continue
            permit = self.holdings.get(fleet, lease) if isinstance(one, Cut) else None
            if permit is not None and permit.on_cut is not None and isinstance(one, Cut):
                permit.on_cut(one.reason)

    def _drain(self) -> None:
        """Pass on, once, that this process is to admit nothing more and stop; each tick says so again."""
        call, self._on_drain = self._on_drain, None
        if call is not None:
            log.info("told_to_drain", holder=self._holder)
            call()

    def enroll(self, permit: Permit) -> None:
        """Renew this permit from now on."""
        self.holdings.add(permit)

    def freed(self, permit: Permit) -> None:
        """Stop renewing it and release it."""
        self.holdings.remove(permit)
        self.lanes[permit.fleet].outbox.append(Release(permit, monotonic()))

    def downgraded(self, permit: Permit) -> None:
        """Give its cold place back."""
        self.lanes[permit.fleet].outbox.append(Downgrade(permit, monotonic()))

    def witness(self, fleet: str, engine: str, prefixes: Mapping[str, bool]) -> None:
        """Note an engine's report."""
        self.lanes[fleet].outbox.append(Evidence(engine, prefixes, monotonic()))

    def ended(self, permit: Permit, reason: str) -> None:
        """Let people see why its work ended."""
        self.lanes[permit.fleet].ends.append(Ended(permit.id, permit.tenant, reason))

    # --- the thread

    def _run_thread(self) -> None:
        with asyncio.Runner(loop_factory=self._loop_factory) as runner:
            runner.run(self._main())

    async def _main(self) -> None:
        besides = [asyncio.create_task(self._watch_deadlines())]
        try:
            if await self._first_contact():
                besides.append(asyncio.create_task(self._keep_directory()))
                await asyncio.gather(*(lane.serve() for lane in self.lanes.values()))
                await self._say_goodbye()
        finally:
            for task in besides:
                task.cancel()
            await asyncio.gather(*besides, return_exceptions=True)
            await self._client.aclose()

    async def _first_contact(self) -> bool:
        """Look at this Redis once; False when it can never work."""
        error: Unusable | None = None
        try:
            # Away, or a part of it: the lanes say so, each for itself.
            with contextlib.suppress(Unavailable):
                await probe(self._client, prefix=self._prefix)
            await self._check_layout()
            await asyncio.gather(self._look_at_keys(), *(lane.attempt() for lane in self.lanes.values()))
        except Unusable as unusable:
            error = unusable
        self._to_owners(self._settle_start, error)
        return error is None

    async def _check_layout(self) -> None:
        for fleet in self.lanes:
            found = SCHEMA
            with contextlib.suppress(Unavailable):
                found = await self._store.schema(fleet)
            if found > SCHEMA:
                raise Unusable(
                    f"redis.url: fleet {fleet} is kept by a newer Tenure (schema {found}, here {SCHEMA}): "
                    "upgrade this one, or give it a redis.prefix of its own"
                )

    def _settle_start(self, error: Unusable | None) -> None:
        if self._started is not None and not self._started.done():
            if error is None:
                self._started.set_result(None)
            else:
                self._started.set_exception(error)

    async def _keep_directory(self) -> None:
        while True:
            await asyncio.sleep(REFRESH_S)
            await self._look_at_keys()

    async def _look_at_keys(self) -> None:
        """Bring the directory up to date; where its part of Redis is away, what was read last holds."""
        try:
            await self.directory.refresh()
        except Unavailable as trouble:
            log.debug("keys_unavailable", why=str(trouble))
        except Exception:
            log.exception("keys_unreadable")

    async def _watch_deadlines(self) -> None:
        """End overdue leases on time also while a call to Redis hangs."""
        while True:
            for lane in self.lanes.values():
                lane.renewal.lose_overdue()
            await asyncio.sleep(self._times.tick_ms / 1000 / WATCHES_PER_TICK)

    async def _say_goodbye(self) -> None:
        goodbyes = (lane.say_goodbye(self._holder) for lane in self.lanes.values())
        try:
            async with asyncio.timeout(LAST_FLUSH_S):
                ends = await asyncio.gather(*goodbyes, return_exceptions=True)
        except TimeoutError as late:
            ends = [late]
        for error in ends:
            if isinstance(error, BaseException):
                # The leases end by themselves; an operator should know why they took a ttl to do so.
                left = sum(len(lane.outbox) for lane in self.lanes.values())
                log.warning("last_flush_failed", left=left, error=f"{type(error).__name__}: {error}")

    # --- towards the owners' event loop, and whoever counts

    def _report(self) -> None:
        lanes = self.lanes.values()
        self._listener.outbox(max((lane.outbox.age_s() for lane in lanes), default=0.0))
        if any(lane.answers is not None for lane in lanes):
            self._listener.redis_up(up=all(lane.answers is not False for lane in lanes))

    def _deliver_lost(self, permits: list[Permit]) -> None:
        self._to_owners(_deliver_lost, permits)

    def _deliver_news(self, fleet: str, news: list[tuple[str, News]]) -> None:
        # First: a waiter that lost its place asks again at once, and must not be told that Redis is away.
        self.lanes[fleet].note_up()
        self._to_owners(self.hear, fleet, news)

    def _to_owners(self, call: Callable[..., object], *args: object) -> None:
        owners = self._owners
        if owners is not None and not owners.is_closed():
            owners.call_soon_threadsafe(call, *args)


def _tenants_of(fleets: Iterable[FleetPolicy]) -> set[str]:
    """Return the tenants that a config file gives a weight, also those that have no key yet."""
    weights = (field.partition(":")[::2] for fleet in fleets for field in fleet.limits)
    return {tenant for kind, tenant in weights if kind == "weight"}


def _deliver_lost(permits: list[Permit]) -> None:
    for permit in permits:
        if permit.state is State.HELD:
            permit.move(Move.LOSE)
            if permit.on_cut is not None:
                permit.on_cut("lease_lost")
