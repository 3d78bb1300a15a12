"""Where calls of administration wait their turn, so that one busy script does not crowd out everybody."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Final, TypeVar

from services.permits.admin import Admin
from services.permits.errors import Unavailable
from services.permits.gate import unhurt
from services.permits.store import Store

T = TypeVar("T")

# Each uses one connection at a time.
AT_ONCE_MAX: Final = 2
# With Redis away each call takes a second to fail; those behind it are told sooner than it is their turn.
TURN_S: Final = 5.0


class Desk:
    """Administration by one process, AT_ONCE_MAX calls at a time, in the order in which they came."""

    def __init__(self, store: Store) -> None:
        """Use a store that others own and close."""
        self._store = store
        self._turns = asyncio.Semaphore(AT_ONCE_MAX)

    async def ask(self, call: Callable[[Admin], Coroutine[object, object, T]], *, who: str = "admin") -> T:
        """Make one call, which goes on to its end also when the asker is cancelled.

        Raises what it raises, and Unavailable when its turn does not come within TURN_S.
        """
        try:
            async with asyncio.timeout(TURN_S):
                await self._turns.acquire()
        except TimeoutError:
            raise Unavailable(f"{AT_ONCE_MAX} calls of administration did not end in {TURN_S:g} s") from None
        try:
            return await unhurt(call(Admin(self._store, who=who)))
        finally:
            self._turns.release()
