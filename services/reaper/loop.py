"""Passes for ever: a jittered period while all is well, a bounded back-off while it is not."""

import asyncio
import contextlib
import random
from typing import Final, NoReturn

import structlog

from services.permits.clock import monotonic
from services.reaper.metrics import Metrics
from services.reaper.pulse import Pulse
from services.reaper.sweep import Sweep

JITTER: Final = 0.2
# Redis is looked for at least this often, so the reaper is back within seconds of its return.
PAUSE_AT_MOST_S: Final = 5.0


def pause_s(every_ms: int, failures: int) -> float:
    """Return how long to wait before the next pass, in seconds.

    The period, or after `failures` passes that failed in a row the period doubled as often, up to
    the cap; always with jitter, so that many reapers spread out by themselves.
    """
    period_s = every_ms / 1000
    if failures:
        period_s = min(period_s * 2 ** min(failures, 16), PAUSE_AT_MOST_S)
    return period_s * random.uniform(1 - JITTER, 1 + JITTER)


class Loop:
    """Sweeps until it is cancelled. Nothing that a pass raises ends it."""

    def __init__(
        self,
        sweep: Sweep,
        *,
        every_ms: int,
        pulse: Pulse,
        metrics: Metrics,
        log: structlog.typing.FilteringBoundLogger,
    ) -> None:
        """Build a loop that has not begun."""
        self._sweep = sweep
        self._every_ms = every_ms
        self._pulse = pulse
        self._metrics = metrics
        self._log = log
        self._failures = 0
        self._idle = asyncio.Event()

    async def run(self) -> NoReturn:
        """Pass, pause, pass."""
        while True:
            self._idle.clear()
            await self._pass()
            self._idle.set()
            await asyncio.sleep(pause_s(self._every_ms, self._failures))

    async def end(self, running: asyncio.Task[NoReturn], *, within_s: float) -> None:
        """Cancel `running`, the task of `run`, between two passes; mid-pass after `within_s`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._idle.wait()
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running

    async def _pass(self) -> None:
        self._pulse.beat()
        began_s = monotonic()
        try:
            await self._sweep.once()
        except Exception as error:  # noqa: BLE001  (an outage of any kind must not end the reaper)
            self._failed(error)
        else:
            self._passed(monotonic() - began_s)

    def _passed(self, seconds: float) -> None:
        if self._failures:
            self._log.info("recovered", failed_passes=self._failures)
        self._failures = 0
        self._pulse.succeeded()
        self._metrics.passed(seconds)

    def _failed(self, error: Exception) -> None:
        """Say it once per outage: a log line per attempt would bury the reclaims."""
        why = in_one_line(error)
        if not self._failures:
            self._log.error("pass failed, trying on", reason=why)
        self._failures += 1
        self._pulse.failed(why)
        self._metrics.failed()


def in_one_line(error: Exception) -> str:
    """Return what went wrong as one line; of a group, every member."""
    if isinstance(error, ExceptionGroup):
        return "; ".join(in_one_line(member) for member in error.exceptions)
    notes = ", ".join(getattr(error, "__notes__", ()))
    text = " ".join(str(error).split()) or type(error).__name__
    return f"{notes}: {text}" if notes else text
