"""When the loop last turned and when a pass last succeeded, on this process's own clock."""

import math
from collections.abc import Callable
from typing import Final

from services.permits.clock import monotonic

# A pass is bounded by Redis timeouts and the pause by its cap; a loop silent for longer is stuck.
SILENT_AT_MOST_S: Final = 60.0
# So many periods may pass without a success before others are told not to count on this reaper.
PERIODS_TO_MISS: Final = 3
GRACE_S: Final = 2.0


class Pulse:
    """Written by the loop, read by the health port; same thread."""

    def __init__(self, *, every_ms: int, now: Callable[[], float] = monotonic) -> None:
        """Begin alive and not yet ready."""
        self._now = now
        self._patience_s = every_ms / 1000 * PERIODS_TO_MISS + GRACE_S
        self._beat_s = now()
        self._success_s = -math.inf
        self._failure = "no pass has finished yet"

    def beat(self) -> None:
        """The loop turned."""
        self._beat_s = self._now()

    def succeeded(self) -> None:
        """A pass reached its end."""
        self._success_s = self._now()
        self._failure = ""

    def failed(self, why: str) -> None:
        """A pass did not."""
        self._failure = why

    def last_pass_age_s(self) -> float:
        """Return the seconds since a pass last succeeded; infinite before the first."""
        return self._now() - self._success_s

    def alive(self) -> tuple[bool, str]:
        """Say whether the loop still turns."""
        silent_s = self._now() - self._beat_s
        return silent_s < SILENT_AT_MOST_S, f"the loop turned {silent_s:.1f} s ago"

    def ready(self) -> tuple[bool, str]:
        """Say whether passes succeed: one did within the last few periods."""
        age_s = self.last_pass_age_s()
        if age_s <= self._patience_s:
            return True, f"a pass succeeded {age_s:.1f} s ago"
        return False, self._failure or f"the last pass was {age_s:.1f} s ago"
