"""Another server takes over behind the same address: admissions go on, and what runs is counted there."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from services.permits import Refused
from tests.permits.scene import KEYS, a_gate, demand
from tests.support.waiting import wait_until, wait_until_sync

if TYPE_CHECKING:
    from collections.abc import Callable

    from services.permits import Gate
    from tests.permits.scene import Seen
    from tests.support.redis_server import RedisServer
    from tests.support.redis_shim import RedisShim


def follow(server: RedisServer, primary: RedisServer) -> None:
    primary.cli("CONFIG", "SET", "repl-diskless-sync-delay", 0)
    server.cli("REPLICAOF", "127.0.0.1", primary.port)
    wait_until_sync(lambda: "master_link_status:up" in _replication(server), "the replica is in step", 10)


def _replication(server: RedisServer) -> str:
    info = server.cli("INFO", "replication")
    return (
        "\n".join(f"{name}:{value}" for name, value in info.items()) if isinstance(info, dict) else str(info)
    )


async def test_connections_to_a_demoted_primary_are_left_by_themselves(
    redis_server: RedisServer, spare_redis: Callable[..., RedisServer], shim: RedisShim
) -> None:
    """The old primary lives on as a replica and answers READONLY; its connections stay open."""
    successor = spare_redis()
    follow(successor, redis_server)
    try:
        async with a_gate(shim.url) as gate, gate.hold(demand()) as running:
            successor.cli("REPLICAOF", "NO", "ONE")
            follow(redis_server, successor)
            # The address points to the successor; what is open stays with the old one.
            shim.target = ("127.0.0.1", successor.port)

            async def admits() -> bool:
                try:
                    async with gate.hold(demand()) as permit:
                        return successor.cli("ZSCORE", KEYS.total, permit.id) is not None
                except Refused:
                    return False

            await wait_until(admits, "admissions go on with the successor", 5)
            await wait_until(lambda: successor.cli("ZSCORE", KEYS.total, running.id), "what runs is counted")
        assert successor.cli("ZCARD", KEYS.total) == 0
    finally:
        redis_server.cli("REPLICAOF", "NO", "ONE")


async def test_grants_that_the_successor_never_saw_are_asserted_there(
    redis_server: RedisServer, spare_redis: Callable[..., RedisServer], shim: RedisShim, seen: Seen
) -> None:
    """Replication lagged: the newest grants are lost, and what was released meanwhile lingers for a ttl."""
    successor = spare_redis()
    async with a_gate(shim.url) as gate:
        early = [await gate.take(demand()) for _ in range(2)]
        follow(successor, redis_server)
        successor.cli("REPLICAOF", "NO", "ONE")
        late = [await gate.take(demand()) for _ in range(2)]
        early[0].close()
        await wait_until(lambda: early[0].state == "released", "the old primary heard of it")
        shim.target = ("127.0.0.1", successor.port)
        shim.reset()
        reset_s = time.monotonic()
        expected = {early[1].id, *(permit.id for permit in late)}
        await wait_until(lambda: expected <= _live(successor), "all that runs is counted there")
        print(f"{len(late)} lost grants counted {time.monotonic() - reset_s:.2f} s after the promotion")  # noqa: T201
        assert _live(successor) - expected <= {early[0].id}
        assert not await _admitted(gate), "four places are taken, one of them by what lingers"
        successor.cli("HINCRBY", KEYS.meta, "clock", 2500)
        await wait_until(lambda: _live(successor) == expected, "it lingers no longer than its lease", 4)
        for permit in (*late, early[1]):
            permit.close()
        await wait_until(lambda: not _live(successor), "all went back")
    seen.client.flushall()


def _live(server: RedisServer) -> set[str]:
    clock = server.cli("HGET", KEYS.meta, "clock") or 0
    return set(server.cli("ZRANGEBYSCORE", KEYS.total, f"({clock}", "+inf"))


async def _admitted(gate: Gate) -> bool:
    try:
        async with gate.hold(demand()):
            return True
    except Refused:
        return False
