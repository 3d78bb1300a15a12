"""Tells Redis at once what ended here, without the detour over the ticker's thread."""

import asyncio
from typing import Final

from services.permits.clock import monotonic
from services.permits.flush import flush_next, freed_of, tell_freed
from services.permits.lane import Lane
from services.permits.outbox import Entry
from services.permits.store import Store

# At least so far apart calls begin: what ends meanwhile shares the next. It is much less than a place is free
# anyway before anybody can use it, and at a thousand requests a second it saves most of the calls.
GATHER_S: Final = 0.002


class Flusher:
    """Flushes from the event loop of the permits' owners, as soon as something waits.

    The ticker flushes too, on its own thread, and alone when this loop must not: while Redis is away, and
    while a tick is under way, which could otherwise renew in Redis what was just released there.
    """

    def __init__(self, store: Store, lane: Lane) -> None:
        """Take over from `lane`, whose outbox it is, for as long as this loop may."""
        self._store = store
        self._lane = lane
        self._outbox = lane.outbox
        self._outbox.on_filled = self.soon
        self._timer: asyncio.TimerHandle | None = None
        self._flushing: asyncio.Task[None] | None = None
        self._begun_s = 0.0
        self._stopped = False

    def soon(self) -> None:
        """Flush at once, or soon after the last time. Called in the owners' loop; never waits."""
        if self._stopped:
            self._lane.wake()
        elif self._timer is None and self._flushing is None:
            gap_s = self._begun_s + GATHER_S - monotonic()
            if gap_s > 0:
                self._timer = asyncio.get_running_loop().call_later(gap_s, self._begin)
            else:
                # The task starts in the next turn: what ends in this one goes along.
                self._begin()

    async def stop(self) -> None:
        """End what is under way; what is left, and what comes, is the ticker's."""
        # What is under way would begin anew at its end, behind the back of whoever closes the connection.
        self._stopped = True
        self._outbox.on_filled = self._lane.wake
        if self._timer is not None:
            self._timer.cancel()
        if self._flushing is not None:
            await self._flushing
        self._lane.wake()

    def _begin(self) -> None:
        self._timer = None
        self._begun_s = monotonic()
        self._flushing = asyncio.get_running_loop().create_task(self._flush())

    async def _flush(self) -> None:
        """Tell Redis what waits: one call's worth, and soon the rest."""
        run: list[Entry] = []
        try:
            if self._lane.may_flush():
                run = await flush_next(self._store, self._outbox)
        except Exception:  # noqa: BLE001
            # It is in the outbox again. The ticker tries, and says why when it cannot either.
            self._lane.wake()
        finally:
            self._flushing = None
        tell_freed(freed_of(run), monotonic())
        if len(self._outbox):
            again = self.soon if run else self._lane.wake
            again()
