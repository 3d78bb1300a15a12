"""Tells Redis at once what ended here, without the detour over the ticker's thread."""

import asyncio
from typing import Final

from services.permits.clock import monotonic
from services.permits.flush import flush_next, freed_of, tell_freed
from services.permits.lane import Lane
from services.permits.store import Store

# How long the first release waits for others to share its call: much less than a place is free anyway
# before anybody can use it, and at a thousand requests a second it saves most of the calls.
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

    def soon(self) -> None:
        """Flush in a moment. Called in the owners' loop; never waits."""
        if self._timer is None and self._flushing is None:
            self._timer = asyncio.get_running_loop().call_later(GATHER_S, self._begin)

    async def stop(self) -> None:
        """End what is under way; what is left, and what comes, is the ticker's."""
        self._outbox.on_filled = self._lane.wake
        if self._timer is not None:
            self._timer.cancel()
        if self._flushing is not None:
            await self._flushing

    def _begin(self) -> None:
        self._timer = None
        self._flushing = asyncio.create_task(self._flush())

    async def _flush(self) -> None:
        try:
            while self._lane.may_flush():
                run = await flush_next(self._store, self._outbox)
                if not run:
                    return
                tell_freed(freed_of(run), monotonic())
        except Exception:  # noqa: BLE001
            # It is in the outbox again. The ticker tries, and says why when it cannot either.
            self._lane.wake()
        else:
            self._lane.wake()
        finally:
            self._flushing = None
