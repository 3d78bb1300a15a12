"""Waiting on conditions instead of sleeping: a test goes on as soon as what it waits for is true."""

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable

POLL_S = 0.01


async def wait_until(
    predicate: Callable[[], object | Awaitable[object]], description: str, timeout_s: float = 5
) -> None:
    """Return as soon as `predicate` (plain or async) is true.

    An exception in `predicate` is raised at once. Fails with `description` and the last value seen
    after `timeout_s`. May be cancelled at any time.
    """
    deadline_s = time.monotonic() + timeout_s
    while True:
        value = predicate()
        if inspect.isawaitable(value):
            value = await value
        if value:
            return
        if time.monotonic() > deadline_s:
            raise AssertionError(f"not within {timeout_s} s: {description} (last seen: {value!r})")
        await asyncio.sleep(POLL_S)


def wait_until_sync(predicate: Callable[[], object], description: str, timeout_s: float = 5) -> None:
    """Do as `wait_until`, for tests and fixtures without an event loop."""
    deadline_s = time.monotonic() + timeout_s
    while not (value := predicate()):
        if time.monotonic() > deadline_s:
            raise AssertionError(f"not within {timeout_s} s: {description} (last seen: {value!r})")
        time.sleep(POLL_S)
