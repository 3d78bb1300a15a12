"""A client of a Redis Cluster: redis-py's own, which knows the shards and follows MOVED and ASK.

Each fleet's keys lie in one slot, so a script goes to one shard, and where that is away the others answer. A
script costs more than down a pipe: here each call has a connection to itself while it is under way.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final

from redis.asyncio.cluster import ClusterNode, ClusterPubSub, RedisCluster
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoScriptError, RedisError

from services.permits.address import Address
from services.permits.honest import honest
from services.permits.scripts import Arg, Script

Reply = Any

# redis-py fails rather than wait for one; how many calls are under way is bounded by those who call.
_CONNECTIONS_PER_NODE: Final = 10_000
# How many bits of a scan's cursor say which shard it is at.
_SHARD_BITS: Final = 10


class ClusterPipe:
    """Sends scripts to their shards; the same to its users as `Pipe`."""

    def __init__(self, cluster: RedisCluster, *, timeout_s: float) -> None:
        """Send by way of `cluster`; a call may take `timeout_s` in all, retries included."""
        self._cluster = cluster
        self._timeout_s = timeout_s
        self._calls: set[asyncio.Task[Reply]] = set()
        self._closed = False

    async def run(self, script: Script, keys: Sequence[str], args: Sequence[Arg]) -> Reply:
        """Run one script on its shard and return its raw reply; errors are redis-py's own.

        Cancelling the caller takes nothing back: the call ends by itself; see `settled`.
        """
        if self._closed:
            raise RedisConnectionError("the client is closed")
        call = asyncio.create_task(self._call(script, len(keys), *keys, *args))
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)
        return await asyncio.shield(call)

    def settled(self) -> "asyncio.Future[None]":
        """Return a future that is done once every call begun so far has ended."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        left = set(self._calls)

        def ended(call: "asyncio.Task[Reply]") -> None:
            left.discard(call)
            if not left and not done.done():
                done.set_result(None)

        for call in tuple(left):
            call.add_done_callback(ended)
        if not left:
            done.set_result(None)
        return done

    def drop(self) -> None:
        """Do nothing: redis-py asks anew where a slot is when a node is no primary any more."""

    async def close(self) -> None:
        """End the calls that are under way, and refuse those that come."""
        self._closed = True
        for call in tuple(self._calls):
            call.cancel()
        await asyncio.gather(*self._calls, return_exceptions=True)

    async def _call(self, script: Script, *words: Arg) -> Reply:
        async with asyncio.timeout(self._timeout_s):
            _ = await self._cluster.initialize()
            try:
                return await self._cluster.execute_command("EVALSHA", script.sha, *words)
            except NoScriptError:
                return await self._cluster.execute_command("EVAL", script.text, *words)


class ClusterClient(RedisCluster):
    """redis-py's client of a Cluster, with what `Client` has besides."""

    clustered: Final = True
    sentinels: Final = None

    def __init__(self, address: Address, bounds: Mapping[str, Any], *, timeout_s: float) -> None:
        """Talk to nobody yet. Raises TypeError for an option that redis-py does not know."""
        options = {name: value for name, value in bounds.items() if name not in _OF_A_POOL}
        super().__init__(
            startup_nodes=[ClusterNode(host, port) for host, port in address.hosts],
            # One shard that is away is no reason to leave the others.
            require_full_coverage=False,
            max_connections=_CONNECTIONS_PER_NODE,
            retry=Retry(NoBackoff(), 1),
            ssl=address.tls,
            **options,
        )
        kind = honest(self.connection_kwargs["connection_class"])
        # What nodes that are found later are made with, and those to begin with.
        self.connection_kwargs["connection_class"] = self.nodes_manager.connection_kwargs[
            "connection_class"
        ] = kind
        for node in self.nodes_manager.startup_nodes.values():
            node.connection_class = kind
        # Twice, because it may be needed to find out who took over.
        self.pipe: Final = ClusterPipe(self, timeout_s=2 * timeout_s)

    async def leave(self) -> None:
        """Do nothing; see `ClusterPipe.drop`."""

    async def aclose(self) -> None:
        """Close all connections; calls that are under way fail."""
        await self.pipe.close()
        await super().aclose()
        # It may have been closed by redis-py itself, which then keeps those of the nodes it began with.
        await self.nodes_manager.aclose()
        await self.nodes_manager.aclose("startup_nodes")

    def heard_together(self, channels: Mapping[str, str]) -> list[Mapping[str, str]]:
        """Part channels by the connections they need: each is heard from its own shard."""
        return [{channel: fleet} for channel, fleet in channels.items()]

    async def ear(self) -> ClusterPubSub:
        """Return a subscription to channels of one shard."""
        _ = await self.initialize()
        return self.pubsub()

    async def next_message(self, ear: ClusterPubSub, timeout_s: float) -> dict[str, Any] | None:
        """Return what was heard, or None; raises what redis-py raises when the shard or its slot is gone."""
        message = await ear.get_sharded_message(timeout=timeout_s)
        if not ear.node_pubsub_mapping or (message is not None and message["type"] == "sunsubscribe"):
            raise RedisConnectionError("the slot of the channel moved to another shard")
        return message

    async def scan_keys(self, cursor: int, pattern: str, count: int) -> tuple[int, list[str]]:
        """Scan one shard after the other; a shard that is away is passed over."""
        _ = await self.initialize()
        shards = sorted(self.get_primaries(), key=lambda node: str(node.name))
        at, within = cursor & ((1 << _SHARD_BITS) - 1), cursor >> _SHARD_BITS
        keys: list[str] = []
        if at < len(shards):
            try:
                words = ("SCAN", within, "MATCH", pattern, "COUNT", count)
                reply = await shards[at].execute_command(*words)
                within, keys = int(reply[0]), [str(key) for key in reply[1]]
            except (RedisError, OSError, TimeoutError):
                within = 0
        if within:
            return (within << _SHARD_BITS) | at, keys
        return at + 1 if at + 1 < len(shards) else 0, keys

    async def infos(self, section: str | None = None) -> dict[str, dict[str, Any]]:
        """Return what INFO says of each primary, by address; of those that answer, at least one must."""
        _ = await self.initialize()
        found: dict[str, dict[str, Any]] = {}
        trouble: Exception | None = None
        for node in self.get_primaries():
            try:
                info = await self.info(*([section] if section else []), target_nodes=node)
            except (RedisError, OSError, TimeoutError) as error:
                trouble = error
            else:
                found[str(node.name)] = dict(info)
        if not found:
            raise trouble or RedisConnectionError("the cluster has no primary")
        return found


# What is said to a pool that waits for connections, or of a database.
_OF_A_POOL: Final = ("connection_class", "db", "max_connections", "timeout", "retry", "retry_on_error")
