"""Renews what this process holds and flushes its outbox, on a thread of its own.

The gateway's event loop may be blocked for seconds (a large body, a garbage collection, a bug); its leases
must not lapse for that. So one thread with a loop and a connection of its own does, strictly in order:
flush the outbox, tick each fleet that is due, look at the keys. The owners' loop flushes too, and sooner, but
never while a tick is under way: a release must not be overtaken by an older tick of the same process.

`tick_soon`, `wake` and the views may be called from any thread, all else in the event loop that started the
ticker; there permits are told what became of them (lost, released).
"""

import asyncio
import random
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import structlog

from services.permits.clock import monotonic
from services.permits.connect import connect
from services.permits.directory import REFRESH_S, Directory
from services.permits.errors import Unavailable, Unusable
from services.permits.events import Listener
from services.permits.flush import flush_next, freed_of, tell_freed
from services.permits.holdings import Holdings
from services.permits.model import Cut, FleetPolicy, LeaseTimes
from services.permits.outbox import Downgrade, Evidence, Outbox, Release
from services.permits.permit import Permit
from services.permits.probe import probe
from services.permits.renewal import FleetView, Renewal
from services.permits.states import Move, State
from services.permits.store import Store
from services.permits.waiters import News, Waiters

# How long a stopping process tries to hand its last releases to Redis.
LAST_FLUSH_S: Final = 2.0
# The layout of a fleet's keys that this version writes; see `schema` in lua/README.md.
SCHEMA: Final = 1
# In place of a lease id: what follows is said to the gateway itself. See lua/drain.lua.
WHOLE_GATEWAY: Final = "*"
# Between attempts while Redis is away: soon enough to recover within a second, too slow to hammer.
RETRY_S: Final = (0.05, 0.5)

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
        self.outbox = Outbox(self.wake)
        self._ticking = False
        self._times = times
        self._loop_factory = loop_factory
        self._listener = listener
        self._client = connect(redis_url, max_connections=2)
        self._prefix = prefix
        self._store = Store(self._client, prefix=prefix, times=times, listener=listener)
        self.directory = Directory(self._store, keys, _tenants_of(fleets.values()))
        self._holder = holder
        self._renewals = {
            fleet: Renewal(
                fleet,
                policy=policy,
                times=times,
                store=self._store,
                holdings=self.holdings,
                waiters=self.waiters,
                holder=holder,
                listener=listener,
                lose=self._deliver_lost,
                tell=self._deliver_news,
            )
            for fleet, policy in fleets.items()
        }
        self._directory_due_s = 0.0
        self._stopping = False
        self._down_for: str | None = None
        self._thread = threading.Thread(target=self._run_thread, name="tenure-ticker", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._woken = asyncio.Event()
        # The event loop of the permits' owners; as seen there: whether Redis answered last, since when not.
        self._owners: asyncio.AbstractEventLoop | None = None
        self.up = asyncio.Event()
        self.down_since_s: float | None = None
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
        self._stopping = True
        self.wake()
        await asyncio.get_running_loop().run_in_executor(None, self._thread.join)

    def view(self, fleet: str) -> FleetView | None:
        """Return what the fleet's last acknowledged tick said; None before the first."""
        renewal = self._renewals.get(fleet)
        return renewal.view if renewal else None

    def may_flush(self) -> bool:
        """Whether the owners' loop may flush: Redis answers, and no tick is under way."""
        return self.up.is_set() and not self._ticking

    def wake(self) -> None:
        """Let the thread look at the outbox and at what is due; safe from any thread."""
        loop = self._loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self._woken.set)

    def tick_soon(self, fleet: str) -> None:
        """Tick a fleet now: its epoch changed, or Redis fell back to an older state."""
        self._renewals[fleet].due_s = 0.0
        self.wake()

    def tick_waiters(self) -> None:
        """Tick the fleets in which somebody waits: a message may have been lost."""
        for fleet in self._renewals:
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

    def suspect(self) -> None:
        """Take Redis for away until a tick succeeds: the first command after trouble is a tick."""
        self._see_down()
        for renewal in self._renewals.values():
            renewal.due_s = 0.0
        self.wake()

    def enroll(self, permit: Permit) -> None:
        """Renew this permit from now on."""
        self.holdings.add(permit)

    def freed(self, permit: Permit) -> None:
        """Stop renewing it and release it."""
        self.holdings.remove(permit)
        self.outbox.append(Release(permit, monotonic()))

    def downgraded(self, permit: Permit) -> None:
        """Give its cold place back."""
        self.outbox.append(Downgrade(permit, monotonic()))

    def witness(self, fleet: str, engine: str, prefixes: Mapping[str, bool]) -> None:
        """Note an engine's report."""
        self.outbox.append(Evidence(fleet, engine, prefixes, monotonic()))

    # --- the thread

    def _run_thread(self) -> None:
        with asyncio.Runner(loop_factory=self._loop_factory) as runner:
            runner.run(self._main())

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        watch = asyncio.create_task(self._watch_deadlines())
        try:
            if await self._first_contact():
                await self._serve()
                await self._say_goodbye()
        finally:
            watch.cancel()
            await self._client.aclose()

    async def _first_contact(self) -> bool:
        """Look at this Redis once; False when it can never work."""
        error: Unusable | None = None
        try:
            await probe(self._client, prefix=self._prefix)
            await self._check_layout()
            await self._round()
        except Unusable as unusable:
            error = unusable
        except Exception as trouble:  # noqa: BLE001  (noted; the loop below tries again)
            self._note_down(trouble)
        self._to_owners(self._settle_start, error)
        return error is None

    async def _check_layout(self) -> None:
        for fleet in self._renewals:
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

    async def _serve(self) -> None:
        pause_s = RETRY_S[0]
        while not self._stopping:
            try:
                await self._round()
            except Exception as trouble:  # noqa: BLE001
                # Also a defect must not end the renewals of everything this process runs.
                self._note_down(trouble)
                await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))
                pause_s = min(2 * pause_s, RETRY_S[1])
            else:
                pause_s = RETRY_S[0]
                await self._idle()

    async def _round(self) -> None:
        """Do all that is due, in order; raises Unavailable."""
        await self._flush()
        for renewal in self._renewals.values():
            due_s = renewal.due_s
            if due_s <= monotonic():
                renewal.due_s = monotonic() + self._times.tick_ms / 1000 * random.uniform(0.8, 1.0)
                # Until its answer is known nobody else may release: see Flusher.
                self._ticking = True
                try:
                    await renewal.tick()
                except Unavailable:
                    renewal.due_s = due_s
                    raise
                finally:
                    self._ticking = False
                self._listener.tick(renewal.fleet, monotonic() - due_s if due_s else 0.0)
                await self._flush()
        if self._directory_due_s <= monotonic():
            await self.directory.refresh()
            self._directory_due_s = monotonic() + REFRESH_S
        self._note_up()

    async def _flush(self) -> None:
        try:
            while run := await flush_next(self._store, self.outbox):
                if freed := freed_of(run):
                    self._to_owners(tell_freed, freed, monotonic())
        except Unavailable:
            self._listener.outbox(self.outbox.age_s())
            raise
        self._listener.outbox(0.0)

    async def _idle(self) -> None:
        """Wait until something is due or somebody wakes us."""
        due_s = min([self._directory_due_s, *(renewal.due_s for renewal in self._renewals.values())])
        try:
            async with asyncio.timeout(max(0.0, due_s - monotonic())):
                await self._woken.wait()
        except TimeoutError:
            return
        self._woken.clear()

    async def _watch_deadlines(self) -> None:
        """End overdue leases on time also while a call to Redis hangs."""
        while True:
            for renewal in self._renewals.values():
                renewal.lose_overdue()
            await asyncio.sleep(self._times.tick_ms / 4000)

    async def _say_goodbye(self) -> None:
        try:
            async with asyncio.timeout(LAST_FLUSH_S):
                await self._flush()
                for fleet in self._renewals:
                    keys = self._store.keys(fleet)
                    await self._client.zrem(keys.gateways, self._holder)
                    await self._client.srem(keys.draining, self._holder)
        except Exception as error:  # noqa: BLE001
            # The leases end by themselves; an operator should know why they took a ttl to do so.
            log.warning("last_flush_failed", left=len(self.outbox), error=f"{type(error).__name__}: {error}")

    # --- towards the owners' event loop

    def _note_up(self) -> None:
        self._listener.redis_up(up=True)
        if not self.up.is_set():
            self._to_owners(self._see_up)
        if self._down_for is not None:
            log.info("redis_available", after=self._down_for)
            self._down_for = None

    def _note_down(self, trouble: Exception) -> None:
        self._listener.redis_up(up=False)
        self._to_owners(self._see_down)
        why = f"{type(trouble).__name__}: {trouble}"
        if self._down_for is None:
            # Once per outage; a defect with its traceback, an outage without.
            level = log.warning if isinstance(trouble, Unavailable) else log.exception
            level("redis_unavailable", why=why, outbox=len(self.outbox))
        self._down_for = why

    def _see_up(self) -> None:
        self.down_since_s = None
        self.up.set()

    def _see_down(self) -> None:
        if self.down_since_s is None:
            self.down_since_s = monotonic()
        self.up.clear()

    def _deliver_lost(self, permits: list[Permit]) -> None:
        self._to_owners(_deliver_lost, permits)

    def _deliver_news(self, fleet: str, news: list[tuple[str, News]]) -> None:
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
