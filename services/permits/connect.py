"""Makes Redis clients that wait for a connection instead of failing, and that never hang."""

import asyncio
from collections.abc import Iterable
from typing import Any, Final

from redis.asyncio import BlockingConnectionPool, Redis
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
from redis.exceptions import RedisError

from services.permits.address import Address, read_address
from services.permits.errors import Unusable
from services.permits.pipe import Pipe

CONNECT_TIMEOUT_S: Final = 0.5
# One more attempt, at once: a pooled connection may have died while it was idle. All scripts are
# idempotent by lease id, so sending one twice is safe. Not after a time-out: the caller waited long enough.
_RETRY: Final = 1
# All that a call to Redis may raise when Redis or the way there is at fault.
TROUBLE: Final = (RedisError, OSError, TimeoutError)


class _Honest:
    """A connection that was reset while it was idle says so when it is written to.

    The write itself would not, or not in these words: what it does is up to the event loop (nothing, a
    RuntimeError of uvloop, a TypeError of asyncio from Python 3.12 on).
    """

    async def _send_packed_command(self, command: Iterable[bytes]) -> None:
        writer: asyncio.StreamWriter = self._writer  # type: ignore[attr-defined]
        if writer.is_closing():
            raise ConnectionResetError("it was reset while it was idle")
        await super()._send_packed_command(command)  # type: ignore[misc]


class PrimaryPool(SentinelConnectionPool, BlockingConnectionPool):
    """Connections to whichever server the Sentinels call the primary, asked anew for each connection."""

    async def get_master_address(self) -> Any:  # noqa: ANN401  (untyped in redis-py)
        """Return host and port; redis-py's own error would print every option of every connection."""
        try:
            return await super().get_master_address()  # type: ignore[no-untyped-call]
        except MasterNotFoundError:
            raise RedisConnectionError(f"no Sentinel names a primary called {self.service_name!r}") from None


class Client(Redis):
    """redis-py's client for plain commands, with a pipe beside it for scripts."""

    def __init__(
        self, pool: BlockingConnectionPool, *, timeout_s: float, sentinels: Sentinel | None = None
    ) -> None:
        """Own `pool`, the pipe and the connections to `sentinels`; `aclose` closes all of them."""
        kind = pool.connection_class
        pool.connection_class = type(f"Honest{kind.__name__}", (_Honest, kind), {})
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


def connect(url: str, *, max_connections: int = 20, timeout_s: float = 1.0) -> Client:
    """Return a client of `url`; nothing is sent yet. Raises Unusable when it is no address.

    For plain commands at most `max_connections` are open; a caller waits up to `timeout_s` for one of them,
    and as long for each reply. Scripts have one of their own. The caller owns the client and closes it with
    `aclose`.
    """
    try:
        address = read_address(url)
        if address.topology == "cluster":
            raise ValueError("redis+cluster:// is not supported in this release")
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
        # What the address asks for, but not whether replies are text.
        **address.options,
        "decode_responses": True,
    }
    if address.topology == "sentinel":
        client = _by_sentinels(address, bounds, timeout_s)
    else:
        client = Client(BlockingConnectionPool(**bounds), timeout_s=timeout_s)
    _try_options(client.connection_pool)
    return client


def _try_options(pool: Any) -> None:  # noqa: ANN401
    """Build what a connection needs, without connecting: what is wrong with it now will be wrong for ever."""
    try:
        connection = pool.make_connection()
        if tls := getattr(connection, "ssl_context", None):
            tls.get()
    except TypeError as error:
        raise Unusable(f"redis.url: what stands behind ? is no option of a connection: {error}") from error
    except (OSError, ValueError, RedisError) as error:
        raise Unusable(f"redis.url: its TLS options do not work: {error}") from error


def _by_sentinels(address: Address, bounds: dict[str, Any], timeout_s: float) -> Client:
    sentinels = Sentinel(  # type: ignore[no-untyped-call]
        address.hosts,
        sentinel_kwargs={
            **address.sentinel_options,
            "ssl": address.tls,
            "socket_timeout": CONNECT_TIMEOUT_S,
            "socket_connect_timeout": CONNECT_TIMEOUT_S,
            # One that does not answer is no reason to wait: the next is asked.
            "retry": Retry(NoBackoff(), 0),
        },
    )
    managed = SentinelManagedSSLConnection if address.tls else SentinelManagedConnection
    pool = PrimaryPool(  # type: ignore[no-untyped-call]
        address.service, sentinels, **{**bounds, "connection_class": managed}
    )
    return Client(pool, timeout_s=timeout_s, sentinels=sentinels)
