"""Takes one permit: asks Redis, stands in line, or decides alone while Redis is away."""

import asyncio
import itertools
from collections.abc import Mapping
from typing import Final

import msgspec

from services.permits.clock import monotonic
from services.permits.errors import OutOfMemory, RefusalCode, Refused, Unavailable
from services.permits.events import Listener
from services.permits.lane import Lane
from services.permits.model import (
    Answer,
    Closed,
    Cut,
    Demand,
    FleetPolicy,
    Full,
    Granted,
    Learning,
    LeaseTimes,
    Queued,
    Stamp,
)
from services.permits.permit import Permit
from services.permits.renewal import FleetView
from services.permits.share import admit
from services.permits.states import Move, State
from services.permits.store import Store
from services.permits.ticker import Ticker
from services.permits.turns import Turns
from services.permits.waiters import Handed, Waiter

# How long a new request waits for the ticker's verdict after a call to Redis failed. A blip costs nobody
# an answer; while Redis stays away only the first requests wait at all.
VERDICT_S: Final = 0.3
# How long one call to Redis may take. With the verdict it is what a request waits when Redis is swallowed by
# the network, and that sum has to stay well below 1.5 s.
CALL_S: Final = 0.8
# How long a closing gate waits for answers that nobody waits for any more: a little longer than one call.
LAST_ANSWERS_S: Final = 1.2

# How many acquires of a fleet may be under way: Redis does so many in a few milliseconds, and a burst
# that waits here can still be taken back.
AT_ONCE_MAX: Final = 64


# How often one that was frozen while it asked asks in all: the same id is told whether its lease still lives.
ASKED_WHEN_LATE: Final = 2

# Made once: an expression of types is put together anew each time it is come by.
_NO: Final = Full | Learning | Closed


class Acquirer:
    """One per gate; runs in the gate's event loop."""

    def __init__(
        self,
        *,
        store: Store,
        ticker: Ticker,
        holder: str,
        times: LeaseTimes,
        fleets: Mapping[str, FleetPolicy],
        listener: Listener,
    ) -> None:
        """Use what the gate owns."""
        self._store = store
        self._ticker = ticker
        self._holder = holder
        self._provisional_s = times.provisional_ms / 1000
        # What is left of a provisional lease then has to last until a tick has renewed it.
        self._held_up_max_s = self._provisional_s - times.tick_ms / 1000 - CALL_S
        self._ttl_s = times.ttl_ms / 1000
        self._fleets = fleets
        self._listener = listener
        self._sequence = itertools.count(1)
        self._turns = {fleet: Turns(AT_ONCE_MAX) for fleet in fleets}
        # What is awaited for callers who left before their answer.
        self._left: set[asyncio.Future[None]] = set()

    async def take(self, demand: Demand) -> Permit:
        """Take a permit that the caller must close; see `Gate.hold` for what may be raised."""
        permit = Permit(f"{self._holder}~{demand.tail or next(self._sequence)}", demand, self._ticker)
        answer = await (self._queue(permit) if demand.patience_ms else self._ask(permit))
        if isinstance(answer, _NO):
            permit.move(Move.REFUSE)
            raise self._refusal(demand.fleet, answer)
        if permit.state is State.LOST:
            # This process was frozen just here, and the ticker's thread saw it first.
            permit.close()
            message = "its lease ran out before the request began"
            raise self._refused(demand.fleet, Refused("admission_unavailable", message=message))
        return permit

    async def _queue(self, permit: Permit) -> Answer | None:
        """Ask, and stand in line for as long as the demand's patience lasts."""
        waiters, fleet = self._ticker.waiters, permit.fleet
        give_up_s = monotonic() + permit.demand.patience_ms / 1000
        stood_in_line = False
        try:
            while True:
                # Before the call: the grant may be published before its answer is read.
                waiter = waiters.join(fleet, permit.id)
                answer = await self._ask(permit, waiter)
                if isinstance(answer, Queued):
                    if await self._stand_in_line(permit, waiter, give_up_s, answer.waiting):
                        return answer
                    stood_in_line = True
                elif stood_in_line and isinstance(answer, Learning) and _learns_until_s(answer) < give_up_s:
                    # As many as the line holds, so they may; newcomers are told to come back.
                    await asyncio.sleep(answer.left_ms / 1000)
                else:
                    return answer
                # Redis lost the line; what is left of the patience is spent in the new one.
                left_ms = int((give_up_s - monotonic()) * 1000)
                permit.demand = msgspec.structs.replace(permit.demand, patience_ms=max(1, left_ms))
        finally:
            waiters.leave(fleet, permit.id)

    async def _ask(self, permit: Permit, waiter: Waiter | None = None) -> Answer | None:
        """Ask Redis; None: decided without it. Cancelled, it gives back what Redis grants all the same."""
        try:
            try:
                return await self._ask_once(permit, waiter)
            except OutOfMemory:
                raise
            except Unavailable:
                # Once more, after what the ticker could mend. The same id: if the first call was carried out
                # after all, this one gets its answer.
                self._ticker.lanes[permit.fleet].suspect()
                return await self._ask_once(permit, waiter)
        except asyncio.CancelledError:
            self._leave(permit)
            raise
        except OutOfMemory:
            # Redis is there: whoever decided alone now would admit beside those whom Redis counts.
            permit.move(Move.REFUSE)
            message = "admission is unavailable: Redis is out of memory"
            refused = Refused("admission_unavailable", message=message)
            raise self._refused(permit.fleet, refused) from None
        except Unavailable:
            self._take_share(permit)
            return None

    async def last_answers(self) -> None:
        """Wait, for a bounded time, until it is known what callers who left were granted."""
        if self._left:
            await asyncio.wait(self._left, timeout=LAST_ANSWERS_S)

    def _leave(self, permit: Permit) -> None:
        """Release the id as soon as no acquire of it can still be carried out."""
        permit.move(Move.LEAVE)
        settled = self._store.settled()
        if settled.done():
            self._release_blind(permit)
        else:
            self._left.add(settled)
            settled.add_done_callback(lambda settled: self._give_up(permit, settled))

    async def _ask_once(self, permit: Permit, waiter: Waiter | None) -> Answer:
        fleet, turns = permit.fleet, self._turns[permit.fleet]
        lane = self._ticker.lanes[fleet]
        if not lane.up.is_set():
            await _verdict(lane)
        view = lane.renewal.view
        if turns.free:
            turns.free -= 1
        else:
            await turns.come()
        try:
            if not lane.up.is_set():
                # It went while this one waited for its turn.
                await _verdict(lane)
            for _ in range(ASKED_WHEN_LATE):
                # A lease that this call is granted begins later.
                sent_s = monotonic()
                answer = await self._store.acquire(permit.demand, lease=permit.id, holder=self._holder)
                is_late = isinstance(answer, Granted) and not self._in_time(sent_s)
                if not is_late:
                    break
        finally:
            turns.end()
        self._notice(fleet, view, answer.stamp)
        if is_late:
            raise Unavailable("the answers of Redis come too late")
        if isinstance(answer, Granted):
            self._hold(permit, answer, sent_s, "granted")
        elif waiter is not None and isinstance(answer, Queued):
            waiter.still(sent_s, answer.stamp)
        return answer

    async def _stand_in_line(self, permit: Permit, waiter: Waiter, give_up_s: float, waiting: int) -> bool:
        """Wait for the grant; True: held. False: the line was lost. Raises Refused when patience ends.

        `waiting` is how many stood in line when it joined, itself included.
        """
        fleet = permit.fleet
        try:
            async with asyncio.timeout(max(0.0, give_up_s - monotonic())):
                news = await waiter.future
                while isinstance(news, Granted | Handed):
                    since_s = waiter.granted_since_s(news)
                    if since_s is not None and self._in_time(since_s):
                        granted = news.granted if isinstance(news, Handed) else news
                        self._hold(permit, granted, since_s, "queued")
                        return True
                    # The answer to a tick says what holds now, and lengthens what still lives.
                    waiter.wait_on()
                    self._ticker.tick_soon(fleet)
                    news = await waiter.future
        except TimeoutError:
            self._step_out(permit)
            message = f"no place came free in time; {waiting} stood in line when it joined"
            late = Refused("queue_timeout", pool="line", waiting=waiting, message=message)
            raise self._refused(fleet, late) from None
        except asyncio.CancelledError:
            self._step_out(permit)
            raise
        if isinstance(news, Cut):
            self._step_out(permit)
            raise self._refused(
                fleet, Refused("forbidden", message=f"the request was ended while it waited: {news.reason}")
            )
        return False

    def _in_time(self, since_s: float) -> bool:
        """Whether a provisional lease that began at `since_s` or later surely lives until a tick renews it.

        A grant that was held up longer on its way here must not begin: its place may be somebody else's.
        """
        return monotonic() - since_s <= self._held_up_max_s

    def _hold(self, permit: Permit, answer: Granted, sent_s: float, outcome: str) -> None:
        permit.granted(answer, deadline_s=sent_s + self._provisional_s)
        if permit.state is State.HELD:
            self._ticker.enroll(permit)
            self._listener.admission(permit.fleet, outcome)

    def _step_out(self, permit: Permit) -> None:
        """Leave the line; whatever was granted meanwhile goes to the next in the same script."""
        permit.move(Move.LEAVE)
        self._release_blind(permit)

    def _notice(self, fleet: str, view: FleetView | None, stamp: Stamp) -> None:
        """Tick at once when Redis lost its data, or is an older copy of itself, since the last tick."""
        if view is not None and (stamp.epoch != view.epoch or stamp.grant < view.grant):
            self._ticker.tick_soon(fleet)

    def _take_share(self, permit: Permit) -> None:
        """Decide without Redis, as the fleet's policy says."""
        fleet = permit.fleet
        view = self._ticker.view(fleet)
        if self._fleets[fleet].redis_loss == "closed" or view is None or view.learning_s > 0:
            self._step_out(permit)
            message = "admission is unavailable: Redis does not answer"
            raise self._refused(fleet, Refused("admission_unavailable", message=message))
        answer = admit(permit.demand, view, self._ticker.holdings.of(fleet))
        if isinstance(answer, Full):
            self._step_out(permit)
            raise self._refusal(fleet, answer)
        permit.granted(answer, deadline_s=monotonic() + self._ttl_s)
        self._ticker.enroll(permit)
        self._listener.admission(fleet, "granted")

    def _give_up(self, permit: Permit, settled: asyncio.Future[None]) -> None:
        self._left.discard(settled)
        self._release_blind(permit)

    def _release_blind(self, permit: Permit) -> None:
        """Release an id whose acquire may or may not have been carried out."""
        permit.move(Move.GRANT)
        self._ticker.freed(permit)

    def _refusal(self, fleet: str, answer: Full | Learning | Closed) -> Refused:
        match answer:
            case Full(pool=pool, in_use=in_use, limit=limit, waiting=waiting):
                refused = Refused(_code_of(pool), pool=pool, in_use=in_use, limit=limit, waiting=waiting)
            case Learning(left_ms=left_ms):
                message = (
                    f"fleet {fleet} is finding out what runs after Redis lost its data; {left_ms} ms left"
                )
                refused = Refused("recovering", wait_ms=left_ms, message=message)
            case Closed():
                refused = Refused(
                    "admission_unavailable", message=f"fleet {fleet} has no limits in Redis yet"
                )
        return self._refused(fleet, refused)

    def _refused(self, fleet: str, refused: Refused) -> Refused:
        self._listener.admission(fleet, refused.code)
        return refused


async def _verdict(lane: Lane) -> None:
    """Return when the fleet's Redis is up; raise Unavailable when it was away for more than VERDICT_S."""
    now_s = monotonic()
    since_s = now_s if lane.down_since_s is None else lane.down_since_s
    try:
        async with asyncio.timeout(max(0.0, since_s + VERDICT_S - now_s)):
            await lane.up.wait()
    except TimeoutError:
        # In a loop that was busy, the word that it is up and the end of the wait come in one turn.
        if not lane.up.is_set():
            raise Unavailable("Redis does not answer") from None


def _learns_until_s(answer: Learning) -> float:
    """Return when a learning window ends, in monotonic seconds."""
    return monotonic() + answer.left_ms / 1000


def _code_of(pool: str) -> RefusalCode:
    if pool == "cold":
        return "cold_pool_full"
    if pool == "line":
        return "line_full"
    return "tenant_quota" if pool.startswith("tenant:") else "total_pool_full"
