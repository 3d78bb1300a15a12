"""Everything that can go wrong with a permit, as one tree.

PermitError
|-- Refused          no, with a reason: an expected answer, carried out of `Gate.hold`
|-- Unavailable      Redis cannot be asked right now; the outcome of the call is unknown
|   `-- OutOfMemory  Redis answers and has no memory left: nothing was written
|-- Unusable         this Redis can never work (too old, or it evicts keys); stop and say so
|-- BadReply         a script answered what its header does not promise: a defect
|-- BadName          a name that must not reach a Redis key
|-- BadLimits        a value that an administrator may not write
|-- NotFound         administration of something that is not there
`-- BadMove          a permit was asked for a move that its table does not know: a defect
"""

from typing import Final, Literal, get_args

RefusalCode = Literal[
    "tenant_quota",
    "cold_pool_full",
    "total_pool_full",
    "line_full",
    "queue_timeout",
    "forbidden",
    "admission_unavailable",
    "recovering",
    "draining",
]
REFUSAL_CODES: Final[frozenset[str]] = frozenset(get_args(RefusalCode))


class PermitError(Exception):
    """The root; never raised itself."""


class Refused(PermitError):
    """No permit, and why.

    `pool` names the pool that was full ("total", "cold", "tenant:acme", "engine:e1"; empty when no
    pool is the reason), `in_use` and `limit` its figures at that instant. `wait_ms` is how long the
    reason is known to last (the rest of a learning window), 0 when nobody can know. `waiting` is how many
    stand in line.
    """

    def __init__(
        self,
        code: RefusalCode,
        *,
        pool: str = "",
        in_use: int = 0,
        limit: int = 0,
        wait_ms: int = 0,
        waiting: int = 0,
        message: str = "",
    ) -> None:
        """Keep the figures; the message defaults to a sentence made from them."""
        self.code: RefusalCode = code
        self.pool = pool
        self.in_use = in_use
        self.limit = limit
        self.wait_ms = wait_ms
        self.waiting = waiting
        in_line = f", {waiting} in line" if waiting else ""
        super().__init__(message or f"{code}: pool {pool} is at {in_use} of {limit}{in_line}")


class Unavailable(PermitError):
    """Redis did not answer in time, or refused the command for a reason of its own."""


class OutOfMemory(Unavailable):
    """Redis is at its maxmemory and refused the command before it wrote anything; others may pass."""


class Unusable(PermitError):
    """This Redis cannot hold leases; the message is one line with the cure."""


class BadReply(PermitError):
    """A script's reply does not match its header."""

    def __init__(self, verb: str, reply: object) -> None:
        """Name the verb and show the reply, shortened."""
        super().__init__(f"{verb}: unexpected reply {str(reply)[:200]}")


class BadName(PermitError, ValueError):
    """A name outside the allowed shape; the message states the rule."""


class BadLimits(PermitError, ValueError):
    """A value outside its bounds, or an unknown limit; the message names the field and the rule."""

    def __init__(self, field: str, rule: str) -> None:
        """`rule` completes the sentence that begins with the field."""
        super().__init__(f"{field} {rule}")
        self.field = field


class NotFound(PermitError):
    """What was to be shown, changed or ended is not there; the message says what."""


class BadMove(PermitError):
    """A move that the permit's table does not have."""
