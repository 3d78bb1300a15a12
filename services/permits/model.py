"""The values that cross the library's boundary. Frozen, no I/O.

Times ending in `_ms` are milliseconds; `clock` and `expires` figures are on the fleet's own lease
clock (see lua/README.md), never on this machine's. What each request makes anew is a `msgspec.Struct`:
a frozen dataclass costs several times as much.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import msgspec

Class = Literal["cold", "warm"]
Phase = Literal["granted", "prefill", "decode", "draining"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseTimes:
    """How long leases live; the same for every fleet of a process.

    The relations (ttl >= 6 ticks, provisional >= 2 ticks + 1 s) are checked by the settings.
    """

    ttl_ms: int = 15_000
    tick_ms: int = 2_500
    provisional_ms: int = 6_000
    learning_ms: int = 6_000


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetPolicy:
    """One fleet as its gateways run it. `limits` are the file's fields for the Redis hash."""

    limits: Mapping[str, int]
    cold_until: Literal["end", "first_token"] = "end"
    redis_loss: Literal["share", "closed"] = "share"
    lost_lease: Literal["run_on", "stop"] = "run_on"


class Demand(msgspec.Struct, frozen=True, kw_only=True):
    """What a request asks for.

    `engines` are the candidates, in order of preference on equal load. `prefixes` are hashes of
    prefixes of the prompt, any of which would make it warm on an engine that is known to hold it;
    empty means that nothing can make this request warm. `patience_ms` is how long it would stand in line for
    a place, 0 not at all. `tail` becomes the last part of the lease id and must then be new for every demand
    of the process; empty leaves it to the gate.
    """

    fleet: str
    tenant: str
    request_id: str
    engines: tuple[str, ...]
    prefixes: tuple[str, ...] = ()
    patience_ms: int = 0
    tail: str = ""


class Stamp(msgspec.Struct, frozen=True):
    """What every script reply carries: enough to notice lost data or a lagging replica."""

    epoch: str
    grant: int


class Granted(msgspec.Struct, frozen=True):
    """The permit is the caller's. `grant` orders grants of one epoch."""

    class_: Class
    engine: str
    stamp: Stamp


@dataclass(frozen=True, slots=True)
class Full:
    """A pool has no room; nothing was changed."""

    pool: str
    in_use: int
    limit: int
    stamp: Stamp
    # How many stand in line.
    waiting: int = 0


@dataclass(frozen=True, slots=True)
class Queued:
    """It stands in line with `waiting` others and itself; the grant comes as a message, or with a tick."""

    waiting: int
    stamp: Stamp


@dataclass(frozen=True, slots=True)
class Unknown:
    """What a waiter hears when Redis does not know it any more: it must ask again."""


@dataclass(frozen=True, slots=True)
class Cut:
    """What a holder or a waiter hears when somebody ended its request; `reason` is the end reason."""

    reason: str


@dataclass(frozen=True, slots=True)
class Learning:
    """Redis lost its data; nothing is granted for `left_ms` while holders re-assert."""

    left_ms: int
    stamp: Stamp


@dataclass(frozen=True, slots=True)
class Closed:
    """The fleet has no limits in Redis yet."""

    stamp: Stamp


# What an acquire may answer.
Answer = Granted | Queued | Full | Learning | Closed


class Held(msgspec.Struct, frozen=True):
    """One lease as its holder re-asserts it in a tick: the facts that a lost record is rebuilt from.

    `cold` says whether the cold place is still held (False after a downgrade).
    """

    lease: str
    request_id: str
    tenant: str
    class_: Class
    engine: str
    phase: Phase
    acquired_at: int
    cold: bool


@dataclass(frozen=True, slots=True)
class Ticked:
    """The answer to a tick.

    `missing` leases were not in Redis and have been added; `cut` were ended by somebody; of the waiters some
    were `granted`, and some are `gone` from the line.
    """

    stamp: Stamp
    clock: int
    learning_ms: int
    gateways: int
    missing: tuple[str, ...]
    cut: Mapping[str, str] = field(default_factory=dict)
    granted: Mapping[str, Granted] = field(default_factory=dict)
    gone: tuple[str, ...] = ()


class Gone(msgspec.Struct, frozen=True):
    """One lease to remove. An unknown engine (an acquire whose answer was lost) is ""."""

    lease: str
    tenant: str
    engine: str


class Ended(msgspec.Struct, frozen=True):
    """Why the work of one lease ended, for people."""

    lease: str
    tenant: str
    reason: str


@dataclass(frozen=True, slots=True)
class Reclaim:
    """A lease that was taken back from a holder that stopped renewing it."""

    lease: str
    tenant: str
    holder: str
    class_: str
    engine: str
    age_ms: int


@dataclass(frozen=True, slots=True)
class Reaped:
    """One pass over one fleet. `more` says that another pass would find work at once."""

    reclaimed: tuple[Reclaim, ...]
    settled: int
    drift: int
    more: bool


@dataclass(frozen=True, slots=True)
class KeyVersion:
    """One state of the key hashes: another epoch means that Redis lost its data."""

    epoch: str
    revision: int
    fields: int


@dataclass(frozen=True, slots=True)
class LeaseRow:
    """One live lease as people see it."""

    lease: str
    request_id: str
    tenant: str
    class_: str
    engine: str
    holder: str
    phase: str
    acquired_at: int
    age_ms: int
    expires_in_ms: int


@dataclass(frozen=True, slots=True)
class WaiterRow:
    """One who stands in line, as people see it."""

    lease: str
    request_id: str
    tenant: str
    class_: str
    holder: str
    waited_ms: int
    deadline_in_ms: int


@dataclass(frozen=True, slots=True)
class Counts:
    """Live leases per pool at one instant, with the limits that were in force."""

    epoch: str
    clock: int
    learning_ms: int
    gateways: int
    total: int
    cold: int
    waiting: int = 0
    tenants: Mapping[str, int] = field(default_factory=dict)
    tenants_waiting: Mapping[str, int] = field(default_factory=dict)
    engines: Mapping[str, int] = field(default_factory=dict)
    limits: Mapping[str, int] = field(default_factory=dict)

    @property
    def over_commit(self) -> int:
        """How many leases more than the total limit allows are live; it shrinks as they end."""
        return max(0, self.total - self.limits.get("total", 0)) if self.limits else 0
