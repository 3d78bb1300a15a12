"""Asks a Redis whether it can hold leases at all, before anything relies on it."""

from typing import Final

from redis.asyncio import Redis
from redis.exceptions import NoPermissionError, RedisError, ResponseError

from services.permits.errors import Unavailable, Unusable

# Version numbers of forks say little; a script with flags runs or does not.
_FLAGGED_SCRIPT: Final = "#!lua flags=no-writes\nreturn 1"


async def probe(client: Redis) -> None:
    """Return when the server can hold leases; raise Unusable with the cure, Unavailable when it is away."""
    try:
        await _runs_flagged_scripts(client)
        memory = await client.info("memory")
    except NoPermissionError:
        # INFO may be denied by an ACL; the scripts work, so only the advice on eviction is lost.
        return
    except ResponseError as error:
        raise Unavailable(f"redis.url: {error}") from error
    except (RedisError, OSError, TimeoutError) as error:
        raise Unavailable(f"redis.url: {type(error).__name__}: {error}") from error
    policy = str(memory.get("maxmemory_policy", "noeviction"))
    if policy.startswith("allkeys"):
        raise Unusable(
            f"redis.url: maxmemory-policy {policy} would evict leases; "
            "set it to noeviction (redis-cli CONFIG SET maxmemory-policy noeviction)"
        )


async def _runs_flagged_scripts(client: Redis) -> None:
    try:
        await client.eval(_FLAGGED_SCRIPT, 0)
    except NoPermissionError as error:
        raise Unusable(f"redis.url: this user may not run scripts (EVAL, EVALSHA): {error}") from error
    except ResponseError as error:
        if "compil" not in str(error).lower() and "unexpected symbol" not in str(error):
            raise
        server = await client.info("server")
        version = server.get("redis_version", "unknown")
        raise Unusable(
            f"redis.url: server version {version} is too old; Redis 7 or Valkey 7.2 or later is needed"
        ) from error
