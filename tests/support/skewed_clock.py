"""A wall clock that a test can step and stop, for one process or several that it starts."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from collections.abc import Mapping

_SOURCE: Final = Path(__file__).with_suffix(".c")
_NS: Final = 1_000_000_000


class SkewedClock:
    """What a process sees that was started with `environment`: real time until the test says otherwise."""

    def __init__(self, folder: Path) -> None:
        """Build what the processes load; skips the test where there is no C compiler, or no LD_PRELOAD."""
        compiler = shutil.which("cc")
        if compiler is None or os.uname().sysname != "Linux":
            assert "CI" not in os.environ, "CI needs a C compiler: apt-get install gcc libc6-dev"  # noqa: TID251
            pytest.skip("needs a C compiler on Linux, to give one process a clock of its own")
        folder.mkdir(parents=True, exist_ok=True)
        library = folder / "skewed_clock.so"
        subprocess.run([compiler, "-shared", "-fPIC", "-O2", "-o", library, _SOURCE], check=True)
        self._file = folder / "skew"
        self._set(0, 0)
        self.environment: Mapping[str, str] = {"LD_PRELOAD": str(library), "SKEWED_CLOCK": str(self._file)}

    def shift(self, seconds: float) -> None:
        """Show real time plus `seconds` from now on."""
        self._set(int(seconds * _NS), 0)

    def freeze(self) -> None:
        """Stand still at this instant, until `shift`."""
        self._set(0, time.time_ns())

    def _set(self, offset_ns: int, frozen_ns: int) -> None:
        # In place: the processes have mapped the file.
        with self._file.open("r+b" if self._file.exists() else "wb") as file:
            file.write(struct.pack("qq", offset_ns, frozen_ns))
