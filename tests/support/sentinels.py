"""A primary with replicas, and Sentinels that promote one of them: real processes, ended by pid."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

import redis

from tests.support.redis_server import RedisServer, free_port, server_binary
from tests.support.waiting import wait_until_sync

if TYPE_CHECKING:
    from types import TracebackType

    from tests.support.certificates import Certificates

SERVICE: Final = "mymaster"
SENTINELS: Final = 3
# Long enough that a busy machine is not taken for a dead server.
DOWN_AFTER_MS: Final = 1000
START_S: Final = 30


class Sentinels:
    """One primary, `replicas` replicas and three Sentinels, from `with` to the end of its block.

    password            of the servers; `sentinel_password` that of the Sentinels
    certificates        everybody speaks TLS and nothing else
    """

    def __init__(
        self,
        *,
        replicas: int = 1,
        password: str = "",
        sentinel_password: str = "",
        certificates: Certificates | None = None,
    ) -> None:
        # Not pytest's tmp_path: a unix socket's path may not be longer than about 100 bytes.
        self._folder = Path(tempfile.mkdtemp(prefix="tenure-sentinel-"))
        self._password = password
        self._sentinel_password = sentinel_password
        self._certificates = certificates
        first = self._server("s0")
        followers = [
            self._server(f"s{n + 1}", "--replicaof", "127.0.0.1", str(first.port)) for n in range(replicas)
        ]
        self.servers = [first, *followers]
        self.ports = [free_port() for _ in range(SENTINELS)]
        self._sentinels: list[subprocess.Popen[bytes]] = []

    @property
    def url(self) -> str:
        """Return the address for `redis.url`."""
        login = f":{self._password}@" if self._password else ""
        more = [f"sentinel_password={self._sentinel_password}"] if self._sentinel_password else []
        more += [f"ssl_ca_certs={self._certificates.ca}"] if self._certificates else []
        hosts = ",".join(f"127.0.0.1:{port}" for port in self.ports)
        scheme = "rediss" if self._certificates else "redis"
        return f"{scheme}+sentinel://{login}{hosts}/{SERVICE}/0?{'&'.join(more)}"

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def primary_port(self) -> int:
        """Return the port of the primary that a majority of the Sentinels names; 0: they differ."""
        named = [self.ask(n, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE)[1] for n in range(SENTINELS)]
        return next((int(port) for port in named if 2 * named.count(port) > SENTINELS), 0)

    def primary(self) -> RedisServer:
        """Return the server that the Sentinels call the primary."""
        port = self.primary_port()
        return next(server for server in self.servers if server.port == port)

    def ask(self, number: int, *command: str) -> Any:
        """Send a command to one Sentinel."""
        with redis.Redis(
            port=self.ports[number],
            password=self._sentinel_password or None,
            ssl=self._certificates is not None,
            ssl_cert_reqs="none",
            decode_responses=True,
        ) as client:
            return client.execute_command(*command)

    def stop_sentinel(self, number: int) -> None:
        """End one Sentinel at once."""
        self._sentinels[number].kill()
        self._sentinels[number].wait()

    def in_step(self) -> bool:
        """Whether every server but the primary follows it, and every Sentinel knows the others."""
        primary = self.primary_port()
        followers = [server for server in self.servers if server.running() and server.port != primary]
        return bool(primary) and all(map(_follows, followers)) and all(map(self._sees_all, range(SENTINELS)))

    def _sees_all(self, number: int) -> bool:
        state: dict[str, Any] = self.ask(number, "SENTINEL", "MASTER", SERVICE)
        return int(state["num-other-sentinels"]) == SENTINELS - 1 and int(state["num-slaves"]) >= 1

    def _server(self, name: str, *options: str) -> RedisServer:
        folder = self._folder / name
        folder.mkdir()
        login = ("--masterauth", self._password) if self._password else ()
        quick = ("--repl-diskless-sync-delay", "0")
        server = RedisServer(folder, options=(*quick, *login, *options), password=self._password)
        if self._certificates:
            only = ("--port", "0", "--tls-port", str(server.port), "--tls-replication", "yes")
            server.options += (*only, *self._certificates.server_options())
        return server

    def _start(self) -> None:
        for server in self.servers:
            server.start()
        for port in self.ports:
            path = self._folder / f"sentinel-{port}.conf"
            path.write_text("\n".join(self._config(port)) + "\n")
            command = [server_binary(), str(path), "--sentinel"]
            self._sentinels.append(subprocess.Popen(command, cwd=self._folder))
        wait_until_sync(self._ready, "the Sentinels know each other and the replicas", START_S)

    def _config(self, port: int) -> list[str]:
        watch = f"sentinel monitor {SERVICE} 127.0.0.1 {self.servers[0].port} 2"
        lines = ["bind 127.0.0.1", f"dir {self._folder}"]
        if self._certificates:
            lines += ["port 0", f"tls-port {port}", "tls-replication yes"]
            options = self._certificates.server_options()
            lines += [f"{name[2:]} {value}" for name, value in zip(options[::2], options[1::2], strict=True)]
        else:
            lines += [f"port {port}"]
        lines += [watch]
        lines += [f"logfile {self._folder}/sentinel-{port}.log"]
        lines += [f"sentinel down-after-milliseconds {SERVICE} {DOWN_AFTER_MS}"]
        lines += [f"sentinel failover-timeout {SERVICE} 6000"]
        if self._password:
            lines += [f"sentinel auth-pass {SERVICE} {self._password}"]
        if self._sentinel_password:
            lines += [f"requirepass {self._sentinel_password}"]
        return lines

    def _ready(self) -> bool:
        try:
            return self.in_step()
        except redis.ConnectionError:
            return False

    def _stop(self) -> None:
        for sentinel in self._sentinels:
            sentinel.kill()
            sentinel.wait()
        for server in self.servers:
            server.stop()
        shutil.rmtree(self._folder)


def _follows(server: RedisServer) -> bool:
    info: dict[str, Any] = server.cli("INFO", "replication")
    return bool(info["role"] == "slave" and info["master_link_status"] == "up")
