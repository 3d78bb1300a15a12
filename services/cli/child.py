"""One process that `tenure up` started: its log, its restarts, its end."""

import asyncio
import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from services.cli.place import shown
from services.permits.clock import monotonic

FIRST_PAUSE_S: Final = 0.2
PAUSE_AT_MOST_S: Final = 5.0
# A process that ran this long is taken to be well: its next restart is quick again.
SETTLED_AFTER_S: Final = 30.0
_LOG_TAIL_BYTES: Final = 4096
_PR_SET_PDEATHSIG: Final = 1

Say = Callable[[str], None]


class Child:
    """Owns one process, also over restarts: `start`, `watch`, `end`.

    The process has a session of its own, so that Ctrl-C in the terminal reaches only `up`, which
    stops the parts in order; on Linux it dies with `up` even when `up` is killed.
    """

    def __init__(
        self, name: str, command: Sequence[str], *, log: Path, environ: Mapping[str, str], say: Say
    ) -> None:
        """Describe the process; nothing is started yet."""
        self.name = name
        self.log = log
        self._command = command
        self._environ = environ
        self._say = say
        self._process: asyncio.subprocess.Process | None = None
        self._ending = False
        self._started_s = 0.0

    @property
    def pid(self) -> int:
        """The process id of the current incarnation; 0 when none was started."""
        return self._process.pid if self._process else 0

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._process is not None and self._process.returncode is None

    async def start(self) -> None:
        """Start the process, its output going to its log. Raises OSError."""
        with self.log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=dict(self._environ),
                start_new_session=True,
                preexec_fn=_die_with(os.getpid()),
            )
        self._started_s = monotonic()

    async def watch(self) -> None:
        """Start the process again whenever it dies, until `end` or cancellation."""
        pause_s = FIRST_PAUSE_S
        while True:
            await self._over()
            if self._ending:
                return
            if monotonic() - self._started_s > SETTLED_AFTER_S:
                pause_s = FIRST_PAUSE_S
            self._say(
                f"{self.name} (pid {self.pid}) {self.how_it_ended()}; starting it again in {pause_s:g} s"
            )
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, PAUSE_AT_MOST_S)
            try:
                await self.start()
            except OSError as error:
                self._say(f"{self.name} could not be started: {error.strerror}")
            else:
                self._say(f"{self.name} runs again as pid {self.pid}; its log is {shown(self.log)}")

    def signal(self, number: signal.Signals) -> None:
        """Send a signal and expect the end: `watch` does not start this process again."""
        self._ending = True
        if self._process is not None and self.alive:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    async def end(self, *, within_s: float) -> None:
        """Ask the process to stop, and kill it when it has not within `within_s`."""
        self.signal(signal.SIGTERM)
        if not await self.over(within_s=within_s):
            self._say(f"{self.name} (pid {self.pid}) did not stop within {within_s:g} s and is killed")
            self.signal(signal.SIGKILL)
            await self._over()

    async def over(self, *, within_s: float) -> bool:
        """Wait for the end of the process; say whether it came in time."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._over()
        return not self.alive

    def how_it_ended(self) -> str:
        """Return the end in words: the signal's name or the exit code."""
        code = self._process.returncode if self._process else None
        if code is None:
            return "runs"
        if code < 0:
            return f"was ended by {signal.Signals(-code).name}"
        return f"ended with exit code {code}"

    def last_words(self) -> str:
        """Return the last line of the log, where a process says why it stopped."""
        with contextlib.suppress(OSError), self.log.open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - _LOG_TAIL_BYTES))
            lines = log.read().decode(errors="replace").strip().splitlines()
            return lines[-1] if lines else ""
        return ""

    async def _over(self) -> None:
        if self._process is not None:
            await self._process.wait()


def _die_with(parent: int) -> Callable[[], None] | None:
    """Return what a new process must do first so that it never outlives `parent`; None off Linux."""
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None, use_errno=True).prctl

    def arrange() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        # The parent may have died between the fork and the line above.
        if os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGKILL)

    return arrange
