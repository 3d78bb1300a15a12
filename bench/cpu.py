"""CPU time of processes, as the kernel accounts it."""

import os
from pathlib import Path
from typing import Final

_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")


def cpu_s(pid: int) -> float:
    """Return the user and system seconds that a process and its finished and living children used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    own = sum(map(int, fields[11:15])) / _TICKS_PER_S
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return own + sum(cpu_s(int(child)) for child in children)


def main_thread_us(pid: int) -> float:
    """Return the microseconds that a process's main thread has run: where Redis runs all commands."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e3
