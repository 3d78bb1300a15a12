"""The two clocks of this process. Redis has its own, and neither of these ever reaches it."""

import time
from typing import Final

# A suspended host must not believe that its leases are fresh: CLOCK_BOOTTIME counts the sleep. Where there
# is none (macOS), the clock of time.monotonic counts it.
_CLOCK: Final[int] = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def monotonic() -> float:
    """Seconds that only grow, suspended time included where the system can. For deadlines and durations."""
    return time.clock_gettime(_CLOCK)


def wall_ms() -> int:
    """Unix time in ms, for people who read logs; never used to decide anything."""
    return time.time_ns() // 1_000_000
