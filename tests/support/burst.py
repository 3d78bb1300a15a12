"""Many requests in the same instant, over several gateways: what a limit must hold against."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from tests.support.client import Call, chat_body, request_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


@dataclass(frozen=True)
class Outcome:
    """How one request of a burst was answered; `code` is None unless it was refused with an error body."""

    status: int
    code: str | None
    headers: dict[str, str]


@dataclass
class Burst:
    """What came of it. Calls that got 200 stay open, unread beyond their headers, till `end` or `drain`."""

    outcomes: list[Outcome]
    held: list[Call]
    span_s: float

    @property
    def statuses(self) -> Counter[int]:
        """Return how many replies had each status."""
        return Counter(outcome.status for outcome in self.outcomes)

    @property
    def codes(self) -> Counter[str]:
        """Return how many refusals had each code."""
        return Counter(outcome.code for outcome in self.outcomes if outcome.code is not None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.end()

    def end(self) -> None:
        """Leave every held stream with RST."""
        for call in self.held:
            call.reset()
        self.held.clear()

    async def drain(self) -> list[bytes]:
        """Read every held stream to its end, close, and return the bodies."""
        try:
            return list(await asyncio.gather(*(call.rest() for call in self.held)))
        finally:
            self.end()


async def burst(
    count: int,
    urls: Sequence[str],
    *,
    key: str | Sequence[str],
    body: Mapping[str, Any] | Callable[[int], Mapping[str, Any]] | None = None,
    path: str = "/v1/chat/completions",
    during: AbstractContextManager[None] | None = None,
) -> Burst:
    """Send `count` requests in the same instant and await all their heads.

    They go round robin over `urls`, and over `key` when there are several.
    Every request but its last byte is sent before the first of the last bytes goes out, so that they all
    become complete within `span_s`, a few milliseconds for hundreds. On failure nothing stays open.
    `during` is entered while the last bytes go out: with the gateways frozen there, none of them takes the
    processor from the sender.
    """
    keys = [key] if isinstance(key, str) else list(key)
    calls: list[Call] = []
    last_bytes: list[bytes] = []
    try:
        for number in range(count):
            url = urls[number % len(urls)]
            call = await Call.connect(url)
            calls.append(call)
            content = body(number) if callable(body) else body or chat_body()
            whole = request_bytes(url, path=path, key=keys[number % len(keys)], body=content)
            await call.send(whole[:-1])
            last_bytes.append(whole[-1:])
        with during or nullcontext():
            started = time.monotonic()
            for call, last_byte in zip(calls, last_bytes, strict=True):
                call.sock.send(last_byte)
                call.sent_at = time.monotonic()
            span_s = time.monotonic() - started
        outcomes = await asyncio.gather(*(_outcome(call) for call in calls))
    except BaseException:
        for call in calls:
            call.reset()
        raise
    return Burst(list(outcomes), [call for call in calls if call.status == 200], span_s)


async def _outcome(call: Call) -> Outcome:
    status = await call.head()
    if status == 200:
        return Outcome(status, None, call.headers)
    code = await call.error_code()
    call.reset()
    return Outcome(status, code, call.headers)
