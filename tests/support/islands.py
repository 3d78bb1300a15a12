"""Network namespaces: a machine of its own for one process, on cables that a test can pull.

    hub, where the test itself is                 island, where one process is
    10.77.1.1 ----------- to Redis ----------- 10.77.1.2
    10.77.2.1 ------- to everything else ----- 10.77.2.2

Both are made by `islanded` and belong to nobody else; the kernel takes them away with the last process that
is in them.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from tests.support.waiting import wait_until_sync

if TYPE_CHECKING:
    from collections.abc import Iterator

_CLONE_NEWNET: Final = 0x40000000
_TOOLS: Final = {"ip": "iproute2", "iptables": "iptables", "nsenter": "util-linux", "unshare": "util-linux"}
# The names of the cables are those of their ends, in either namespace.
_REDIS_CABLE: Final = "redis"
_OTHER_CABLE: Final = "other"


class Island:
    """The other end of two cables. Addresses are those of the side that is named."""

    redis_side: Final = "10.77.1.1"
    redis_address: Final = "10.77.1.2"
    hub_side: Final = "10.77.2.1"
    address: Final = "10.77.2.2"

    def __init__(self, keeper_pid: int) -> None:
        """Belong to the namespace of that process."""
        # What goes before a command that is to run there; the process keeps its pid.
        self.before: Final = ("nsenter", f"--net=/proc/{keeper_pid}/ns/net")

    def pull_the_cable(self) -> None:
        """Cut the way to Redis: from now on nothing goes through, in either direction."""
        _run("ip", "link", "set", _REDIS_CABLE, "down")

    def lose_what_is_asked(self) -> None:
        """Let nothing through to Redis. What Redis says still arrives."""
        _run("iptables", "-A", "INPUT", "-i", _REDIS_CABLE, "-j", "DROP")

    def lose_what_is_answered(self) -> None:
        """Let nothing through from Redis. What it is asked still arrives, and is done."""
        _run(*self.before, "iptables", "-A", "INPUT", "-i", _REDIS_CABLE, "-j", "DROP")

    def heal(self) -> None:
        """Let everything through again."""
        _run("ip", "link", "set", _REDIS_CABLE, "up")
        for before in ((), self.before):
            _run(*before, "iptables", "-F", "INPUT")


@contextmanager
def islanded() -> Iterator[Island]:
    """Put the calling thread, and whatever it starts, into a hub with a cabled island, while the block runs.

    Event loops and sockets that were open before stay where they were. Skips the test where the machine
    lacks a tool or does not let us.
    """
    if missing := [package for tool, package in _TOOLS.items() if shutil.which(tool) is None]:
        pytest.skip(f"needs {', '.join(sorted(set(missing)))}, for network namespaces")
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    if _libc().unshare(_CLONE_NEWNET):
        os.close(home)
        pytest.skip("this machine lets us make no network namespace: that takes CAP_SYS_ADMIN")
    try:
        keeper = subprocess.Popen(["unshare", "--net", "sleep", "infinity"])
        try:
            _lay_cables(keeper.pid)
            yield Island(keeper.pid)
        finally:
            keeper.kill()
            keeper.wait()
    finally:
        left = _libc().setns(home, _CLONE_NEWNET)
        os.close(home)
        assert left == 0, f"the way back to our own network is lost: {os.strerror(ctypes.get_errno())}"


def _lay_cables(keeper_pid: int) -> None:
    ours, there = Path("/proc/thread-self/ns/net").readlink(), Path(f"/proc/{keeper_pid}/ns/net")
    wait_until_sync(lambda: there.readlink() != ours, "the island is a namespace of its own")
    inside = Island(keeper_pid).before
    for before in ((), inside):
        _run(*before, "ip", "link", "set", "lo", "up")
    for cable, net in ((_REDIS_CABLE, 1), (_OTHER_CABLE, 2)):
        _run("ip", "link", "add", cable, "type", "veth", "peer", "name", cable, "netns", str(keeper_pid))
        for before, end in (((), 1), (inside, 2)):
            _run(*before, "ip", "address", "add", f"10.77.{net}.{end}/30", "dev", cable)
            _run(*before, "ip", "link", "set", cable, "up")
    # Whether packets can be dropped there, before anything depends on it.
    for before in ((), inside):
        done = subprocess.run(
            [*before, "iptables", "-F", "INPUT"], capture_output=True, text=True, check=False
        )
        if done.returncode:
            pytest.skip(f"this kernel drops no packets for us: {done.stderr.strip()}")


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _say(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False)


def _run(*command: str) -> None:
    done = _say(*command)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr.strip()}"
