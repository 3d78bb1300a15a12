"""How a process is told to stop."""

import asyncio
import contextlib
import signal
from collections.abc import Callable, Iterator
from typing import Final

STOPPING: Final = (signal.SIGTERM, signal.SIGINT)


@contextlib.contextmanager
def stop_signals(told: Callable[[int], None]) -> Iterator[None]:
    """Call `told` with each stopping signal, in the running event loop; those after the block are ignored.

    For the main thread of an entry point that ends soon after the block. An event loop gives signals back to
    the kernel when it closes: one that came between the end of the work and that of the process would kill
    it, and a clean end would look like a crash.
    """
    loop = asyncio.get_running_loop()

    def receive(number: int, _frame: object) -> None:
        loop.call_soon_threadsafe(told, number)

    for number in STOPPING:
        signal.signal(number, receive)
    try:
        yield
    finally:
        for number in STOPPING:
            signal.signal(number, signal.SIG_IGN)
