"""Real processes of the product, started as an operator starts them, signalled and ended by pid."""

from __future__ import annotations

import atexit
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypedDict, Unpack

from tests.support.client import HungUpError, fetch
from tests.support.redis_server import free_port
from tests.support.sockets import LOOPBACK
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ROOT: Final = Path(__file__).resolve().parents[2]

# On a machine with two busy cores an interpreter with all imports needs seconds.
START_LIMIT_S: Final = 20.0
STOP_LIMIT_S: Final = 5.0

_running: set[Process] = set()


class How(TypedDict, total=False):
    """In what way a process differs from an ordinary one; see Process."""

    root: Path
    environment: Mapping[str, str] | None
    before: Sequence[str]


class Process:
    """One process of ours. Whoever starts it ends it with `end`; what is forgotten ends with the test run."""

    def __init__(
        self,
        folder: Path,
        name: str,
        *command: str,
        url: str = "",
        ready_path: str = "/readyz",
        root: Path = ROOT,
        environment: Mapping[str, str] | None = None,
        before: Sequence[str] = (),
    ) -> None:
        """Start `python command...` at once, its output going to `folder/name.log`.

        root         where the product is: this checkout, or an edition of it
        environment  laid over ours
        before       words before `python`: of a program that becomes it, as `nsenter` does
        """
        self.name = name
        self.url = url
        self.log_path = folder / f"{name}.log"
        self._ready_path = ready_path
        with self.log_path.open("ab") as log:
            self._popen = subprocess.Popen(
                [*before, sys.executable, *command],
                cwd=folder,
                env={**clean_environment(), "PYTHONPATH": str(root), **(environment or {})},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                # Ctrl-C in a terminal is for the tests, which then end us in order.
                start_new_session=True,
            )
        _running.add(self)

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def alive(self) -> bool:
        return self._popen.poll() is None

    async def ready(self, path: str | None = None, *, within_s: float = START_LIMIT_S) -> None:
        """Return when the process answers 200 on its health path; fail with its last words when it died."""
        await wait_until(
            lambda: self._answers(path or self._ready_path),
            f"{self.name} is ready; see {self.log_path}",
            within_s,
        )

    async def _answers(self, path: str) -> bool:
        if not self.alive:
            msg = f"{self.name} ended with {self._popen.returncode}: {self.log_text()[-2000:]}"
            raise AssertionError(msg)
        try:
            return (await fetch(self.url, path, patience_s=2.0)).status == 200
        except (OSError, HungUpError, TimeoutError):
            return False

    def signal(self, number: signal.Signals) -> None:
        """Send a signal; a process that has ended is left in peace (its pid may be another's)."""
        if self.alive:
            self._popen.send_signal(number)

    def kill9(self) -> None:
        """End it as a crash does, and reap the pid."""
        self.signal(signal.SIGKILL)
        self._popen.wait()

    def sigstop(self) -> None:
        self.signal(signal.SIGSTOP)

    def sigcont(self) -> None:
        self.signal(signal.SIGCONT)

    def sigterm(self) -> None:
        self.signal(signal.SIGTERM)

    async def wait(self, timeout_s: float = 10.0) -> int:
        """Return the exit status (negative: the signal) once it has ended, or fail after `timeout_s`."""
        await wait_until(lambda: not self.alive, f"{self.name} (pid {self.pid}) ends", timeout_s)
        return int(self._popen.returncode)

    def log_text(self) -> str:
        """Return everything it has written to stdout and stderr."""
        return self.log_path.read_text(errors="replace")

    def json_lines(self) -> list[dict[str, Any]]:
        """Return its log lines that are JSON objects, in order."""
        found = []
        for line in self.log_text().splitlines():
            if line.startswith("{"):
                try:
                    found.append(json.loads(line))
                except ValueError:
                    continue  # the last line may be half written
        return found

    def log_lines(self) -> list[dict[str, Any]]:
        """Return the records of requests that were admitted and have ended, each with its reason."""
        return [line for line in self.json_lines() if "request_id" in line and line.get("reason")]

    def refused_lines(self) -> list[dict[str, Any]]:
        """Return the records of requests that were refused, each with its code."""
        return [line for line in self.json_lines() if "request_id" in line and line.get("refused")]

    async def end(self) -> None:
        """Ask it to stop, kill it when it does not within STOP_LIMIT_S. Safe to repeat, also when stopped."""
        self.sigterm()
        self.sigcont()
        try:
            await self.wait(STOP_LIMIT_S)
        finally:
            self.kill9()
            _running.discard(self)


def gateway(
    folder: Path,
    config: Path,
    *,
    name: str = "g1",
    port: int | None = None,
    host: str = LOOPBACK,
    **how: Unpack[How],
) -> Process:
    """Start one replica on `port` (None: a free one)."""
    more = ("--host", host, "--name", name)
    return _with_port(folder, "services.gateway", config, name, port, *more, host=host, **how)


def reaper(folder: Path, config: Path, *, name: str = "reaper", port: int | None = None) -> Process:
    """Start one reaper, its health on `port` (None: a free one)."""
    return _with_port(folder, "services.reaper", config, name, port)


def simulated_engine(folder: Path, *options: str, name: str = "engine", port: int | None = None) -> Process:
    """Start the product's simulated engine with `options` of its command line."""
    port = port or free_port()
    command = ("-m", "services.engine", "--port", str(port), *options)
    return Process(folder, name, *command, url=f"http://127.0.0.1:{port}", ready_path="/health")


def _with_port(
    folder: Path,
    module: str,
    config: Path,
    name: str,
    port: int | None,
    *more: str,
    host: str = LOOPBACK,
    **how: Unpack[How],
) -> Process:
    port = port or free_port()
    command = ("-m", module, "--config", str(config), "--port", str(port), *more)
    return Process(folder, name, *command, url=f"http://{host}:{port}", **how)


def clean_environment() -> Mapping[str, str]:
    """Return our environment without settings of the product, which would reach past the config file."""
    handed_on = dict(os.environ)  # noqa: TID251
    ours = {name: value for name, value in handed_on.items() if not name.startswith("TENURE_")}
    return {**ours, "PYTHONUNBUFFERED": "1"}


@atexit.register
def _end_what_is_left() -> None:
    for process in list(_running):
        process.kill9()
