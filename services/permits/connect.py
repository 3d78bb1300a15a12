"""Makes Redis clients that wait for a connection instead of failing, and that never hang."""

from typing import Any, Final

import hiredis
from redis.asyncio import BlockingConnectionPool, Connection, Redis, SSLConnection, UnixDomainSocketConnection
from redis.asyncio.retry import Retry
from redis.backoff import ExponentialWithJitterBackoff
from redis.exceptions import ConnectionError as RedisConnectionError

from services.permits.errors import Unusable

CONNECT_TIMEOUT_S: Final = 0.5
# One more attempt, at once: a pooled connection may have died while it was idle. All scripts are
# idempotent by lease id, so sending one twice is safe. Not after a time-out: the caller waited long enough.
_RETRY: Final = 1


class _Packed:
    """Packs and writes a command in C, where redis-py's asyncio client does it in Python and in a task.

    One script call has over twenty arguments, and there are two per request.
    """

    def pack_command(self, *args: Any) -> list[bytes]:  # noqa: ANN401  (what redis-py passes)
        return [hiredis.pack_command(args)]

    async def send_packed_command(self, command: Any, check_health: bool = True) -> None:  # noqa: ANN401, FBT001, FBT002
        writer: Any = getattr(self, "_writer", None)
        if writer is None or writer.is_closing() or writer.transport.get_write_buffer_size():
            try:
                await super().send_packed_command(command, check_health)  # type: ignore[misc]
            except RuntimeError as error:
                # uvloop closes a transport that was reset, and says this of a write to it.
                raise RedisConnectionError(str(error)) from error
        else:
            # Nothing is buffered, so there is nothing to wait for; a write that fails shows in the read.
            writer.writelines(command)


class _PackedConnection(_Packed, Connection): ...


class _PackedSSLConnection(_Packed, SSLConnection): ...


class _PackedUnixConnection(_Packed, UnixDomainSocketConnection): ...


_PACKED: Final = {
    Connection: _PackedConnection,
    SSLConnection: _PackedSSLConnection,
    UnixDomainSocketConnection: _PackedUnixConnection,
}


def connect(url: str, *, max_connections: int = 20, timeout_s: float = 1.0) -> Redis:
    """Return a client of `url`; nothing is sent yet.

    At most `max_connections` are open; a caller waits up to `timeout_s` for one of them, and as long for
    each reply. The caller owns the client and closes it with `aclose`.
    """
    if not url.startswith(("redis://", "rediss://", "unix://")):
        raise Unusable(
            f"redis.url: scheme of {url.split('://', maxsplit=1)[0]!r} must be redis, rediss or unix"
        )
    pool = BlockingConnectionPool.from_url(
        url,
        max_connections=max_connections,
        timeout=timeout_s,
        decode_responses=True,
        socket_timeout=timeout_s,
        socket_connect_timeout=CONNECT_TIMEOUT_S,
        retry=Retry(ExponentialWithJitterBackoff(base=0.01, cap=0.05), _RETRY, (RedisConnectionError,)),
        retry_on_error=[RedisConnectionError],
    )
    pool.connection_class = _PACKED[pool.connection_class]
    return Redis.from_pool(pool)
