"""CPU time and memory of processes, as the kernel accounts them, and which cores they run on."""

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

# A process's CPU clock has its id in it (clock_getcpuclockid of glibc): nanoseconds, all of its threads, also
# those that have ended, where /proc/PID/stat has hundredths of a second.
_CPUCLOCK_SCHED: Final = 2
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


def tree(pid: int) -> Iterator[int]:
    """Yield a process and its living descendants."""
    yield pid
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError):
            for child in (thread / "children").read_text().split():
                yield from tree(int(child))


def cpu_s(pid: int) -> float:
    """Return the seconds of CPU that a process and its living descendants have used, all threads."""
    return sum(time.clock_gettime(~one << 3 | _CPUCLOCK_SCHED) for one in tree(pid))


def is_running(pid: int) -> bool:
    """Return whether a process has not ended, whether or not its parent has noticed."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] not in "ZX"


def main_thread_us(pid: int) -> float:
    """Return the microseconds that a process's main thread has run: where Redis runs all commands."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e3


def resident_bytes(pid: int) -> int:
    """Return the resident memory of a process and its living descendants."""
    return sum(int(Path(f"/proc/{one}/statm").read_text().split()[1]) for one in tree(pid)) * _PAGE_BYTES


def keep_apart(pid: int) -> None:
    """Give a process and its descendants a core of their own, where there are two; see `leave_a_core`."""
    cores = sorted(os.sched_getaffinity(1))
    if len(cores) > 1:
        for one in tree(pid):
            for thread in Path(f"/proc/{one}/task").iterdir():
                with contextlib.suppress(ProcessLookupError):
                    os.sched_setaffinity(int(thread.name), cores[-1:])


def leave_a_core() -> None:
    """Keep this process, and all that it starts from now on, off the core of what is measured."""
    cores = sorted(os.sched_getaffinity(1))
    if len(cores) > 1:
        os.sched_setaffinity(0, cores[:-1])
