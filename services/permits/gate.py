"""The front of the library: ask for a permit, hold it, give it back.

    async with open_gate(redis_url=..., name="g1", fleets=..., ...) as gate:
        async with gate.hold(demand) as permit:
            ...                                  # the work; the permit returns however this block is left

To let something else own the permit (a response body that streams on after the handler returned), enter
`gate.hold` on an `AsyncExitStack` and hand the stack over.
"""

import asyncio
import itertools
import secrets
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Final, TypeVar

from services.permits.clock import monotonic
from services.permits.connect import connect
from services.permits.errors import RefusalCode, Refused, Unavailable
from services.permits.events import Listener, Silent
from services.permits.model import (
    Closed,
    Counts,
    Demand,
    FleetPolicy,
    Full,
    Granted,
    Learning,
    LeaseTimes,
    Stamp,
)
from services.permits.names import check_name
from services.permits.permit import Permit
from services.permits.renewal import FleetView
from services.permits.share import admit
from services.permits.states import Move, State
from services.permits.store import Store
from services.permits.ticker import Ticker

T = TypeVar("T")
Answer = Granted | Full | Learning | Closed
Asking = asyncio.Task[Answer]

# How long a new request waits for the ticker's verdict after a call to Redis failed. A blip costs nobody
# an answer; while Redis stays away only the first requests wait at all.
VERDICT_S: Final = 0.3
# How long one call to Redis may take. With the verdict it is what a request waits when Redis is swallowed by
# the network, and that sum has to stay well below 1.5 s.
CALL_S: Final = 0.8
# How long a closing gate waits for answers that nobody waits for any more: a little longer than one call.
LAST_ANSWERS_S: Final = 1.2
# A gate's connections to Redis; so many of them are kept free of acquires, for counts and moves.
CONNECTIONS_MAX: Final = 20
CONNECTIONS_SPARE: Final = 4


class Gate:
    """Hands out permits to one process. Made by `open_gate`."""

    def __init__(
        self,
        *,
        store: Store,
        ticker: Ticker,
        holder: str,
        times: LeaseTimes,
        fleets: Mapping[str, FleetPolicy],
        listener: Listener,
        acquires_at_once_max: int = CONNECTIONS_MAX - CONNECTIONS_SPARE,
    ) -> None:
        """Use `open_gate`, which also starts the ticker."""
        self.holder = holder
        self._store = store
        self._ticker = ticker
        self._times = times
        self._fleets = fleets
        self._listener = listener
        self._sequence = itertools.count(1)
        # A burst waits here, in order, and not for a connection: that wait is short and its end an outage.
        self._turns = asyncio.Semaphore(acquires_at_once_max)
        # Calls whose caller left before the answer.
        self._left: set[Asking] = set()

    def hold(self, demand: Demand) -> "Hold":
        """Return a context manager whose entry takes a permit and whose exit gives it back.

        Entry raises Refused, or Unavailable when Redis is away and the fleet's policy is `closed`. If the
        entry is cancelled, whatever Redis granted is given back by its id.
        """
        return Hold(self, demand)

    def live(self) -> int:
        """Return how many permits this process holds."""
        return len(self._ticker.holdings)

    def tenant_of(self, key: str) -> str | None:
        """Return whose key this is, None for nobody's; raise Unavailable before the keys were ever read."""
        return self._ticker.directory.tenant_of(key)

    def tenants(self) -> list[str]:
        """Return the names of all tenants with a key, as last read."""
        return self._ticker.directory.tenants()

    def view(self, fleet: str) -> FleetView | None:
        """Return what the fleet's last tick said, limits included; None before the first."""
        return self._ticker.view(fleet)

    def ready(self) -> tuple[bool, str]:
        """Return whether a request could be admitted now, and why not."""
        if not self._ticker.up.is_set():
            return False, "redis unavailable"
        for fleet in self._fleets:
            view = self._ticker.view(fleet)
            if view is None:
                return False, f"fleet {fleet} has not ticked yet"
            if view.learning_s > 0:
                return False, f"fleet {fleet} is learning what runs"
        return True, "ready"

    def witness(self, permit: Permit, prefixes: Mapping[str, bool]) -> None:
        """Note what the permit's engine reported: prefix hash -> was served from its cache."""
        self._ticker.witness(permit.fleet, permit.engine, prefixes)

    async def count(self, fleet: str, tenants: Sequence[str] = (), engines: Sequence[str] = ()) -> Counts:
        """Count live leases now; raises Unavailable."""
        return await _unhurt(self._store.count(fleet, tenants, engines))

    async def move(self, permit: Permit, engines: Sequence[str]) -> bool:
        """Before the first byte: take the permit to another engine with room. False: it stays where it is."""
        answer = await _unhurt(self._store.move(permit.fleet, permit.id, engines))
        if not isinstance(answer, str):
            return False
        permit.moved(answer)
        return True

    async def take(self, demand: Demand) -> Permit:
        """Take a permit that the caller must close; prefer `hold`."""
        permit = Permit(f"{self.holder}~{next(self._sequence)}", demand, self._ticker)
        asking = asyncio.create_task(self._ask(permit))
        try:
            answer = await asyncio.shield(asking)
        except asyncio.CancelledError:
            if permit.state is State.HELD:
                # The answer came in the same turn of the loop as the cancellation.
                permit.close()
            else:
                self._leave(permit, asking)
            raise
        except Unavailable:
            return self._take_share(permit)
        if not isinstance(answer, Granted):
            permit.move(Move.REFUSE)
            raise self._refusal(demand.fleet, answer)
        return permit

    async def last_answers(self) -> None:
        """Wait, for a bounded time, until it is known what callers who left were granted."""
        if self._left:
            await asyncio.wait(self._left, timeout=LAST_ANSWERS_S)

    def _leave(self, permit: Permit, asking: Asking) -> None:
        """Let the call go on without its caller: cut, its reply would be read by somebody else."""
        permit.move(Move.LEAVE)
        self._left.add(asking)
        asking.add_done_callback(lambda asked: self._give_up(permit, asked))

    async def _ask(self, permit: Permit) -> Answer:
        """Ask Redis, once more after a failure that the ticker could mend; never cancelled."""
        try:
            return await self._ask_once(permit)
        except Unavailable:
            if permit.state is State.ABANDONED:
                raise
            self._ticker.suspect()
            # The same id: if the first call was carried out after all, this one gets its answer.
            return await self._ask_once(permit)

    async def _ask_once(self, permit: Permit) -> Answer:
        await self._verdict()
        fleet = permit.fleet
        view = self._ticker.view(fleet)
        async with self._turns:
            # Redis may have gone, or the caller left, while this one waited for its turn.
            await self._verdict()
            if permit.state is State.ABANDONED:
                raise Unavailable("the caller left before Redis was asked")
            sent_s = monotonic()
            answer = await self._store.acquire(permit.demand, lease=permit.id, holder=self.holder)
        self._notice(fleet, view, answer.stamp)
        if isinstance(answer, Granted):
            permit.granted(answer, deadline_s=sent_s + self._times.provisional_ms / 1000)
            if permit.state is State.HELD:
                self._ticker.enroll(permit)
                self._listener.admission(fleet, "granted")
        return answer

    async def _verdict(self) -> None:
        """Return when Redis is up; raise Unavailable when it has been away for longer than VERDICT_S."""
        ticker = self._ticker
        if ticker.up.is_set():
            return
        now_s = monotonic()
        since_s = now_s if ticker.down_since_s is None else ticker.down_since_s
        try:
            async with asyncio.timeout(max(0.0, since_s + VERDICT_S - now_s)):
                await ticker.up.wait()
        except TimeoutError:
            raise Unavailable("Redis does not answer") from None

    def _notice(self, fleet: str, view: FleetView | None, stamp: Stamp) -> None:
        """Tick at once when Redis lost its data, or is an older copy of itself, since the last tick."""
        if view is not None and (stamp.epoch != view.epoch or stamp.grant < view.grant):
            self._ticker.tick_soon(fleet)

    def _take_share(self, permit: Permit) -> Permit:
        """Decide without Redis, as the fleet's policy says."""
        fleet = permit.fleet
        view = self._ticker.view(fleet)
        if self._fleets[fleet].redis_loss == "closed" or view is None or view.learning_s > 0:
            permit.move(Move.LEAVE)
            self._release_blind(permit)
            raise self._refused(
                fleet,
                Refused("admission_unavailable", message="admission is unavailable: Redis does not answer"),
            )
        answer = admit(permit.demand, view, self._ticker.holdings.of(fleet))
        if isinstance(answer, Full):
            permit.move(Move.LEAVE)
            self._release_blind(permit)
            raise self._refusal(fleet, answer)
        permit.granted(answer, deadline_s=monotonic() + self._times.ttl_ms / 1000)
        self._ticker.enroll(permit)
        self._listener.admission(fleet, "granted")
        return permit

    def _give_up(self, permit: Permit, asked: Asking) -> None:
        """Give back what a caller who left was granted, or may have been."""
        self._left.discard(asked)
        if asked.cancelled() or asked.exception() is not None:
            self._release_blind(permit)
        elif isinstance(asked.result(), Granted):
            self._ticker.freed(permit)
        else:
            permit.move(Move.REFUSE)

    def _release_blind(self, permit: Permit) -> None:
        """Release an id whose acquire may or may not have been carried out."""
        permit.move(Move.GRANT)
        self._ticker.freed(permit)

    def _refusal(self, fleet: str, answer: Full | Learning | Closed) -> Refused:
        match answer:
            case Full(pool=pool, in_use=in_use, limit=limit):
                return self._refused(fleet, Refused(_code_of(pool), pool=pool, in_use=in_use, limit=limit))
            case Learning(left_ms=left_ms):
                message = (
                    f"fleet {fleet} is finding out what runs after Redis lost its data; {left_ms} ms left"
                )
                return self._refused(fleet, Refused("recovering", wait_ms=left_ms, message=message))
            case Closed():
                message = f"fleet {fleet} has no limits in Redis yet"
                return self._refused(fleet, Refused("admission_unavailable", message=message))

    def _refused(self, fleet: str, refused: Refused) -> Refused:
        self._listener.admission(fleet, refused.code)
        return refused


def _code_of(pool: str) -> RefusalCode:
    if pool == "cold":
        return "cold_pool_full"
    return "tenant_quota" if pool.startswith("tenant:") else "total_pool_full"


class Hold:
    """The context manager of one permit; see `Gate.hold`."""

    __slots__ = ("_demand", "_gate", "_permit")

    def __init__(self, gate: Gate, demand: Demand) -> None:
        """Ask for nothing yet."""
        self._gate = gate
        self._demand = demand
        self._permit: Permit | None = None

    async def __aenter__(self) -> Permit:
        """Take the permit."""
        self._permit = await self._gate.take(self._demand)
        return self._permit

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give it back; never awaits."""
        if self._permit is not None:
            self._permit.close()


async def _unhurt(call: Coroutine[object, object, T]) -> T:
    """Await a call to Redis so that cancelling the caller does not cut it in the middle of a reply."""
    return await asyncio.shield(asyncio.ensure_future(call))


@asynccontextmanager
async def open_gate(
    *,
    redis_url: str,
    name: str,
    fleets: Mapping[str, FleetPolicy],
    prefix: str = "tenure",
    times: LeaseTimes | None = None,
    keys: Mapping[str, str] | None = None,
    listener: Listener | None = None,
    max_connections: int = CONNECTIONS_MAX,
    loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None,
) -> AsyncIterator[Gate]:
    """Connect, start renewing, and yield the gate; on the way out flush what is left and stop.

    Raises Unusable when this Redis can never hold leases (too old, evicting) and BadName for an unfit `name`.
    A Redis that is away is no error: the gate refuses until it is there. `keys` are hashes of callers' keys
    with their tenants, and `fleets[...].limits` limits; both are written where Redis has no value yet. The
    ticker's thread runs on a loop of `loop_factory`, asyncio's own when left out.
    """
    times, listener = times or LeaseTimes(), listener or Silent()
    # The nonce makes every start of a process a new holder: nothing of a former life is mistaken for its own.
    holder = f"{check_name('gateway', name)}~{secrets.token_hex(4)}"
    ticker = Ticker(
        redis_url=redis_url,
        prefix=prefix,
        holder=holder,
        times=times,
        fleets=fleets,
        keys=keys or {},
        listener=listener,
        loop_factory=loop_factory,
    )
    client = connect(redis_url, max_connections=max_connections, timeout_s=CALL_S)
    store = Store(client, prefix=prefix, times=times, listener=listener)
    gate = Gate(
        store=store,
        ticker=ticker,
        holder=holder,
        times=times,
        fleets=fleets,
        listener=listener,
        acquires_at_once_max=max(1, max_connections - CONNECTIONS_SPARE),
    )
    try:
        await ticker.start()
        yield gate
    finally:
        # Also when the start was cancelled: its thread would go on for ever.
        try:
            await asyncio.shield(_end(gate, ticker))
        finally:
            await client.aclose()


async def _end(gate: Gate, ticker: Ticker) -> None:
    """Learn what is still open, then flush it."""
    await gate.last_answers()
    await ticker.stop()
