"""Makes Redis clients that wait for a connection instead of failing, and that never hang."""

from collections.abc import Mapping
from typing import Any, Final

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.client import PubSub
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import (
    MasterNotFoundError,
    Sentinel,
    SentinelConnectionPool,
    SentinelManagedConnection,
    SentinelManagedSSLConnection,
)
from redis.backoff import ExponentialWithJitterBackoff, NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisClusterException, RedisError

from services.permits.address import Address, read_address
from services.permits.cluster import ClusterClient
from services.permits.errors import Unusable
from services.permits.honest import honest
from services.permits.pipe import Pipe

CONNECT_TIMEOUT_S: Final = 0.5
# One more attempt, at once: a pooled connection may have died while it was idle. All scripts are
# idempotent by lease id, so sending one twice is safe. Not after a time-out: the caller waited long enough.
_RETRY: Final = 1
# All that a call to Redis may raise when Redis or the way there is at fault. The third one, of a Cluster
# whose nodes are all away, is for redis-py no RedisError.
TROUBLE: Final = (RedisError, OSError, RedisClusterException, TimeoutError)


class PrimaryPool(SentinelConnectionPool, BlockingConnectionPool):
    """Connections to whichever server the Sentinels call the primary, asked anew for each connection."""

    async def get_master_address(self) -> Any:  # noqa: ANN401  (untyped in redis-py)
        """Return host and port; redis-py's own error would print every option of every connection."""
        try:
            return await super().get_master_address()  # type: ignore[no-untyped-call]
        except MasterNotFoundError:
            raise RedisConnectionError(f"no Sentinel names a primary called {self.service_name!r}") from None


class ServerClient(Redis):
    """redis-py's client for plain commands to one server, with a pipe beside it for scripts."""

    clustered: Final = False

    def __init__(
        self, pool: BlockingConnectionPool, *, timeout_s: float, sentinels: Sentinel | None = None
    ) -> None:
        """Own `pool`, the pipe and the connections to `sentinels`; `aclose` closes all of them."""
        pool.connection_class = honest(pool.connection_class)
        super().__init__(connection_pool=pool)
        self.auto_close_connection_pool = True
        self.pipe: Final = Pipe(pool, timeout_s=timeout_s)
        self.sentinels: Final = sentinels

    async def leave(self) -> None:
        """Connect anew for the next call: what is at the other end is the primary no more."""
        self.pipe.drop()
        await self.connection_pool.disconnect(inuse_connections=False)

    async def aclose(self, close_connection_pool: bool | None = None) -> None:  # noqa: FBT001  (as redis-py has it)
        """Close all connections; calls that are under way fail."""
        await self.pipe.close()
        await super().aclose(close_connection_pool)
        if self.sentinels is not None:
            await self.sentinels.aclose()

    def heard_together(self, channels: Mapping[str, str]) -> list[Mapping[str, str]]:
        """Part channels by the connections they need: one for all."""
        return [channels]

    async def ear(self) -> PubSub:
        """Return a subscription."""
        return self.pubsub()

    async def next_message(self, ear: Any, timeout_s: float) -> dict[str, Any] | None:  # noqa: ANN401
        """Return what was heard, or None."""
        message: dict[str, Any] | None = await ear.get_message(timeout=timeout_s)
        return message

    async def scan_keys(self, cursor: int, pattern: str, count: int) -> tuple[int, list[str]]:
        """Return the next cursor and keys, as SCAN has it."""
        following, keys = await self.scan(cursor, match=pattern, count=count)
        return following, [str(key) for key in keys]

    async def infos(self, section: str | None = None) -> dict[str, dict[str, Any]]:
        """Return what INFO says, by a name for the server."""
        return {"": await self.info(section)}


Client = ServerClient | ClusterClient


def connect(url: str, *, max_connections: int = 20, timeout_s: float = 1.0) -> Client:
    """Return a client of `url`; nothing is sent yet. Raises Unusable when it is no address.

    For plain commands at most `max_connections` are open; a caller waits up to `timeout_s` for one of them,
    and as long for each reply. Scripts have one of their own. The caller owns the client and closes it with
    `aclose`.
    """
    try:
        address = read_address(url)
    except ValueError as error:
        raise Unusable(f"redis.url: {error}") from error
    bounds: dict[str, Any] = {
        "max_connections": max_connections,
        "timeout": timeout_s,
        "socket_timeout": timeout_s,
        # A TLS greeting is several round trips, and work at both ends.
        "socket_connect_timeout": timeout_s if address.tls else CONNECT_TIMEOUT_S,
        "retry": Retry(ExponentialWithJitterBackoff(base=0.01, cap=0.05), _RETRY, (RedisConnectionError,)),
        "retry_on_error": [RedisConnectionError],
        # To tell the server redis-py's name is a right of its own since 7.2, which few users have.
        "driver_info": None,
        # What the address asks for, but not whether replies are text.
        **address.options,
        "decode_responses": True,
    }
    if address.topology == "cluster":
        return _to_cluster(address, bounds, timeout_s)
    if address.topology == "sentinel":
        client = _by_sentinels(address, bounds, timeout_s)
    else:
        client = ServerClient(BlockingConnectionPool(**bounds), timeout_s=timeout_s)
    _try_options(client.connection_pool)
    return client


def _try_options(pool: Any) -> None:  # noqa: ANN401
    """Build what a connection needs, without connecting: what is wrong with it now will be wrong for ever."""
    try:
        connection = (
            pool.make_connection()
            if hasattr(pool, "make_connection")
            else pool.connection_class(**pool.connection_kwargs)
        )
        if tls := getattr(connection, "ssl_context", None):
            tls.get()
    except TypeError as error:
        raise Unusable(f"redis.url: what stands behind ? is no option of a connection: {error}") from error
    except (OSError, ValueError, RedisError) as error:
        raise Unusable(f"redis.url: its TLS options do not work: {error}") from error


def _to_cluster(address: Address, bounds: dict[str, Any], timeout_s: float) -> ClusterClient:
    try:
        client = ClusterClient(address, bounds, timeout_s=timeout_s)
        _try_options(client.startup_nodes[0])
    except TypeError as error:
        raise Unusable(f"redis.url: what stands behind ? is no option of a connection: {error}") from error
    return client


def _by_sentinels(address: Address, bounds: dict[str, Any], timeout_s: float) -> ServerClient:
    sentinels = Sentinel(  # type: ignore[no-untyped-call]
        address.hosts,
        sentinel_kwargs={
            **address.sentinel_options,
            "ssl": address.tls,
            "driver_info": None,
            "socket_timeout": CONNECT_TIMEOUT_S,
            "socket_connect_timeout": CONNECT_TIMEOUT_S,
            # One that does not answer is no reason to wait: the next is asked.
            "retry": Retry(NoBackoff(), 0),
        },
    )
    for one in sentinels.sentinels:
        one.connection_pool.connection_class = honest(one.connection_pool.connection_class)
    managed = SentinelManagedSSLConnection if address.tls else SentinelManagedConnection
    pool = PrimaryPool(  # type: ignore[no-untyped-call]
        address.service, sentinels, **{**bounds, "connection_class": managed}
    )
    return ServerClient(pool, timeout_s=timeout_s, sentinels=sentinels)
