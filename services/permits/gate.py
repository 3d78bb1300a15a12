"""The front of the library: ask for a permit, hold it, give it back.

    async with open_gate(redis_url=..., name="g1", fleets=..., ...) as gate:
        async with gate.hold(demand) as permit:
            ...                                  # the work; the permit returns however this block is left

To let something else own the permit (a response body that streams on after the handler returned), enter
`gate.hold` on an `AsyncExitStack` and hand the stack over.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, Final, TypeVar

from services.permits.acquirer import CALL_S, Acquirer
from services.permits.connect import connect
from services.permits.events import Listener, Silent
from services.permits.flusher import Flusher
from services.permits.model import Counts, Demand, FleetPolicy, LeaseTimes
from services.permits.names import check_name
from services.permits.permit import Permit
from services.permits.renewal import FleetView
from services.permits.store import Store
from services.permits.ticker import Ticker
from services.permits.wake import WakeListener

T = TypeVar("T")

# A gate's connections for plain commands and wake-ups; scripts have one of their own.
CONNECTIONS_MAX: Final = 4


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
    ) -> None:
        """Use `open_gate`, which also starts the ticker."""
        self.holder = holder
        self._store = store
        self._ticker = ticker
        self._fleets = fleets
        self._flushers = [Flusher(store, lane) for lane in ticker.lanes.values()]
        self._acquirer = Acquirer(
            store=store,
            ticker=ticker,
            holder=holder,
            times=times,
            fleets=fleets,
            listener=listener,
        )

    def hold(self, demand: Demand) -> "Hold":
        """Return a context manager whose entry takes a permit and whose exit gives it back.

        Entry raises Refused, or Unavailable when Redis is away and the fleet's policy is `closed`. If the
        entry is cancelled, whatever Redis granted is given back by its id.
        """
        return Hold(self._acquirer, demand)

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
        down = [fleet for fleet in self._fleets if not self._ticker.lanes[fleet].up.is_set()]
        if len(down) == len(self._fleets) or not self._ticker.directory.known:
            return False, "redis unavailable"
        for fleet in self._fleets:
            view = self._ticker.view(fleet)
            if fleet in down:
                continue
            if view is None:
                return False, f"fleet {fleet} has not ticked yet"
            if view.learning_s > 0:
                return False, f"fleet {fleet} is learning what runs"
        # The others' requests must not be sent away for the sake of a fleet that no replica can serve.
        return True, f"ready, but redis is unavailable to fleet {', '.join(down)}" if down else "ready"

    def witness(self, permit: Permit, prefixes: Mapping[str, bool]) -> None:
        """Note what the permit's engine reported: prefix hash -> was served from its cache."""
        self._ticker.witness(permit.fleet, permit.engine, prefixes)

    def ended(self, permit: Permit, reason: str) -> None:
        """Note why the permit's work ended, for the event stream: it gets there with the next tick.

        Called once, at any time after the work. A process that is killed before that tick tells nobody.
        """
        self._ticker.ended(permit, reason)

    async def count(self, fleet: str, tenants: Sequence[str] = (), engines: Sequence[str] = ()) -> Counts:
        """Count live leases now; raises Unavailable."""
        return await unhurt(self._store.count(fleet, tenants, engines))

    async def move(self, permit: Permit, engines: Sequence[str]) -> bool:
        """Before the first byte: take the permit to another engine with room. False: it stays where it is."""
        answer = await unhurt(self._store.move(permit.fleet, permit.id, engines))
        if not isinstance(answer, str):
            return False
        permit.moved(answer)
        return True

    def take(self, demand: Demand) -> Coroutine[Any, Any, Permit]:
        """Take a permit that the caller must close; prefer `hold`."""
        return self._acquirer.take(demand)

    async def last_answers(self) -> None:
        """Wait, for a bounded time, until it is known what callers who left were granted.

        What is to be told to Redis from now on, the ticker tells.
        """
        await self._acquirer.last_answers()
        await asyncio.gather(*(flusher.stop() for flusher in self._flushers))


class Hold:
    """The context manager of one permit; see `Gate.hold`."""

    __slots__ = ("_acquirer", "_demand", "_permit")

    def __init__(self, acquirer: Acquirer, demand: Demand) -> None:
        """Ask for nothing yet."""
        self._acquirer = acquirer
        self._demand = demand
        self._permit: Permit | None = None

    async def __aenter__(self) -> Permit:
        """Take the permit."""
        self._permit = permit = await self._acquirer.take(self._demand)
        return permit

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give it back; never awaits."""
        if self._permit is not None:
            self._permit.close()


async def unhurt(call: Coroutine[object, object, T]) -> T:
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
    on_drain: Callable[[], None] | None = None,
    loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None,
) -> AsyncIterator[Gate]:
    """Connect, start renewing, and yield the gate; on the way out flush what is left and stop.

    Raises Unusable when this Redis can never hold leases (too old, evicting) and BadName for an unfit `name`.
    A Redis that is away is no error: the gate refuses until it is there. `keys` are hashes of callers' keys
    with their tenants, and `fleets[...].limits` limits; both are written where Redis has no value yet.
    `on_drain` is called once, in this event loop, when an administrator tells this process to drain. The
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
        on_drain=on_drain,
        loop_factory=loop_factory,
    )
    client = connect(redis_url, max_connections=CONNECTIONS_MAX, timeout_s=CALL_S)
    store = Store(client, prefix=prefix, times=times, listener=listener)
    gate = Gate(
        store=store,
        ticker=ticker,
        holder=holder,
        times=times,
        fleets=fleets,
        listener=listener,
    )
    channels = {store.keys(fleet).wake(holder): fleet for fleet in fleets}
    ears = [
        WakeListener(client, together, ticker.hear, ticker.tick_waiters)
        for together in client.heard_together(channels)
    ]
    listening: list[asyncio.Task[None]] = []
    try:
        await ticker.start()
        listening += [asyncio.create_task(ear.run()) for ear in ears]
        yield gate
    finally:
        # Also when the start was cancelled: its thread would go on for ever.
        for task in listening:
            task.cancel()
        try:
            await asyncio.shield(_end(gate, ticker))
        finally:
            await client.aclose()


async def _end(gate: Gate, ticker: Ticker) -> None:
    """Learn what is still open, then flush it."""
    await gate.last_answers()
    await ticker.stop()
