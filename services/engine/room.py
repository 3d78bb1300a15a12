"""Who computes: a number of slots, the page cache, those who wait for both, and one guard per request.

A request is admitted when a slot is free *and* the cache has room for its prompt and all tokens it may
generate, in order of arrival. So a running request never waits for a page, and nobody is overtaken.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from enum import StrEnum
from time import monotonic
from typing import TYPE_CHECKING, Self

from services.engine.errors import BadRequest, Gone

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType

    from services.engine.pages import Chain, PageCache


class End(StrEnum):
    """How a request ended; one of these, once."""

    COMPLETED = "completed"
    CANCELLED = "cancelled"  # the client left
    REFUSED = "refused"  # the request made no sense
    STOPPED = "stopped"  # the engine was told to stop
    FAILED = "failed"  # a defect of the engine


class Room:
    """The slots and pages that all requests share, and the counts of what happens here.

    Every method is synchronous: what it decides is done when it returns.
    """

    def __init__(
        self, cache: PageCache, slots: int, on_cancelled: Callable[[float], None] | None = None
    ) -> None:
        self.cache = cache
        self.slots = slots
        self.running = 0
        self.max_running = 0
        self.max_open = 0
        self.ends: Counter[End] = Counter()
        self.generated_tokens = 0
        self._on_cancelled = on_cancelled
        self._open: set[Guard] = set()
        self._waiting: OrderedDict[Guard, None] = OrderedDict()

    @property
    def open(self) -> int:
        """Requests received and not finished."""
        return len(self._open)

    @property
    def queued(self) -> int:
        return len(self._waiting)

    @property
    def leaked_pages(self) -> int:
        """Pages that no live request accounts for; 0 unless the engine has a defect."""
        return self.cache.leaked(guard.chain for guard in self._open if guard.chain)

    def guard(self) -> Guard:
        """Count a request as received. The guard owns all that it is given from here on."""
        guard = Guard(self)
        self._open.add(guard)
        self.max_open = max(self.max_open, len(self._open))
        return guard

    def join(self, guard: Guard) -> None:
        """Put a guard in line; it may be admitted before this returns."""
        self._waiting[guard] = None
        self._admit()

    def leave(self, guard: Guard, end: End, cancel_s: float | None) -> None:
        """Take back what a guard owns and admit those who can use it. Called by the guard, once."""
        self._open.remove(guard)
        self._waiting.pop(guard, None)
        if guard.chain:
            guard.chain.close()
            self.running -= 1
        self.ends[end] += 1
        if cancel_s is not None and self._on_cancelled:
            self._on_cancelled(cancel_s)
        self._admit()

    def zero_maxima(self) -> None:
        """Begin the maxima anew, from what is there now."""
        self.max_open = len(self._open)
        self.max_running = self.running

    def _admit(self) -> None:
        while self._waiting and self.running < self.slots:
            guard = next(iter(self._waiting))
            chain = self.cache.open(guard.prompt, guard.more_tokens)
            if chain is None:
                return  # the first in line waits for pages; letting others pass would starve long prompts
            del self._waiting[guard]
            self.running += 1
            self.max_running = max(self.max_running, self.running)
            guard.grant(chain)


class Guard:
    """The one owner of a request's place in line, its slot and its pages.

    A context manager. Whatever ends the block, all is given back once, before the block is left; closing
    earlier or again is allowed. `Gone` is raised inside the block when the client has left, at the next place
    where it is looked at.
    """

    __slots__ = ("_closed", "_granted", "_room", "chain", "gone_at_s", "more_tokens", "prompt")

    def __init__(self, room: Room) -> None:
        self._room = room
        self._closed = False
        self._granted: asyncio.Future[None] | None = None
        self.chain: Chain | None = None
        self.prompt: Sequence[str] = ()
        self.more_tokens = 0
        self.gone_at_s: float | None = None

    async def admitted(self, prompt: Sequence[str], more_tokens: int) -> None:
        """Wait in line for a slot and for pages. Raises Gone at once when the client leaves meanwhile."""
        self.check()
        self.prompt, self.more_tokens = prompt, more_tokens
        self._room.join(self)
        if self.chain is None:
            self._granted = asyncio.get_running_loop().create_future()
            await self._granted
            self.check()

    @property
    def pages(self) -> Chain:
        """The pages of an admitted request."""
        if self.chain is None:
            raise AssertionError("pages are used before the request was admitted")
        return self.chain

    def grant(self, chain: Chain) -> None:
        """Take the ownership of a chain, and of a slot with it. Called by the room."""
        self.chain = chain
        self._wake()

    def client_left(self) -> None:
        """Note that the client is gone: one who waits wakes, one who computes sees it at the next step."""
        if self.gone_at_s is None and not self._closed:
            self.gone_at_s = monotonic()
            self._wake()

    def check(self) -> None:
        """Raise Gone when the client has left. Called between tokens and between the chunks of a prefill."""
        if self.gone_at_s is not None:
            raise Gone

    def count_token(self) -> None:
        self._room.generated_tokens += 1

    def close(self, end: End) -> None:
        """Give everything back, once; the first end counts."""
        if self._closed:
            return
        self._closed = True
        cancel_s = None if self.gone_at_s is None else monotonic() - self.gone_at_s
        self._room.leave(self, end, cancel_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(_end_of(error))

    def _wake(self) -> None:
        if self._granted and not self._granted.done():
            self._granted.set_result(None)


def _end_of(error: BaseException | None) -> End:
    match error:
        case None:
            return End.COMPLETED
        case Gone():
            return End.CANCELLED
        case BadRequest():
            return End.REFUSED
        case asyncio.CancelledError():
            return End.STOPPED
        case _:
            return End.FAILED
