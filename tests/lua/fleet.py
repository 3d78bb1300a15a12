"""One fleet, asked script by script and looked at key by key: no store, no gate, raw replies."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import groupby, islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from redis.exceptions import NoScriptError

from services.permits.keys import FleetKeys
from services.permits.model import LeaseTimes
from services.permits.scripts import load

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import redis

    from services.permits.scripts import Arg

# Long, so that no pause of a busy machine moves a lease from one side of its expiry to the other.
TIMES: Final = LeaseTimes(ttl_ms=600_000, tick_ms=100_000, provisional_ms=300_000, learning_ms=240_000)
# What real time may have passed between two lines of a test.
SLACK_MS: Final = 60_000

HOLDER: Final = "g1~a1"
EPOCH, GRANT = 1, 2  # where every reply has them

_ADVANCE: Final = "#!lua flags=allow-oom\nreturn redis.call('HINCRBY', KEYS[1], 'clock', ARGV[1])"


class Lease(NamedTuple):
    """One lease as its gateway tells of it in a tick; those of one group are sent together."""

    id: str
    group: tuple[str, str, str]  # tenant, engine, c or -
    facts: str
    phase: str
    news: bool


@dataclass(frozen=True)
class Told:
    """What a tick answered beyond its stamp, clock and figures."""

    missing: list[str] = field(default_factory=list)
    cut: dict[str, str] = field(default_factory=dict)
    # lease -> class, engine, grant
    granted: dict[str, tuple[str, str, int]] = field(default_factory=dict)
    gone: list[str] = field(default_factory=list)


def told(reply: list[Any]) -> Told:
    """Read the lists at the end of a tick's reply."""
    assert reply[0] == "TICKED"
    missing, cut, granted = reply[6:9]
    words = iter(reply[9:])
    return Told(
        missing=list(islice(words, missing)),
        cut={next(words): next(words) for _ in range(cut)},
        granted={next(words): (next(words), next(words), next(words)) for _ in range(granted)},
        gone=list(words),
    )


class RawFleet:
    """Calls scripts with the arguments of their headers. Time is moved by editing the lease clock."""

    def __init__(self, client: redis.Redis, *, times: LeaseTimes = TIMES, name: str = "f") -> None:
        # redis-py types each command as sync or async, bytes or text.
        self.client: Any = client
        self.times = times
        self.keys = FleetKeys("tenure", name)
        self.scripts = load()
        self.nonces = 0

    def run(
        self,
        verb: str,
        *rest: Arg,
        keys: Mapping[str, str] | None = None,
        args: Mapping[str, Arg] | None = None,
    ) -> list[Any]:
        """Run one script; `keys` and `args` by the names of its header, beside those every script shares."""
        self.nonces += 1
        shared = ("meta", "limits", "total", "cold", "gateways", "events", "waiting", "draining")
        named: dict[str, Arg] = {
            "nonce": f"epoch{self.nonces}",
            "tick_ms": self.times.tick_ms,
            "learning_ms": self.times.learning_ms,
            "ttl_ms": self.times.ttl_ms,
            "provisional_ms": self.times.provisional_ms,
            **(args or {}),
        }
        script = self.scripts[verb]
        places = {**{name: getattr(self.keys, name) for name in shared}, **(keys or {})}
        where, words = script.arrange(places, named, rest)
        try:
            reply: list[Any] = self.client.evalsha(script.sha, len(where), *where, *words)
        except NoScriptError:
            reply = self.client.eval(script.text, len(where), *where, *words)
        return reply

    # --- the verbs

    def open(self, **limits: int) -> RawFleet:
        """Start a fleet that is known to be new; by default two engines and more room than a test needs."""
        fields = {"total": 100, "cold": 100, "tenant_default": 100, **limits}
        self.set_limits(fields, mode="seed", args={"learning_ms": 0})
        return self

    def set_limits(
        self,
        fields: Mapping[str, Arg],
        *,
        mode: str = "set",
        who: str = "admin",
        seen: int = 0,
        args: Mapping[str, Arg] | None = None,
    ) -> list[Any]:
        words = [word for pair in fields.items() for word in pair]
        named = {"mode": mode, "who": who, "seen": seen, **(args or {})}
        return self.run("set_limits", *words, keys={"set_at": self.keys.set_at}, args=named)

    def acquire(
        self,
        lease: str,
        tenant: str = "acme",
        *,
        engines: Iterable[str] = ("e1",),
        prefixes: Iterable[str] = (),
        holder: str = HOLDER,
        patience_ms: int = 0,
    ) -> list[Any]:
        engines = tuple(engines)
        return self.run(
            "acquire",
            *engines,
            *prefixes,
            args={
                "lease": lease,
                "holder": holder,
                "tenant": tenant,
                "request_id": f"req-{lease}",
                "patience_ms": patience_ms,
                "engine_count": len(engines),
            },
        )

    def tick(self, *held: Lease, holder: str = HOLDER, waiters: Iterable[str] = ()) -> list[Any]:
        """Renew what `held` made, and ask what became of `waiters`."""
        groups: list[Arg] = []
        for group, members in groupby(held, lambda one: one.group):
            leases = [one.id for one in members]
            groups += (*group, len(leases), *leases)
        news = [word for one in held if one.news for word in (one.id, one.phase)]
        args: dict[str, Arg] = {
            "holder": holder,
            "lease_count": len(held),
            "news_count": len(news) // 2,
            "facts": "\n".join(one.facts for one in held),
        }
        return self.run("tick", *groups, *news, *waiters, args=args)

    def downgrade(self, *leases: str) -> list[Any]:
        return self.run("downgrade", *leases)

    def release(self, *leases: str, tenant: str = "acme", engine: str = "e1") -> list[Any]:
        return self.run("release", *(word for lease in leases for word in (lease, tenant, engine)))

    def move(self, lease: str, *engines: str) -> list[Any]:
        return self.run("move", *engines, keys={"record": self.keys.lease(lease)}, args={"lease": lease})

    def reap(self, pools: Iterable[str] = (), records: Iterable[str] = ()) -> list[Any]:
        pools = tuple(pools)
        keys = {"reported": self.keys.reported}
        return self.run("reap", *pools, *records, keys=keys, args={"pool_count": len(pools)})

    def witness(
        self, engine: str, prefixes: Mapping[str, bool], *, keep_ms: int = 900_000, most: int = 100
    ) -> list[Any]:
        words = [word for prefix, cached in prefixes.items() for word in (prefix, int(cached))]
        return self.run(
            "witness",
            *words,
            keys={"evidence": self.keys.evidence(engine)},
            args={"keep_ms": keep_ms, "most": most},
        )

    def revoke(
        self, lease: str = "", *, request_id: str = "", tenant: str = "", reason: str = "revoked"
    ) -> list[Any]:
        names = {"lease": lease, "request_id": request_id, "tenant": tenant, "reason": reason}
        return self.run("revoke", args={**names, "who": "admin"})

    def line(self, most: int = 1000) -> list[Any]:
        return self.run("line", args={"most": most})

    def count(self, *pools: str) -> list[Any]:
        return self.run("count", *pools)

    def inspect(self, most: int = 1000) -> list[Any]:
        return self.run("inspect", args={"most": most})

    # --- time

    @property
    def now(self) -> int:
        """The lease clock as last written."""
        return int(self.meta("clock"))

    def advance(self, ms: int) -> None:
        """Let this much time pass on the lease clock, also when Redis is out of memory."""
        self.client.eval(_ADVANCE, 1, self.keys.meta, ms)

    def expire_provisional(self) -> None:
        """Let provisional leases lapse, and nothing that a tick renewed."""
        self.advance(self.times.provisional_ms + 1)

    def expire_all(self) -> None:
        """Let everything lapse that is not renewed."""
        self.advance(self.times.ttl_ms + 1)

    # --- what an engineer with redis-cli sees

    def meta(self, field: str) -> str:
        return str(self.client.hget(self.keys.meta, field))

    def pool(self, name: str) -> dict[str, int]:
        """Return lease -> expiry, overdue members included."""
        members: list[tuple[str, float]] = self.client.zrange(self.keys.pool(name), 0, -1, withscores=True)
        return {lease: int(expiry) for lease, expiry in members}

    def live(self, name: str = "total") -> set[str]:
        """Return the leases of a pool that count at the clock's last value."""
        return {lease for lease, expiry in self.pool(name).items() if expiry > self.now}

    def record(self, lease: str) -> dict[str, str]:
        facts: dict[str, str] = self.client.hgetall(self.keys.lease(lease))
        return facts

    def events(self, kind: str) -> list[dict[str, str]]:
        entries: list[tuple[str, dict[str, str]]] = self.client.xrange(self.keys.events)
        return [fields for _, fields in entries if fields["kind"] == kind]

    def dump(self) -> dict[str, Any]:
        """Return everything this Redis holds."""
        client = self.client
        read = {
            "hash": client.hgetall,
            "zset": lambda key: client.zrange(key, 0, -1, withscores=True),
            "stream": client.xrange,
            "set": client.smembers,
            "string": client.get,
        }
        return {key: read[client.type(key)](key) for key in sorted(client.scan_iter("*"))}

    def no_trace_of(self, lease: str) -> bool:
        """Say whether no pool and no record knows the lease."""
        client = self.client
        return not client.exists(self.keys.lease(lease)) and all(
            client.zscore(pool, lease) is None for pool in client.scan_iter(self.keys.pool("*"))
        )


def held(
    lease: str,
    tenant: str = "acme",
    *,
    class_: str = "cold",
    engine: str = "e1",
    phase: str = "prefill",
    cold: bool = True,
    news: bool = False,
) -> Lease:
    """Return one lease as its gateway tells of it in a tick."""
    facts = f"req-{lease} {class_} {phase} 1700000000000"
    return Lease(lease, (tenant, engine, "c" if cold else "-"), facts, phase, news)
