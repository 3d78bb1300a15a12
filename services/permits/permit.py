"""One permit, as its holder sees it.

Whoever asked for it owns it, and gives it back once, by `close`. All methods are synchronous and none of
them talks to Redis: they append to the outbox, so they are safe in a `finally`, under cancellation and in
a destructor. A permit whose lease was lost closes like any other; that changes nothing in Redis.
"""

from collections.abc import Callable
from typing import Protocol

from services.permits.clock import wall_ms
from services.permits.model import Class, Demand, Gone, Granted, Held, Phase
from services.permits.states import Move, State, after


class Keeper(Protocol):
    """What a permit needs of the process that renews it."""

    def freed(self, permit: "Permit") -> None:
        """Stop renewing the permit and release it in Redis."""

    def downgraded(self, permit: "Permit") -> None:
        """Give back the cold place in Redis."""


class Permit:
    """The right to run one request. Made by `Gate`; see `Gate.hold`."""

    __slots__ = (
        "_keeper",
        "acquired_at",
        "class_",
        "cold",
        "deadline_s",
        "demand",
        "engine",
        "engines_left",
        "fleet",
        "grant",
        "id",
        "on_cut",
        "on_released",
        "phase",
        "renewed_until_s",
        "request_id",
        "state",
        "tenant",
        "told_phase",
    )

    def __init__(self, lease: str, demand: Demand, keeper: Keeper) -> None:
        """Begin as asked for. The id is made before the call, so an unknown outcome can be released."""
        self.id = lease
        self.demand = demand
        self.fleet, self.tenant, self.request_id = demand.fleet, demand.tenant, demand.request_id
        self._keeper = keeper
        self.state = State.ASKED
        self.class_: Class = "cold"
        self.engine = ""
        self.engines_left: tuple[str, ...] = ()
        self.grant = 0
        self.cold = False
        # Where the request is, and what of that Redis knows; shown to people, decides nothing.
        self.phase: Phase = "granted"
        self.told_phase: Phase = "granted"
        self.acquired_at = 0
        # Monotonic seconds. Until `deadline_s` the lease is surely alive in Redis; the ticker renews it while
        # `renewed_until_s` is ahead, which the owner pushes on as long as the stream is really being read: a
        # hung stream must lose its lease.
        self.deadline_s = 0.0
        self.renewed_until_s = float("inf")
        # Called in the event loop with the end reason when somebody or something else ends the request.
        self.on_cut: Callable[[str], None] | None = None
        self.on_released: Callable[[float], None] | None = None

    def granted(self, answer: Granted, *, deadline_s: float) -> None:
        """Become held. `deadline_s` is counted from before the acquire was sent."""
        self.state = after(self.state, Move.GRANT)
        self.class_ = answer.class_
        self.cold = answer.class_ == "cold"
        self.engine = answer.engine
        self.grant = answer.stamp.grant
        self.acquired_at = wall_ms()
        self.deadline_s = deadline_s

    def move(self, move: Move) -> None:
        """Make a move of the table; BadMove when it has none."""
        self.state = after(self.state, move)

    def moved(self, engine: str) -> None:
        """Note that the engine place is another one now."""
        if engine != self.engine:
            self.engines_left += (self.engine,)
            self.engine = engine

    def downgrade(self) -> None:
        """Give back the cold place and keep the rest. Idempotent; nothing for a warm permit."""
        if self.cold and self.state is State.HELD:
            self.cold = False
            self._keeper.downgraded(self)

    def close(self) -> None:
        """Give the permit back. Idempotent, synchronous, never fails: capacity returns exactly once."""
        if self.state in (State.HELD, State.LOST):
            self.move(Move.CLOSE)
            # Holder and permit know each other; whoever is last to go must not need a garbage collector.
            self.on_cut = None
            self._keeper.freed(self)

    def held(self) -> Held:
        """Return the facts that a tick re-asserts."""
        return Held(
            lease=self.id,
            request_id=self.request_id,
            tenant=self.tenant,
            class_=self.class_,
            engine=self.engine,
            phase=self.phase,
            acquired_at=self.acquired_at,
            cold=self.cold,
        )

    def gone(self) -> list[Gone]:
        """Return what a release needs; the engine is unknown when the acquire's answer was lost.

        A tick that was on its way during a move may have renewed the old engine place: that goes back too.
        """
        return [
            Gone(lease=self.id, tenant=self.tenant, engine=engine)
            for engine in (self.engine, *self.engines_left)
        ]
