"""One fleet as one process renews it: the tick, what its answer means, and the limits it last saw."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

import structlog

from services.permits.clock import monotonic
from services.permits.clockwatch import ClockWatch
from services.permits.events import Cause, Listener
from services.permits.holdings import Holdings
from services.permits.model import Cut, FleetPolicy, LeaseTimes, Ticked, Unknown
from services.permits.permit import Permit
from services.permits.store import LEASES_PER_TICK_MAX, Store, whole_numbers
from services.permits.waiters import Handed, News, Waiters

# How often the deadlines of leases are looked at.
WATCHES_PER_TICK: Final = 4

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class FleetView:
    """What the last acknowledged tick said. Replaced as a whole, so any thread may read it."""

    epoch: str
    clock: int
    grant: int
    gateways: int
    learning_until_s: float
    limits: Mapping[str, int] = field(default_factory=dict)
    # The same as it is written: also what is no number, and what was taken back and must stay so.
    fields: Mapping[str, str] = field(default_factory=dict)
    # The lease clock at which `limits` were read: of two memories of the same fleet the later one is right.
    limits_seen: int = 0

    @property
    def learning_s(self) -> float:
        """Return how many seconds of the learning window are left."""
        return max(0.0, self.learning_until_s - monotonic())


class Renewal:
    """Runs in the ticker's loop; `view` may be read from any thread."""

    def __init__(
        self,
        fleet: str,
        *,
        policy: FleetPolicy,
        times: LeaseTimes,
        store: Store,
        holdings: Holdings,
        waiters: Waiters,
        holder: str,
        listener: Listener,
        lose: Callable[[list[Permit]], None],
        tell: Callable[[str, list[tuple[str, News]]], None],
    ) -> None:
        """`lose` takes permits whose lease is over under `lost_lease = "stop"`, `tell` what Redis said."""
        self.fleet = fleet
        self.policy = policy
        self.view: FleetView | None = None
        self.due_s = 0.0
        self._watch_s = times.tick_ms / 1000 / WATCHES_PER_TICK
        self._times = times
        self._store = store
        self._holdings = holdings
        self._waiters = waiters
        self._holder = holder
        self._listener = listener
        self._lose = lose
        self._tell = tell
        self._clock = ClockWatch(gap_s=2 * times.tick_ms / 1000)

    async def tick(self) -> None:
        """Renew what is being read, notice what was lost, and see the limits; raises Unavailable."""
        self.lose_overdue()
        now_s = monotonic()
        permits = [permit for permit in self._holdings.of(self.fleet) if permit.renewed_until_s >= now_s]
        # A gateway that holds nothing ticks too: its session counts for shares and for waiters.
        batches = [permits[n : n + LEASES_PER_TICK_MAX] for n in range(0, len(permits), LEASES_PER_TICK_MAX)]
        for batch in batches or [[]]:
            answer = await self._renew(batch)
        await self._see_limits(answer)

    def lose_overdue(self) -> None:
        """Under `lost_lease = "stop"`: end what was not renewed for one ttl, before somebody has its place.

        What would end before the next look is given up at this one: streams must be over by their deadline.
        """
        if self.policy.lost_lease != "stop":
            return
        next_look_s = monotonic() + self._watch_s
        overdue = [permit for permit in self._holdings.of(self.fleet) if next_look_s > permit.deadline_s]
        for permit in overdue:
            self._holdings.remove(permit)
        if overdue:
            log.warning("leases_lost", fleet=self.fleet, leases=[permit.id for permit in overdue])
            self._lose(overdue)

    async def _renew(self, batch: list[Permit]) -> Ticked:
        leases = [permit.held() for permit in batch]
        # By what is sent: the owner may change its phase meanwhile.
        news = frozenset(
            held.lease for permit, held in zip(batch, leases, strict=True) if held.phase != permit.told_phase
        )
        # From before the call: what Redis counts from its arrival is surely later.
        sent_s = monotonic()
        waiters = self._waiters.of(self.fleet)
        answer = await self._store.tick(
            self.fleet, holder=self._holder, leases=leases, news=news, waiters=waiters
        )
        for permit, held in zip(batch, leases, strict=True):
            permit.told_phase = held.phase
        self._watch_clock(sent_s, answer)
        self._explain(batch, answer)
        # A call that was held up may have revived what was given away meanwhile.
        self.lose_overdue()
        in_line = set(waiters) - set(answer.granted) - set(answer.gone)
        self._waiters.still(self.fleet, in_line, sent_s, answer.stamp)
        for permit in batch:
            permit.deadline_s = sent_s + self._times.ttl_ms / 1000
        told: list[tuple[str, News]] = [
            *((lease, Cut(reason)) for lease, reason in answer.cut.items()),
            *((lease, Handed(granted, sent_s)) for lease, granted in answer.granted.items()),
            *((lease, Unknown()) for lease in answer.gone),
        ]
        if told:
            self._tell(self.fleet, told)
        return answer

    def _watch_clock(self, sent_s: float, answer: Ticked) -> None:
        rate = self._clock.look(sent_s, answer.clock, answer.stamp.epoch)
        if rate is None:
            return
        event = "lease_clock_off" if self._clock.is_off else "lease_clock_right"
        log.warning(
            event,
            fleet=self.fleet,
            rate=round(rate, 2),
            why="leases end on the wall clock of the Redis server, which should run at the speed of ours",
        )

    def _explain(self, batch: list[Permit], answer: Ticked) -> None:
        """Say why each missing lease was missing; Redis has them again by now."""
        if not answer.missing:
            return
        # When the answer came, not when the call was begun: it may have been sent again after an outage.
        now_s = monotonic()
        known = {permit.id: permit for permit in batch}
        causes: Counter[Cause] = Counter()
        for lease in answer.missing:
            if self.view is not None and self.view.epoch != answer.stamp.epoch:
                cause: Cause = "lost_epoch"
            elif now_s > known[lease].deadline_s:
                cause = "reaped_late"
            else:
                cause = "lost_write"
            causes[cause] += 1
            log.warning(
                "lease_reasserted", fleet=self.fleet, lease=lease, tenant=known[lease].tenant, cause=cause
            )
        for cause, count in causes.items():
            self._listener.reasserted(self.fleet, cause, count)

    async def _see_limits(self, answer: Ticked) -> None:
        before = self.view
        fields = await self._store.limit_fields(self.fleet)
        lost = before is not None and before.epoch != answer.stamp.epoch
        if before is None or lost or "total" not in fields:
            if before is not None and before.fields:
                # With the epoch intact it is the hash alone that is gone, and nobody saw anything newer.
                since = before.limits_seen if lost else answer.clock
                # Without the file: seeded into data that was lost again since, its values would look newer.
                await self._store.restore_limits(self.fleet, before.fields, seen=since, who=self._holder)
            else:
                await self._store.set_limits(self.fleet, self.policy.limits, who=self._holder, seed=True)
            fields = await self._store.limit_fields(self.fleet)
        seen = answer.clock
        if before is not None and "total" not in fields:
            # Lost again since they were written: what we remember is the better copy.
            fields, seen = dict(before.fields), before.limits_seen
        self.view = FleetView(
            epoch=answer.stamp.epoch,
            clock=answer.clock,
            grant=answer.stamp.grant,
            gateways=max(1, answer.gateways),
            learning_until_s=monotonic() + answer.learning_ms / 1000,
            limits=whole_numbers(fields),
            fields=fields,
            limits_seen=seen,
        )
