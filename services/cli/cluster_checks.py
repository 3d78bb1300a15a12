"""What the doctor asks a Redis Cluster: whether all slots are served, and where each fleet lies."""

from typing import Any

from redis.exceptions import RedisError

from services.cli.failure import why
from services.cli.findings import Finding, fine, note, problem
from services.permits.cluster import ClusterClient
from services.permits.keys import FleetKeys
from services.settings.schema import Settings


async def examine_cluster(client: ClusterClient, settings: Settings) -> list[Finding]:
    """Return what is wrong with the Cluster as a whole, and the shard of each fleet."""
    findings = [await _state(client), await _coverage(client)]
    for fleet in sorted(settings.fleets):
        check = f"redis.shard.{fleet}"
        try:
            node = client.get_node_from_key(FleetKeys(settings.redis.prefix, fleet).meta)
        except RedisError as error:
            cure = "bring its shard back, or give the slot to another (redis-cli --cluster fix)"
            findings.append(problem(check, f"no shard serves its slot ({why(error)})", cure))
        else:
            findings.append(note(check, f"lies on {node.name}" if node else "lies nowhere"))
    return findings


async def _state(client: ClusterClient) -> Finding:
    check = "redis.cluster"
    try:
        info: Any = await client.cluster_info(target_nodes=client.get_random_node())
    except (RedisError, OSError) as error:
        return note(check, f"CLUSTER INFO cannot be asked ({why(error)})")
    shards = f"{info['cluster_size']} shards, {info['cluster_slots_ok']} of 16384 slots served"
    if info["cluster_state"] == "ok" and int(info["cluster_slots_ok"]) == int(info["cluster_slots_assigned"]):
        return fine(check, shards)
    cure = "bring the failed shards back, or promote their replicas (CLUSTER FAILOVER TAKEOVER)"
    return problem(check, f"state {info['cluster_state']}: {shards}", cure)


async def _coverage(client: ClusterClient) -> Finding:
    check, setting = "redis.coverage", "cluster-require-full-coverage"
    try:
        held: Any = await client.config_get(setting, target_nodes=client.get_random_node())
    except (RedisError, OSError):
        return note(check, f"this user may not see {setting} (CONFIG GET); it should be no")
    if held.get(setting) == "no":
        return fine(check, "a shard that is lost takes along its own fleets only")
    return problem(
        check,
        f"{setting} is yes: while one shard is lost all fleets are refused",
        f"CONFIG SET {setting} no on every node, and the same line in redis.conf",
    )
