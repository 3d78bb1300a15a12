"""The two clocks of this process. Redis has its own, and neither of these ever reaches it."""

import time
from collections.abc import Callable
from functools import partial
from typing import Final

# A suspended host must not believe that its leases are fresh: CLOCK_BOOTTIME counts the sleep. Where there
# is none (macOS), the clock of time.monotonic counts it.
_CLOCK: Final[int] = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


# Seconds that only grow, suspended time included where the system can. For deadlines and durations. No
# function of ours around it: it is asked twenty times in a request, and once for each token.
monotonic: Final[Callable[[], float]] = partial(time.clock_gettime, _CLOCK)


def wall_ms() -> int:
    """Unix time in ms, for people who read logs; never used to decide anything."""
    return time.time_ns() // 1_000_000
