"""One fleet as a process keeps it in step with Redis: what it has to tell, when it ticks, who answers.

Each fleet has a lane of its own and runs by itself, because Redis may be several servers: where the shard of
one fleet is away or hangs, the others tick on time, and only its own requests are refused or shared.

A lane runs in the ticker's loop. `up` and `down_since_s` are set in the loop of the permits' owners, and say
how it looks from there; `wake` and `tick_soon` may be called from any thread, all else in the ticker's loop.
"""

import asyncio
import random
from collections import deque
from collections.abc import Callable
from typing import Final

import structlog

from services.permits.clock import monotonic
from services.permits.errors import OutOfMemory, Unavailable
from services.permits.events import Listener
from services.permits.flush import flush_next, freed_of, tell_freed
from services.permits.model import Ended, LeaseTimes
from services.permits.outbox import Outbox
from services.permits.renewal import Renewal
from services.permits.store import Store

# Of how requests ended: what is kept until Redis has it, and what one call carries.
ENDS_MAX: Final = 5_000
ENDS_PER_CALL_MAX: Final = 500

# Between attempts while Redis is away: soon enough to recover within a second, too slow to hammer.
RETRY_S: Final = (0.05, 0.5)

log = structlog.get_logger(__name__)


class Lane:
    """One per fleet of a ticker, which starts and ends it."""

    def __init__(
        self,
        renewal: Renewal,
        *,
        store: Store,
        times: LeaseTimes,
        listener: Listener,
        to_owners: Callable[..., None],
        report: Callable[[], None],
    ) -> None:
        """`to_owners(call, *args)` runs a call in the owners' loop; `report` is told that figures changed."""
        self.fleet = renewal.fleet
        self.renewal = renewal
        self.outbox = Outbox(self.fleet, self.wake)
        # What people may look at, told after each tick; the oldest is forgotten when there are too many.
        self.ends: deque[Ended] = deque(maxlen=ENDS_MAX)
        self.up = asyncio.Event()
        self.down_since_s: float | None = None
        # As seen here: None before the first attempt.
        self.answers: bool | None = None
        self._store = store
        self._times = times
        self._listener = listener
        self._to_owners = to_owners
        self._report = report
        # When the next tick is due by the clock alone, whoever asks for one sooner.
        self._planned_s: float | None = None
        self._ticking = False
        self._stopping = False
        self._down_for: str | None = None
        self._woken = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    # --- from any thread

    def may_flush(self) -> bool:
        """Whether the owners' loop may flush: Redis answers, and no tick is under way."""
        return self.up.is_set() and not self._ticking

    def wake(self) -> None:
        """Look at the outbox and at what is due."""
        loop = self._loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self._woken.set)

    def tick_soon(self) -> None:
        """Tick now: the epoch changed, or Redis fell back to an older state."""
        self.renewal.due_s = 0.0
        self.wake()

    def suspect(self) -> None:
        """Take Redis for away until a tick succeeds, in the owners' loop: the first command after trouble."""
        self._see_down()
        self.tick_soon()

    def stop(self) -> None:
        """Let `serve` end after its round."""
        self._stopping = True
        self.wake()

    # --- in the ticker's loop

    async def serve(self) -> None:
        """Do what is due, in order, until `stop`."""
        pause_s = RETRY_S[0]
        while not self._stopping:
            if await self.attempt():
                pause_s = RETRY_S[0]
                await self._idle()
            else:
                await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))
                pause_s = min(2 * pause_s, RETRY_S[1])

    async def attempt(self) -> bool:
        """Do all that is due and say whether it could be done."""
        self._loop = asyncio.get_running_loop()
        try:
            await self._round()
        except Exception as trouble:  # noqa: BLE001
            # Also a defect must not end the renewals of everything this process runs.
            self._note_down(trouble)
            return False
        return True

    async def say_goodbye(self, holder: str) -> None:
        """Tell what is left, and that this holder is gone; raises what went wrong."""
        await self._flush()
        await self._store.forget(self.fleet, holder)
        await self._tell_ends()

    async def _round(self) -> None:
        await self._flush()
        renewal = self.renewal
        due_s = renewal.due_s
        is_due = due_s <= monotonic()
        if is_due:
            next_s = renewal.due_s = monotonic() + self._times.tick_ms / 1000 * random.uniform(0.8, 1.0)
            # Until its answer is known nobody else may release: see Flusher.
            self._ticking = True
            try:
                await renewal.tick()
            except Unavailable:
                renewal.due_s = due_s
                raise
            finally:
                self._ticking = False
            late_s = 0.0 if self._planned_s is None else max(0.0, monotonic() - self._planned_s)
            self._planned_s = next_s
            self._listener.tick(self.fleet, late_s)
            await self._flush()
        self.note_up()
        if is_due:
            await self._tell_ends()

    async def _flush(self) -> None:
        try:
            while run := await flush_next(self._store, self.outbox):
                if freed := freed_of(run):
                    self._to_owners(tell_freed, freed, monotonic())
        finally:
            self._report()

    async def _tell_ends(self) -> None:
        """Write down how requests ended since the last time, until a tick is due again.

        Only for people to look at: what cannot be written waits for the next tick, and says nothing of Redis.
        """
        ends = self.ends
        while told := [ends.popleft() for _ in range(min(len(ends), ENDS_PER_CALL_MAX))]:
            try:
                await self._store.ended(self.fleet, told)
            except OutOfMemory:
                continue  # forgotten: Redis needs what it has for leases
            except Unavailable as trouble:
                log.debug("ends_unwritten", fleet=self.fleet, why=str(trouble))
                room = ENDS_MAX - len(ends)
                ends.extendleft(reversed(told[-room:] if room else []))
                return
            if self.renewal.due_s <= monotonic() and not self._stopping:
                return

    async def _idle(self) -> None:
        """Wait until something is due or somebody wakes us."""
        try:
            async with asyncio.timeout(max(0.0, self.renewal.due_s - monotonic())):
                await self._woken.wait()
        except TimeoutError:
            return
        self._woken.clear()

    def note_up(self) -> None:
        """Note that Redis answers; in the owners' loop that is known before whatever is told there next."""
        self.answers = True
        self._report()
        if not self.up.is_set():
            self._to_owners(self._see_up)
        if self._down_for is not None:
            log.info("redis_available", fleet=self.fleet, after=self._down_for)
            self._down_for = None

    def _note_down(self, trouble: Exception) -> None:
        self.answers = False
        self._report()
        self._to_owners(self._see_down)
        why = f"{type(trouble).__name__}: {trouble}"
        if self._down_for is None:
            # Once per outage; a defect with its traceback, an outage without.
            level = log.warning if isinstance(trouble, Unavailable) else log.exception
            level("redis_unavailable", fleet=self.fleet, why=why, outbox=len(self.outbox))
        self._down_for = why

    def _see_up(self) -> None:
        self.down_since_s = None
        self.up.set()

    def _see_down(self) -> None:
        if self.down_since_s is None:
            self.down_since_s = monotonic()
        self.up.clear()
