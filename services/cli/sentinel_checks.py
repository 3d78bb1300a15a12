"""What the doctor asks each Sentinel: whether it answers, whom it calls the primary, who could take over."""

from collections.abc import Mapping
from typing import Any

from redis.exceptions import RedisError

from services.cli.failure import why
from services.cli.findings import Finding, fine, problem
from services.permits.address import read_address
from services.permits.connect import Client


async def examine_sentinels(client: Client, url: str) -> list[Finding]:
    """Return one finding per fault of the Sentinels; nothing when the address names none."""
    if client.sentinels is None:
        return []
    address = read_address(url)
    findings: list[Finding] = []
    seen: dict[str, Mapping[str, Any]] = {}
    for sentinel in list(client.sentinels.sentinels):
        options = sentinel.connection_pool.connection_kwargs
        check = f"redis.sentinel.{options['host']}:{options['port']}"
        try:
            states: Any = await sentinel.sentinel_masters()
        except (RedisError, OSError) as error:
            cure = "start it, or correct host, port and sentinel_password in redis.url"
            findings.append(problem(check, f"does not answer ({why(error)})", cure))
            continue
        if address.service in states:
            seen[check] = states[address.service]
        else:
            known = ", ".join(map(str, states)) or "none"
            detail = f"watches no primary called {address.service}; it knows {known}"
            findings.append(problem(check, detail, "correct the name in redis.url, or add SENTINEL MONITOR"))
    if seen:
        findings += _agreement(seen)
    return findings


def _agreement(seen: Mapping[str, Mapping[str, Any]]) -> list[Finding]:
    check = "redis.sentinels"
    named = {check: f"{state['ip']}:{state['port']}" for check, state in seen.items()}
    if len(set(named.values())) > 1:
        differing = ", ".join(f"{check.rpartition('.')[2]} says {where}" for check, where in named.items())
        return [problem(check, f"name different primaries: {differing}", "wait for the failover to end")]
    state = next(iter(seen.values()))
    watching, quorum = int(state["num-other-sentinels"]) + 1, int(state["quorum"])
    detail = f"{len(seen)} answer; primary {next(iter(named.values()))}, {state['num-slaves']} replicas, "
    detail += f"{watching} sentinels, quorum {quorum}"
    if int(state["num-slaves"]) < 1:
        return [problem(check, f"{detail}: nobody could take over", "add a replica")]
    if watching <= quorum:
        return [problem(check, f"{detail}: the loss of one ends failovers", "run at least 3, quorum 2")]
    return [fine(check, detail)]
