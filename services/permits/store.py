"""One typed method per Lua script. Nothing else in Tenure knows what a script's arguments look like.

Arguments are given by the names of the script's own header; replies become values of `model`. Every error
of Redis or of the network becomes `Unavailable`: the outcome of that call is then unknown, and as every
script is idempotent by lease id, it may be sent again or released blind.

A cancelled call can leave its reply in the connection for the next caller to read. Nobody who can be
cancelled awaits these methods directly: see `gate.py` for how it is done.
"""

from collections import defaultdict
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any, Final, Literal

from services.permits.ledger import Ledger
from services.permits.model import (
    Answer,
    Counts,
    Demand,
    Ended,
    Full,
    Gone,
    Held,
    KeyVersion,
    LeaseRow,
    Reaped,
    Ticked,
    WaiterRow,
)
from services.permits.replies import lease_row, waiter_row
from services.permits.scripts import Arg

# How many items one call may carry: a script that runs for milliseconds makes every other request wait.
LEASES_PER_TICK_MAX: Final = 500
LEASES_PER_RELEASE_MAX: Final = 200

EVIDENCE_MS: Final = 600_000
EVIDENCE_PER_ENGINE_MAX: Final = 10_000

# The fields of the key hashes that are not hashes of keys.
KEY_FIELDS: Final = ("#epoch", "#revision")


class Store(Ledger):
    """The scripts of one Redis, as methods. The caller owns the client and closes it."""

    def acquire(self, demand: Demand, *, lease: str, holder: str) -> Coroutine[Any, Any, Answer]:
        """Ask for one permit under the id `lease`; the same id again gets the same answer."""
        return self._run(
            "acquire",
            self._named(demand.fleet),
            {
                "lease": lease,
                "holder": holder,
                "tenant": demand.tenant,
                "request_id": demand.request_id,
                "patience_ms": demand.patience_ms,
                "engine_count": len(demand.engines),
            },
            (*demand.engines, *demand.prefixes),
        )

    async def tick(
        self,
        fleet: str,
        *,
        holder: str,
        leases: Sequence[Held],
        news: frozenset[str],
        waiters: Sequence[str] = (),
    ) -> Ticked:
        """Renew `leases` (at most LEASES_PER_TICK_MAX) for one ttl; those in `news` changed their phase.

        `waiters` are the ids of those who stand in line; the answer says which of them do so no more.
        """
        groups: defaultdict[tuple[str, str, str], list[Held]] = defaultdict(list)
        # By their ids: among those of one expiry each is then next to the one before, and quickly found.
        for held in sorted(leases, key=attrgetter("lease")):
            groups[held.tenant, held.engine, "c" if held.cold else "-"].append(held)
        rest: list[Arg] = []
        facts: list[str] = []
        for group, members in groups.items():
            rest += (*group, len(members), *(held.lease for held in members))
            facts += (f"{one.request_id} {one.class_} {one.phase} {one.acquired_at}" for one in members)
        changed = [held for held in leases if held.lease in news]
        for held in changed:
            rest += (held.lease, held.phase)
        args: dict[str, Arg] = {
            "holder": holder,
            "lease_count": len(leases),
            "news_count": len(changed),
            "facts": "\n".join(facts),
        }
        answer: Ticked = await self._run("tick", self._named(fleet), args, [*rest, *waiters])
        return answer

    async def downgrade(self, fleet: str, leases: Sequence[str]) -> int:
        """Give back the cold places of `leases`; returns how many had one."""
        answer: int = await self._run("downgrade", self._named(fleet), {}, leases)
        return answer

    async def release(self, fleet: str, leases: Iterable[Gone]) -> int:
        """Give back all places of `leases`; returns how many still had any."""
        rest = [word for gone in leases for word in (gone.lease, gone.tenant, gone.engine)]
        answer: int = await self._run("release", self._named(fleet), {}, rest)
        return answer

    async def move(self, fleet: str, lease: str, engines: Sequence[str]) -> str | Full | None:
        """Move a live lease to the least loaded of `engines`; returns its name, Full, or None when gone."""
        named = self._named(fleet, record=self.keys(fleet).lease(lease))
        answer: str | Full | None = await self._run("move", named, {"lease": lease}, engines)
        return answer

    async def ended(self, fleet: str, ends: Iterable[Ended]) -> int:
        """Write down how requests ended; returns how many. May raise OutOfMemory."""
        rest = [word for end in ends for word in (end.lease, end.tenant, end.reason)]
        answer: int = await self._run("ended", {"ends": self.keys(fleet).ends}, {}, rest)
        return answer

    async def witness(self, fleet: str, engine: str, prefixes: Mapping[str, bool]) -> int:
        """Keep the prefixes an engine reported as cached, drop the others; returns how many it has."""
        rest = [word for prefix, cached in prefixes.items() for word in (prefix, int(cached))]
        args: dict[str, Arg] = {"keep_ms": EVIDENCE_MS, "most": EVIDENCE_PER_ENGINE_MAX}
        named = self._named(fleet, evidence=self.keys(fleet).evidence(engine))
        answer: int = await self._run("witness", named, args, rest)
        return answer

    async def reap(self, fleet: str, pools: Sequence[str] = (), records: Sequence[str] = ()) -> Reaped:
        """Make one pass; `pools` (tenant:T, engine:E) and `records` of leases are held against the total."""
        rest = (*pools, *records)
        named = self._named(fleet, reported=self.keys(fleet).reported)
        # With very short leases a provisional one may be the longest there is.
        longest_ms = max(self._times.ttl_ms, self._times.provisional_ms)
        args: dict[str, Arg] = {"pool_count": len(pools), "ttl_ms": longest_ms}
        answer: Reaped = await self._run("reap", named, args, rest)
        return answer

    async def revoke(
        self,
        fleet: str,
        *,
        lease: str = "",
        request_id: str = "",
        tenant: str = "",
        reason: str,
        who: str,
    ) -> str | None:
        """End one request, running or waiting, by lease or request id; returns its lease, or None."""
        args = {"lease": lease, "request_id": request_id, "tenant": tenant, "reason": reason, "who": who}
        answer: str | None = await self._run("revoke", self._named(fleet), args, ())
        return answer

    async def line(self, fleet: str, most: int = 1000) -> list[WaiterRow]:
        """Return up to `most` waiters, in the order of the line; changes nothing."""
        return [waiter_row(line) for line in await self._run("line", self._named(fleet), {"most": most}, ())]

    async def inspect(self, fleet: str, most: int = 1000) -> list[LeaseRow]:
        """Return up to `most` live leases, the soonest to expire first; changes nothing."""
        lines = await self._run("inspect", self._named(fleet), {"most": most}, ())
        return [lease_row(line) for line in lines]

    async def count(self, fleet: str, tenants: Sequence[str] = (), engines: Sequence[str] = ()) -> Counts:
        """Count live leases of the total, the cold and the named pools, and who waits; changes nothing."""
        pools = [f"{kind}:{tenant}" for kind in ("tenant", "waiting") for tenant in tenants]
        pools += [f"engine:{engine}" for engine in engines]
        reply = await self._run("count", self._named(fleet), {}, pools)
        per_pool, limits = iter(map(int, reply[8 : 8 + len(pools)])), reply[8 + len(pools) :]
        return Counts(
            epoch=reply[1],
            clock=int(reply[2]),
            learning_ms=int(reply[3]),
            gateways=int(reply[4]),
            total=int(reply[5]),
            cold=int(reply[6]),
            waiting=int(reply[7]),
            # In this order: each takes its share of the figures.
            tenants={tenant: next(per_pool) for tenant in tenants},
            tenants_waiting={tenant: next(per_pool) for tenant in tenants},
            engines={engine: next(per_pool) for engine in engines},
            limits=whole_numbers(dict(zip(limits[::2], limits[1::2], strict=True))),
        )

    async def set_limits(
        self,
        fleet: str,
        fields: Mapping[str, int | str],
        *,
        who: str,
        seed: bool = False,
        learning_ms: int | None = None,
    ) -> int:
        """Write limits, or with `seed` only those without a value; returns how many changed.

        `learning_ms` = 0 is for a fleet on a Redis that is known to be new: it starts without learning.
        """
        if seed:
            await self._plain(self._client.sadd(self.shared.fleets, fleet))
        mode: Literal["seed", "set"] = "seed" if seed else "set"
        return await self._write_limits(fleet, fields, mode, who=who, learning_ms=learning_ms)

    async def restore_limits(
        self, fleet: str, fields: Mapping[str, int | str], *, seen: int, who: str
    ) -> int:
        """Write back what was read at lease clock `seen`, unless Redis knows newer; returns the changes."""
        await self._plain(self._client.sadd(self.shared.fleets, fleet))
        return await self._write_limits(fleet, fields, "restore", who=who, seen=seen)

    async def limits(self, fleet: str) -> dict[str, int]:
        """Return the limits in force; fields that are not whole numbers are left out."""
        return whole_numbers(await self.limit_fields(fleet))

    async def fleets(self) -> list[str]:
        """Return the names of all fleets that were ever seeded."""
        return sorted(await self._plain(self._client.smembers(self.shared.fleets)))

    async def tenants(self) -> list[str]:
        """Return the names of all tenants."""
        return sorted(await self._plain(self._client.smembers(self.shared.tenants)))

    async def add_tenants(self, tenants: Sequence[str]) -> None:
        """Note that these tenants exist."""
        if tenants:
            await self._plain(self._client.sadd(self.shared.tenants, *tenants))

    async def key_version(self) -> KeyVersion:
        """Return what tells one state of the key hashes from another: cheap to compare."""
        epoch, revision = await self._plain(self._client.hmget(self.shared.keys, KEY_FIELDS))
        fields = await self._plain(self._client.hlen(self.shared.keys))
        return KeyVersion(epoch=epoch or "", revision=int(revision or 0), fields=int(fields))

    async def key_copy(self) -> tuple[KeyVersion, dict[str, str]]:
        """Return every key hash with its tenant, empty when revoked, the notes, and the version of it all.

        As of one instant. No epoch: Redis has lost them, or never had any.
        """
        fields: dict[str, str] = await self._plain(self._client.hgetall(self.shared.keys))
        version = KeyVersion(
            epoch=fields.get("#epoch", ""), revision=int(fields.get("#revision", 0)), fields=len(fields)
        )
        return version, {field: tenant for field, tenant in fields.items() if field not in KEY_FIELDS}

    async def seed_keys(self, hashes: Mapping[str, str], *, revision: int = 0) -> int:
        """Add key hashes that are not there; a newer revision than Redis has overwrites the others too."""
        words = [word for pair in hashes.items() for word in pair]
        keys, args = {"keys": self.shared.keys}, {"revision": revision}
        changed: int = await self._run("seed_keys", keys, args, words)
        return changed

    async def forget(self, fleet: str, holder: str) -> None:
        """End the session of a holder that stops; it has told all that it had to tell."""
        keys = self.keys(fleet)
        await self._plain(self._client.zrem(keys.gateways, holder))
        await self._plain(self._client.srem(keys.draining, holder))

    async def ping(self) -> None:
        """Return when Redis answers; raise Unavailable when it does not."""
        await self._plain(self._client.ping())

    async def _write_limits(
        self,
        fleet: str,
        fields: Mapping[str, int | str],
        mode: str,
        *,
        who: str,
        seen: int = 0,
        learning_ms: int | None = None,
    ) -> int:
        args: dict[str, Arg] = {"mode": mode, "who": who, "seen": seen}
        if learning_ms is not None:
            args["learning_ms"] = learning_ms
        words: list[Arg] = [word for pair in fields.items() for word in pair]
        named = self._named(fleet, set_at=self.keys(fleet).set_at)
        changed: int = await self._run("set_limits", named, args, words)
        return changed


def whole_numbers(texts: Mapping[str, str]) -> dict[str, int]:
    """Keep the whole numbers: people edit these by hand, and a typing error must not stop a gateway."""
    return {field: int(text) for field, text in texts.items() if text.lstrip("-").isdigit()}
