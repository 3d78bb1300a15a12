"""Makes Redis clients that wait for a connection instead of failing, and that never hang."""

from typing import Final

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import ExponentialWithJitterBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError

from services.permits.errors import Unusable
from services.permits.pipe import Pipe

CONNECT_TIMEOUT_S: Final = 0.5
# One more attempt, at once: a pooled connection may have died while it was idle. All scripts are
# idempotent by lease id, so sending one twice is safe. Not after a time-out: the caller waited long enough.
_RETRY: Final = 1
# uvloop closes a transport that was reset by itself, and answers a write to it with a RuntimeError.
_BROKEN: Final = (RedisConnectionError, RuntimeError)
# All that a call to Redis may raise when Redis or the way there is at fault.
TROUBLE: Final = (RedisError, OSError, TimeoutError, RuntimeError)


class Client(Redis):
    """redis-py's client for plain commands, with a pipe beside it for scripts."""

    def __init__(self, pool: BlockingConnectionPool, *, timeout_s: float) -> None:
        """Own `pool` and the pipe; `aclose` closes both."""
        super().__init__(connection_pool=pool)
        self.auto_close_connection_pool = True
        self.pipe: Final = Pipe(pool, timeout_s=timeout_s)

    async def aclose(self, close_connection_pool: bool | None = None) -> None:  # noqa: FBT001  (as redis-py has it)
        """Close all connections; calls that are under way fail."""
        await self.pipe.close()
        await super().aclose(close_connection_pool)


def connect(url: str, *, max_connections: int = 20, timeout_s: float = 1.0) -> Client:
    """Return a client of `url`; nothing is sent yet.

    For plain commands at most `max_connections` are open; a caller waits up to `timeout_s` for one of them,
    and as long for each reply. Scripts have one of their own. The caller owns the client and closes it with
    `aclose`.
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
        retry=Retry(ExponentialWithJitterBackoff(base=0.01, cap=0.05), _RETRY, _BROKEN),  # type: ignore[arg-type]
        retry_on_error=[*_BROKEN],
    )
    return Client(pool, timeout_s=timeout_s)
