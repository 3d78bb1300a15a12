"""A Redis Cluster of real servers: three shards, each perhaps with a replica, started and ended by pid."""

from __future__ import annotations

import itertools
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

import redis
from redis.crc import key_slot

from tests.support.redis_server import RedisServer, free_port
from tests.support.waiting import wait_until_sync

if TYPE_CHECKING:
    from types import TracebackType

SHARDS: Final = 3
SLOTS: Final = 16384
# Long enough that a busy machine is not taken for a dead server.
NODE_TIMEOUT_MS: Final = 3000
START_S: Final = 60


class Cluster:
    """Three shards with `replicas` replicas each, from `with` to the end of its block.

    servers     the primaries of the beginning, in the order of their slots, then their replicas
    """

    def __init__(self, *, replicas: int = 0) -> None:
        # Not pytest's tmp_path: a unix socket's path may not be longer than about 100 bytes.
        self._folder = Path(tempfile.mkdtemp(prefix="tenure-cluster-"))
        self.servers = [self._server(f"n{n}") for n in range(SHARDS * (1 + replicas))]

    @property
    def url(self) -> str:
        """Return the address for `redis.url`; two nodes are enough to find the others."""
        return "redis+cluster://" + ",".join(f"127.0.0.1:{server.port}" for server in self.servers[:2])

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

    def shard_of(self, fleet: str) -> int:
        """Return the number of the shard that a fleet's keys lay on in the beginning."""
        return next(n for n, slots in enumerate(_ranges()) if key_slot(fleet.encode()) in slots)

    def fleet_on(self, shard: int) -> str:
        """Return a name for a fleet whose keys lie on this shard."""
        return next(name for name in map(str, _names()) if self.shard_of(name) == shard)

    def owner(self, fleet: str) -> RedisServer:
        """Return the server that holds a fleet's keys now."""
        slot = key_slot(fleet.encode())
        for start, end, (_, port, *_), *_ in self._living().cli("CLUSTER", "SLOTS"):
            if int(start) <= slot <= int(end):
                return next(server for server in self.servers if server.port == int(port))
        raise AssertionError(f"nobody serves slot {slot}")

    def call(self, fleet: str, *command: str | float) -> Any:
        """Send a command about a fleet's keys to the server that holds them."""
        return self.owner(fleet).cli(*command)

    def move_slot(self, fleet: str, target: RedisServer, *, keys_per_step: int = 2) -> None:
        """Move a fleet's slot to another server, live, a few keys at a time."""
        slot, source = key_slot(fleet.encode()), self.owner(fleet)
        theirs, ours = (str(server.cli("CLUSTER", "MYID")) for server in (target, source))
        target.cli("CLUSTER", "SETSLOT", slot, "IMPORTING", ours)
        source.cli("CLUSTER", "SETSLOT", slot, "MIGRATING", theirs)
        while keys := source.cli("CLUSTER", "GETKEYSINSLOT", slot, keys_per_step):
            source.cli("MIGRATE", "127.0.0.1", target.port, "", 0, 5000, "KEYS", *keys)
        for server in (target, source, *(one for one in self.servers if one not in (target, source))):
            server.cli("CLUSTER", "SETSLOT", slot, "NODE", theirs)

    def healthy(self) -> bool:
        """Whether every living server sees all slots served."""
        return all(map(_sees_all, (server for server in self.servers if server.running())))

    def written(self, fleet: str) -> int:
        """Return how far the server that holds a fleet's keys has come."""
        return int(self.call(fleet, "INFO", "replication")["master_repl_offset"])

    def replicated(self, fleet: str, offset: int) -> bool:
        """Whether the replica of a fleet's server has seen all up to `offset`."""
        follower = self.call(fleet, "INFO", "replication")["slave0"]
        return bool(follower["state"] == "online" and int(follower["offset"]) >= offset)

    def _living(self) -> RedisServer:
        return next(server for server in self.servers if server.running())

    def _server(self, name: str) -> RedisServer:
        folder = self._folder / name
        folder.mkdir()
        bus = ("--cluster-port", str(free_port()), "--cluster-node-timeout", str(NODE_TIMEOUT_MS))
        ours = ("--cluster-enabled", "yes", "--cluster-require-full-coverage", "no", *bus)
        quick = ("--repl-diskless-sync-delay", "0", "--cluster-replica-validity-factor", "0")
        return RedisServer(folder, options=(*ours, *quick))

    def _start(self) -> None:
        for server in self.servers:
            server.start()
        primaries, replicas = self.servers[:SHARDS], self.servers[SHARDS:]
        for number, (server, slots) in enumerate(zip(primaries, _ranges(), strict=True)):
            # Without it all begin at epoch 0 and quarrel about who is right.
            server.cli("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
            server.cli("CLUSTER", "ADDSLOTSRANGE", slots.start, slots.stop - 1)
        for server in self.servers[1:]:
            bus = self.servers[0].options[self.servers[0].options.index("--cluster-port") + 1]
            server.cli("CLUSTER", "MEET", "127.0.0.1", self.servers[0].port, bus)
        wait_until_sync(self._all_met, "the servers know each other", START_S)
        wait_until_sync(self.healthy, "all slots are served", START_S)
        for number, server in enumerate(replicas):
            server.cli("CLUSTER", "REPLICATE", primaries[number % SHARDS].cli("CLUSTER", "MYID"))
        wait_until_sync(lambda: all(map(_follows, replicas)), "the replicas are in step", START_S)

    def _all_met(self) -> bool:
        known = (_info(server)["cluster_known_nodes"] for server in self.servers)
        return all(int(count) == len(self.servers) for count in known)

    def _stop(self) -> None:
        for server in self.servers:
            server.stop()
        shutil.rmtree(self._folder)


def _ranges() -> list[range]:
    edges = [SLOTS * n // SHARDS for n in range(SHARDS + 1)]
    return [range(start, end) for start, end in itertools.pairwise(edges)]


def _names() -> list[str]:
    return [f"fleet{n}" for n in range(100)]


def _info(server: RedisServer) -> dict[str, str]:
    told: Any = server.cli("CLUSTER", "INFO")
    if isinstance(told, dict):
        return told
    return dict(line.split(":", 1) for line in str(told).split("\r\n") if ":" in line)


def _sees_all(server: RedisServer) -> bool:
    try:
        info = _info(server)
    except redis.ConnectionError:
        return False
    return info["cluster_state"] == "ok" and int(info["cluster_slots_ok"]) == SLOTS


def _follows(server: RedisServer) -> bool:
    info: dict[str, Any] = server.cli("INFO", "replication")
    return bool(info["role"] == "slave" and info["master_link_status"] == "up")
