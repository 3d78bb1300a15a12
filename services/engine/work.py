"""The computing itself: prefill in chunks, then one token after the other, each at its time.

Cancellation is looked at between the chunks of a prefill and between tokens, as a real engine does between
two forward passes: a request whose client left computes on for at most one chunk or one token.
"""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import TYPE_CHECKING

from services.engine.tokens import Speech

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from services.engine.options import EngineOptions
    from services.engine.room import Guard

# A chunk is whole pages: at most so many, and not longer than so many seconds unless one page takes longer.
CHUNK_PAGES = 8
CHUNK_S = 0.02


class Pace:
    """Waits whose ends do not drift: each is counted from when the one before was due, not from when it woke.

    One that comes too late by more than its own length starts anew: an engine without enough CPU is slow, it
    does not catch up in bursts.
    """

    __slots__ = ("_due_s",)

    def __init__(self) -> None:
        self._due_s = monotonic()

    async def wait(self, seconds: float) -> None:
        """Return when the next step is due; at least one turn of the loop later, so a hang-up can be seen."""
        now_s = monotonic()
        due_s = self._due_s + seconds
        if due_s > now_s:
            self._due_s = due_s
            await asyncio.sleep(due_s - now_s)
        else:
            self._due_s = now_s
            await asyncio.sleep(0)


async def prefill(
    guard: Guard, options: EngineOptions, pace: Pace, on_chunk: Callable[[int], Awaitable[None]] | None = None
) -> None:
    """Compute the part of the prompt that is not cached. `on_chunk` hears how many prompt tokens are done.

    Raises Gone when the client has left. Pages computed until then stay known: the next such prompt begins
    there.
    """
    chain = guard.pages
    token_s = options.prefill_ms / 1000
    page_s = token_s * options.page_tokens
    pages = max(1, min(CHUNK_PAGES, int(CHUNK_S / page_s))) if page_s else CHUNK_PAGES
    step = pages * options.page_tokens
    for start in range(chain.cached_tokens, len(guard.prompt), step):
        chunk = guard.prompt[start : start + step]
        await pace.wait(len(chunk) * token_s)
        guard.check()
        chain.append(chunk)
        if on_chunk:
            await on_chunk(start + len(chunk))


async def decode(
    guard: Guard, options: EngineOptions, pace: Pace, say: Callable[[str], Awaitable[None]]
) -> None:
    """Generate the guard's `more_tokens` tokens and `say` each. The first follows the prefill without a gap.

    `say` may block: a client that does not read stops its own generation. Raises Gone when the client has
    left.
    """
    chain = guard.pages
    speech = Speech(guard.prompt)
    gap_s = options.token_ms / 1000
    for number in range(guard.more_tokens):
        if number:
            await pace.wait(gap_s)
        guard.check()
        word = speech.word(first=not number)
        chain.append((word,))
        guard.count_token()
        await say(word)
