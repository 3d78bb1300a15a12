"""A person at a terminal: a program on a pty of a given size, its keys and its screen."""

from __future__ import annotations

import asyncio
import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
from typing import TYPE_CHECKING, Any, Self

from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_CONTROL = re.compile(rb"\x1b\[[0-9;?]*[a-zA-Z]")
_HOME = b"\x1b[H"
_READ_BYTES = 65536


def _take_terminal() -> None:
    # Only then do Ctrl-C, Ctrl-Z and a new size of the window become signals.
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


class Terminal:
    """Runs `python COMMAND...` on a terminal of its own until `close`; enter it in the test's event loop."""

    def __init__(
        self,
        folder: Path,
        *command: str,
        environ: Mapping[str, str],
        columns: int = 80,
        rows: int = 24,
    ) -> None:
        self._ours, self._its = pty.openpty()
        self.resize(columns, rows)
        self.mode_before = self.mode()
        self.output = bytearray()
        self._popen = subprocess.Popen(
            [sys.executable, *command],
            cwd=folder,
            # The window says how large it is; a runner of tests may have said something else for its own.
            env={
                **{name: value for name, value in environ.items() if name not in ("COLUMNS", "LINES")},
                "TERM": "xterm-256color",
            },
            stdin=self._its,
            stdout=self._its,
            stderr=self._its,
            start_new_session=True,
            preexec_fn=_take_terminal,  # noqa: PLW1509  (one system call; no thread of the tests holds a lock)
        )

    def __enter__(self) -> Self:
        asyncio.get_running_loop().add_reader(self._ours, self._read)
        return self

    def __exit__(self, *exc: object) -> None:
        self.hang_up()
        self._popen.kill()
        self._popen.wait()
        os.close(self._its)

    def hang_up(self) -> None:
        """Close the window, or lose the connection. Safe to repeat."""
        if self._ours >= 0:
            asyncio.get_running_loop().remove_reader(self._ours)
            os.close(self._ours)
            self._ours = -1

    def resize(self, columns: int, rows: int) -> None:
        """Give the window another size; the program hears of it when it has started."""
        fcntl.ioctl(self._its, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def signal(self, number: signal.Signals) -> None:
        """Send the program a signal."""
        self._popen.send_signal(number)

    def press(self, keys: str) -> None:
        """Type."""
        os.write(self._ours, keys.encode())

    def mode(self) -> list[Any]:
        """Return how the terminal treats keys."""
        return termios.tcgetattr(self._its)

    def screen(self) -> list[str]:
        """Return the lines of the newest frame that is complete."""
        frames = bytes(self.output).split(_HOME)
        # The last one may still be on its way: it is whole once it is as high as the one before.
        lines = [_CONTROL.sub(b"", each).decode(errors="replace").split("\r\n") for each in frames[-2:]]
        return lines[-1] if len(lines[-1]) >= len(lines[0]) else lines[0]

    def shows(self, text: str) -> bool:
        """Whether `text` is on the screen now."""
        return any(text in line for line in self.screen())

    async def until(self, text: str, within_s: float = 15) -> None:
        """Return when `text` is on the screen."""
        try:
            await wait_until(lambda: self.shows(text), f"{text!r} on the screen", within_s)
        except AssertionError as error:
            raise AssertionError("\n".join([str(error), *self.screen()])) from None

    async def ended(self, within_s: float = 10) -> int:
        """Return the exit status."""
        await wait_until(lambda: self._popen.poll() is not None, "the program ends", within_s)
        return int(self._popen.returncode)

    def _read(self) -> None:
        self.output += os.read(self._ours, _READ_BYTES)
