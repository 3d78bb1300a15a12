"""`tenure doctor`: everything that is wrong with configuration, Redis and engines, each with its cure.

Changes nothing. The one module besides the permit library that speaks to Redis directly: it asks questions
that no gateway asks.
"""

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final

from redis.crc import key_slot
from redis.exceptions import AuthenticationError, RedisError, ResponseError

from services.cli.cluster_checks import examine_cluster
from services.cli.failure import address, why
from services.cli.findings import Finding, fine, note, problem
from services.cli.sentinel_checks import examine_sentinels
from services.permits.address import read_address
from services.permits.cluster import ClusterClient
from services.permits.connect import Client, connect
from services.permits.errors import PermitError, Unusable
from services.permits.keys import FleetKeys
from services.permits.probe import missing_commands
from services.permits.store import Store
from services.settings.schema import Settings

_FULL_SHARE: Final = 0.9
_CONNECTIONS: Final = 2

Info = Mapping[str, Any]


async def examine_redis(settings: Settings) -> list[Finding]:
    """Ask Redis everything; one finding says so when it does not answer at all."""
    where = address(settings.redis.url)
    try:
        client = connect(settings.redis.url, max_connections=_CONNECTIONS)
    except Unusable as error:
        return [problem("redis.reachable", str(error), "correct redis.url")]
    async with aclosing(client):
        findings = await examine_sentinels(client, settings.redis.url)
        try:
            infos = await client.infos()
        except (AuthenticationError, ResponseError) as error:
            refusal = f"{where} refuses us ({why(error)})"
            return [*findings, problem("redis.reachable", refusal, "correct user and password in redis.url")]
        except (RedisError, OSError) as error:
            silence = f"{where} does not answer ({why(error)})"
            cure = "start it, or correct redis.url or --redis-url"
            return [*findings, problem("redis.reachable", silence, cure)]
        findings += [fine("redis.reachable", f"{where} answers")]
        async with aclosing(_questions(client, infos, settings)) as questions:
            findings += [finding async for finding in questions]
        return findings


async def _questions(
    client: Client, infos: Mapping[str, Info], settings: Settings
) -> AsyncGenerator[Finding]:
    for server, info in infos.items():
        for found in (_version(info), _role(info), _eviction(info), _memory(info)):
            yield replace(found, check=f"{found.check}.{server}") if server else found
    info = next(iter(infos.values()))
    yield await _features(client, info, settings.redis.prefix)
    yield await _persistence(client, info)
    yield await _clock(client)
    yield _slots(info, settings)
    if isinstance(client, ClusterClient):
        for found in await examine_cluster(client, settings):
            yield found
    for fleet in sorted(settings.fleets):
        yield await _fleet_scripts(client, fleet, settings)


def _version(info: Info) -> Finding:
    valkey = info.get("valkey_version")
    return note("redis.version", f"Valkey {valkey}" if valkey else f"Redis {info.get('redis_version', '?')}")


async def _features(client: Client, info: Info, prefix: str) -> Finding:
    check = "redis.scripts"
    try:
        missing = await missing_commands(client, prefix)
    except (PermitError, RedisError, OSError) as error:
        return too_old(check, str(info.get("redis_version", "?")), why(error))
    if missing:
        rules = " ".join(f"+{command}" for command in missing)
        refusal = f"this user may not use {', '.join(missing)} on keys and channels {prefix}:*"
        return problem(check, refusal, f"ACL SETUSER ... {rules} ~{prefix}:* &{prefix}:*")
    return fine(check, "runs scripts with `#!lua` flags, and this user may do all that is needed")


def too_old(check: str, version: str, error: str) -> Finding:
    """Say that a server cannot run our scripts: it is too old, or its user may not."""
    if "unknown command" in error.lower() or "permission" in error.lower():
        return problem(check, f"scripts may not be run ({error})", "allow this user EVAL and EVALSHA (ACL)")
    return problem(
        check,
        f"Redis {version} does not run scripts with `#!lua` flags ({error})",
        "upgrade to Redis 7 or later, or to Valkey",
    )


def _role(info: Info) -> Finding:
    if info.get("role") == "master":
        return fine("redis.role", "takes writes")
    return problem(
        "redis.role",
        "is a replica and refuses writes",
        f"point redis.url at its primary {info.get('master_host', '')}:{info.get('master_port', '')}",
    )


def _eviction(info: Info) -> Finding:
    check, policy = "redis.eviction", str(info.get("maxmemory_policy", "?"))
    if policy == "noeviction":
        return fine(check, "maxmemory-policy is noeviction")
    if policy.startswith("volatile"):
        return note(check, f"maxmemory-policy is {policy}: evicts keys with a TTL, and ours have none")
    return problem(
        check,
        f"maxmemory-policy is {policy}: under memory pressure leases and limits would be deleted",
        "redis-cli CONFIG SET maxmemory-policy noeviction, and the same line in redis.conf",
    )


def _memory(info: Info) -> Finding:
    most, used = int(info.get("maxmemory", 0)), int(info.get("used_memory", 0))
    if not most:
        return note("redis.memory", f"{used / 2**20:.1f} MiB used, no maxmemory")
    detail = f"{used / 2**20:.1f} of {most / 2**20:.1f} MiB used"
    if used < _FULL_SHARE * most:
        return fine("redis.memory", detail)
    return problem("redis.memory", f"{detail}: when it is full nothing is admitted", "raise maxmemory")


async def _persistence(client: Client, info: Info) -> Finding:
    check = "redis.persistence"
    if int(info.get("aof_enabled", 0)):
        return note(check, "append-only file; a restart forgets at most its last second")
    try:
        snapshots = (await client.config_get("save")).get("save", "")
    except (RedisError, OSError):
        return note(
            check, "no append-only file; whether there are snapshots this user may not see (CONFIG GET)"
        )
    if snapshots:
        return note(check, f"snapshots ({snapshots}); after a crash the gateways write back what is newer")
    return note(check, "none; after a restart the gateways write back limits, keys and what they run")


async def _clock(client: Client) -> Finding:
    try:
        told: Any = await client.time()
        # A cluster's primaries all answer; theirs should agree, and one will do.
        seconds, micros = next(iter(told.values())) if isinstance(told, dict) else told
    except (RedisError, OSError) as error:
        return problem("redis.clock", f"TIME is refused ({why(error)})", "allow TIME to this user (ACL)")
    skew_s = seconds + micros / 1e6 - datetime.now(UTC).timestamp()
    return note("redis.clock", f"{skew_s:+.3f} s from this machine's; leases run on Redis's clock alone")


def _slots(info: Info, settings: Settings) -> Finding:
    check = "redis.slots"
    clustered = read_address(settings.redis.url).topology == "cluster"
    if int(info.get("cluster_enabled", 0)) and not clustered:
        cure = "write redis+cluster://host:port,host:port into redis.url"
        return problem(check, "is a node of a Redis Cluster, and redis.url speaks of one server", cure)
    for fleet in settings.fleets:
        keys = FleetKeys(settings.redis.prefix, fleet)
        names = (keys.meta, keys.limits, keys.total, keys.cold, keys.gateways, keys.events, keys.lease("x"))
        if len({key_slot(name.encode()) for name in names}) > 1:
            return problem(check, f"the keys of fleet {fleet} span slots", "take { and } out of redis.prefix")
    return fine(check, f"{'a cluster' if clustered else 'one primary'}; each fleet's keys share one slot")


async def _fleet_scripts(client: Client, fleet: str, settings: Settings) -> Finding:
    check = f"redis.fleet.{fleet}"
    store = Store(client, prefix=settings.redis.prefix)
    try:
        counts = await store.count(fleet)
        await store.inspect(fleet, 1)
    except PermitError as error:
        return problem(
            check,
            f"its keys cannot be read ({why(error)})",
            "see the line above, or delete what is not ours",
        )
    if not counts.limits:
        return note(check, "has no limits in Redis yet; the first gateway writes those of the file")
    learning = f", learning for {counts.learning_ms / 1000:.1f} s" if counts.learning_ms else ""
    return fine(
        check,
        f"{counts.total} of {counts.limits.get('total', 0)} in use, {counts.gateways} gateways{learning}",
    )
