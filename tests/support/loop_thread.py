"""An event loop in its own thread, for instruments that must go on when the test's loop is blocked."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Self, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

T = TypeVar("T")

# An instrument answers at once or is broken: a hang here would otherwise look like a hang of the product.
CALL_LIMIT_S = 10.0


class LoopThread:
    """Owns one thread and one event loop; `stop` cancels what still runs there and joins the thread."""

    def __init__(self, name: str) -> None:
        """Prepare the thread; nothing runs before `start`."""
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @property
    def running(self) -> bool:
        """Say whether calls are answered."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Start the thread; calls may follow at once."""
        self._thread.start()

    def call(self, work: Coroutine[object, object, T]) -> T:
        """Run `work` in the loop and return its result; blocks the calling thread meanwhile."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(CALL_LIMIT_S)

    def do(self, act: Callable[[], T]) -> T:
        """Run a plain function in the loop's thread and return its result."""

        async def once() -> T:
            return act()

        return self.call(once())

    def stop(self) -> None:
        """Cancel every task of the loop, wait for them, end the thread. Safe to call twice."""
        if not self._thread.is_alive():
            return
        self.call(self._cancel_all())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(CALL_LIMIT_S)

    async def _cancel_all(self) -> None:
        # A connection that was just accepted is closed by its task, which must begin before it is cancelled.
        await asyncio.sleep(0)
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
            # Transports that were closed in the last round finish their callbacks here.
            self.loop.run_until_complete(asyncio.sleep(0))
        finally:
            self.loop.close()


class Instrument:
    """Something with a thread of its own, for `with` and `async with` alike."""

    def start(self) -> None:
        """Begin; done by each instrument in its own way."""

    def stop(self) -> None:
        """End, and leave nothing behind."""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        # In a thread: the test's loop goes on while connections are torn down.
        await asyncio.to_thread(self.stop)
