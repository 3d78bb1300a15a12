"""Asks a Redis whether it can hold leases at all, before anything relies on it."""

import hashlib
import re
from typing import Any, Final

from redis.exceptions import NoPermissionError, RedisError, ResponseError

from services.permits.connect import TROUBLE, Client
from services.permits.errors import Unavailable, Unusable
from services.permits.keys import FleetKeys
from services.permits.scripts import load

# What gateways, reapers and the command line send beside scripts. How redis-py greets a server is not here:
# what it is refused then it does without.
PLAIN: Final = frozenset(
    {
        *("EVAL", "EVALSHA", "PING", "INFO", "SCAN", "TIME", "SSUBSCRIBE", "SUNSUBSCRIBE"),
        *("HGETALL", "HLEN", "HMGET", "SADD", "SMEMBERS", "SREM", "XRANGE", "XREVRANGE", "ZRANGE", "ZREM"),
    }
)
_CALLED: Final = re.compile(r"redis\.p?call\(\s*'([A-Z]+)'")
# Writes that a script chooses between while it runs.
_CHOSEN: Final = frozenset({"HSET", "HSETNX"})
_ON_CHANNELS: Final = ("SPUBLISH", "SSUBSCRIBE", "SUNSUBSCRIBE")

# Version numbers of forks say little; a script with flags runs or does not. Answers for the user who asks.
# Redis 8 wants as many arguments as the command takes, others do not mind too many: hence the most at first.
_MISSING: Final = """#!lua flags=no-writes
local function allowed(command, name)
  local names = { name, name, name, name }
  for count = #names, 1, -1 do
    local fits, answer = pcall(redis.acl_check_cmd, command, unpack(names, 1, count))
    if fits then
      return answer
    end
  end
  return redis.acl_check_cmd(command)
end
local missing = {}
for i = 2, #ARGV do
  local command, on_channel = string.match(ARGV[i], '(%u+)(.*)')
  if not allowed(command, on_channel == '' and KEYS[1] or ARGV[1]) then
    missing[#missing + 1] = string.lower(command)
  end
end
return missing
"""
_SHA: Final = hashlib.sha1(_MISSING.encode()).hexdigest()  # noqa: S324  (the hash that EVALSHA is defined by)


async def probe(client: Client, *, prefix: str = "tenure") -> None:
    """Return when the server can hold leases; raise Unusable with the cure, Unavailable when it is away."""
    try:
        missing = await missing_commands(client, prefix)
        servers = {} if "info" in missing else await client.infos("memory")
    except ResponseError as error:
        raise Unavailable(f"redis.url: {error}") from error
    except TROUBLE as error:
        raise Unavailable(f"redis.url: {type(error).__name__}: {error}") from error
    # Without INFO only the advice on eviction is lost.
    if needed := [command for command in missing if command != "info"]:
        raise Unusable(
            f"redis.url: this user may not use {', '.join(needed)} on keys and channels {prefix}:*; "
            f"allow it (ACL SETUSER ... {' '.join(f'+{command}' for command in needed)} "
            f"~{prefix}:* &{prefix}:*)"
        )
    for server, memory in servers.items():
        policy = str(memory.get("maxmemory_policy", "noeviction"))
        if policy.startswith("allkeys"):
            raise Unusable(
                f"redis.url: maxmemory-policy {policy}{server and f' of {server}'} would evict leases; "
                "set it to noeviction (redis-cli CONFIG SET maxmemory-policy noeviction)"
            )


async def missing_commands(client: Client, prefix: str) -> list[str]:
    """Return which commands this user may not use on our keys and channels, in lower case.

    Raises Unusable when the server is too old to say so, else what redis-py raises.
    """
    keys = FleetKeys(prefix, "probe")
    asked = [
        f"{name}{'@' * (name in _ON_CHANNELS)}" for name in commands() if name not in {"EVAL", "EVALSHA"}
    ]
    words = (keys.meta, keys.wake("probe"), *asked)
    try:
        missing: list[str] = list(await client.eval(_MISSING, 1, *words))
    except NoPermissionError:
        return ["eval"]
    except ResponseError as error:
        if not any(sign in str(error) for sign in ("compil", "unexpected symbol", "acl_check_cmd")):
            raise
        raise Unusable(
            f"redis.url: server version {await _version(client)} is too old; "
            "Redis 7 or Valkey 7.2 or later is needed"
        ) from error
    try:
        await client.evalsha(_SHA, 1, *words)
    except NoPermissionError:
        missing.append("evalsha")
    return missing


def commands() -> list[str]:
    """Return every command that a user of ours must be allowed, those in scripts included."""
    called = {name for script in load().values() for name in _CALLED.findall(script.text)}
    return sorted(PLAIN | _CHOSEN | called)


async def _version(client: Client) -> str:
    try:
        servers: Any = await client.infos("server")
    except RedisError:
        return "unknown"
    return str(next(iter(servers.values())).get("redis_version", "unknown"))
