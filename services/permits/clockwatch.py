"""Notices a lease clock that stands still or races, by this machine's monotonic clock."""

from typing import Final

WINDOW_S: Final = 10.0
# A clock that is stepped moves by two ticks at the most; what is outside is a clock that runs wrong.
SLOWEST, FASTEST = 0.5, 1.5


class ClockWatch:
    """Fed with each tick that one fleet acknowledged."""

    def __init__(self, *, gap_s: float) -> None:
        """After a gap of more than `gap_s` between ticks the lease clock has been held back, as it should."""
        self._gap_s = gap_s
        self._epoch = ""
        self._began_s = self._last_s = 0.0
        self._began_ms = 0
        self.is_off = False

    def look(self, at_s: float, clock_ms: int, epoch: str) -> float | None:
        """Take a reading at `at_s`, monotonic; return the rate when it turned wrong, or right again."""
        whole = epoch == self._epoch and at_s - self._last_s <= self._gap_s
        self._last_s = at_s
        passed_s = at_s - self._began_s
        if whole and passed_s < WINDOW_S:
            return None
        rate = (clock_ms - self._began_ms) / 1000 / passed_s if whole else 1.0
        self._epoch, self._began_s, self._began_ms = epoch, at_s, clock_ms
        was_off, self.is_off = self.is_off, self.is_off if not whole else not SLOWEST <= rate <= FASTEST
        return rate if self.is_off != was_off else None
