"""Runs a Promela model: spin makes a checker in C of it, which looks at every state that can be reached."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

TOOLS: Final = ("spin", "gcc")
# States are remembered by 64 bits of their hash: of ten million, one is overlooked with a chance of one in
# 400 000. With whole states the same search needs several times the memory.
_SAFETY: Final = ("-DSAFETY", "-DHC4")
# For a promise about what happens at last: acceptance cycles, each process acts that can always act.
_LIVENESS: Final = ("-DHC4", "-DNFAIR=5")
_MEMORY_MIB: Final = 1000
_DEPTH_MAX: Final = 100_000


@dataclass(frozen=True)
class Explored:
    """What the checker did. `error` is the promise that it saw broken, or empty."""

    error: str
    states: int
    depth: int
    seconds: float

    def __str__(self) -> str:
        """Return one row of a table."""
        return f"{self.states:>10,} states, depth {self.depth:>4}, {self.seconds:>5.1f} s  {self.error[:60]}"


def missing_tools() -> list[str]:
    """Return what has to be installed first."""
    return [tool for tool in TOOLS if shutil.which(tool) is None]


def explore(model: Path, options: Sequence[str], folder: Path, *, liveness: bool = False) -> Explored:
    """Look at all states of `model` with these `-D` options, to the first error; `folder` takes the files."""
    subprocess.run(["spin", "-a", *options, str(model)], cwd=folder, check=True, capture_output=True)
    how = _LIVENESS if liveness else _SAFETY
    flags = [*how, f"-DMEMLIM={_MEMORY_MIB}", "-O1", "-w"]
    subprocess.run(["gcc", *flags, "-o", "pan", "pan.c"], cwd=folder, check=True, capture_output=True)
    search = ["./pan", "-n", f"-m{_DEPTH_MAX}", *(["-a", "-f"] if liveness else [])]
    said = subprocess.run(search, cwd=folder, check=False, capture_output=True, text=True).stdout
    return read(said)


def read(said: str) -> Explored:
    """Read what a checker printed; fails when it did not finish, or could not look at everything."""
    assert "errors:" in said, f"the checker stopped early: {said[-600:]}"
    for limit in ("max search depth too small", "reached -DMEMLIM", "out of memory"):
        assert limit not in said, f"not everything was looked at: {limit}"
    error = re.search(r"^pan:\d+: (.*) \(at depth", said, re.MULTILINE)
    return Explored(
        error=error.group(1) if error else "",
        states=int(_number(r"(\d+(?:e\+\d+)?) states, stored", said)),
        depth=int(_number(r"depth reached (\d+)", said)),
        seconds=_number(r"elapsed time ([\d.e+-]+) seconds", said),
    )


def _number(pattern: str, text: str) -> float:
    found = re.search(pattern, text)
    assert found is not None, f"{pattern} is not in {text[-600:]}"
    return float(found.group(1))
