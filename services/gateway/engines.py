"""The engines' side of a request: which one is asked, what is sent, who is tried when that one is away."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from types import TracebackType
from typing import Final

import msgspec
from tenacity import AsyncRetrying, retry_if_exception, stop_after_attempt

from services.gateway.engine_pool import EnginePool
from services.gateway.engine_wire import EngineFailed, Reply
from services.gateway.fleets import Engine, Fleet
from services.gateway.headers import RawHeaders
from services.permits.errors import PermitError
from services.permits.permit import Permit

_SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
# Sent twice these do what they do once (RFC 9110, 9.2.2).
_IDEMPOTENT_METHODS: Final = _SAFE_METHODS | {"PUT", "DELETE"}
# Without a body they say so: some servers answer 411 otherwise.
_METHODS_WITH_BODY: Final = frozenset({"POST", "PUT", "PATCH"})
_LOWEST_STATUS, _HIGHEST_STATUS = 200, 599

Move = Callable[[Permit, Sequence[str]], Awaitable[bool]]


class EngineRequest(msgspec.Struct):
    """What is sent, to whichever engine of the fleet. The body goes on byte for byte.

    `body` is let go of once an engine has answered: a long stream must not keep a large prompt.
    """

    method: str
    path_and_query: str
    headers: RawHeaders
    body: bytes


class Engines:
    """The way to all engines of this gateway. Made by `open_engines`."""

    def __init__(self, move: Move) -> None:
        """`move` takes a permit to another engine."""
        self._move = move
        self._pools: dict[str, EnginePool] = {}

    def open(self, request: EngineRequest, fleet: Fleet, permit: Permit) -> "Exchange":
        """Return a context manager that sends `request` to the permit's engine and lets go of the reply.

        An engine that cannot have begun to work is left for another one, under the same permit. Entry raises
        EngineFailed. Cancelling closes the connection: the engine has lost it when this is left.
        """
        return Exchange(self, request, fleet, permit)

    def close(self) -> None:
        """Cut all connections."""
        for pool in self._pools.values():
            pool.close()

    async def ask_others(
        self, request: EngineRequest, fleet: Fleet, permit: Permit, failed: EngineFailed
    ) -> Reply:
        """Ask each other engine once, as far as the permit can be moved there; prefer `open`."""
        tried = {permit.engine}
        attempts = AsyncRetrying(
            retry=retry_if_exception(lambda error: isinstance(error, EngineFailed) and error.may_retry),
            stop=stop_after_attempt(len(fleet.engines) - 1),
            reraise=True,
        )
        async for attempt in attempts:
            with attempt:
                others = [name for name in fleet.usable_engines() if name not in tried]
                if not others or not await self._moved(permit, others):
                    failed.may_retry = False
                    raise failed
                tried.add(permit.engine)
                return await self.ask(request, fleet, permit.engine)
        raise failed

    async def _moved(self, permit: Permit, others: Sequence[str]) -> bool:
        try:
            return await self._move(permit, others)
        except PermitError:
            return False

    async def ask(self, request: EngineRequest, fleet: Fleet, name: str) -> Reply:
        """Ask one engine, on an idle connection or else a new one, and await the head of its reply.

        The reply is the caller's, who closes it; prefer `open`. Raises EngineFailed.
        """
        engine = fleet.engines[name]
        pool = self._pools.get(engine.url)
        if pool is None:
            pool = self._pools[engine.url] = EnginePool(engine.url)
        head, has_body = _head_of(request, engine, pool), request.method != "HEAD"
        try:
            reply = None
            if (idle := pool.take_idle()) is not None:
                try:
                    reply = await idle.exchange(head, request.body, has_body=has_body)
                except EngineFailed as failed:
                    # Its end may have crossed our request, unread; or not: nothing is done twice that must
                    # not be.
                    if failed.reply_begun or request.method not in _IDEMPOTENT_METHODS:
                        raise
            if reply is None:
                fresh = await pool.connect(fleet.config.budgets.connect_ms / 1000)
                reply = await fresh.exchange(head, request.body, has_body=has_body)
        except OSError as error:
            fleet.engine_failed(name)
            why = f"cannot connect to {name}: {type(error).__name__}"
            raise EngineFailed("engine_unreachable", why, may_retry=True) from None
        except EngineFailed as failed:
            # No reason to leave the engine out: one caller's request must not cost the others an engine.
            failed.may_retry = request.method in _SAFE_METHODS
            raise
        if not _LOWEST_STATUS <= reply.status <= _HIGHEST_STATUS:
            reply.close()
            raise EngineFailed("engine_error", f"{name} answered with status {reply.status}")
        fleet.engine_answered(name)
        return reply


class Exchange:
    """The context manager of one reply; see `Engines.open`."""

    __slots__ = ("_engines", "_fleet", "_permit", "_reply", "_request")

    def __init__(self, engines: Engines, request: EngineRequest, fleet: Fleet, permit: Permit) -> None:
        """Ask nobody yet."""
        self._engines = engines
        self._request = request
        self._fleet = fleet
        self._permit = permit
        self._reply: Reply | None = None

    async def __aenter__(self) -> Reply:
        """Return the reply when its head is there."""
        engines, request, fleet, permit = self._engines, self._request, self._fleet, self._permit
        try:
            try:
                reply = await engines.ask(request, fleet, permit.engine)
            except EngineFailed as failed:
                if not failed.may_retry or len(fleet.engines) == 1:
                    raise
                reply = await engines.ask_others(request, fleet, permit, failed)
        except BaseException:
            await _turn()
            raise
        request.body = b""
        self._reply = reply
        return reply

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Let go of it."""
        if self._reply is not None:
            self._reply.close()
        if error is not None:
            await _turn()


async def _turn() -> None:
    """Let the event loop close the socket that was cut: it does in its next turn.

    The permit, which goes back after this, may be granted to another replica at once: the engine must not see
    two requests on one place.
    """
    await asyncio.sleep(0)


@contextlib.asynccontextmanager
async def open_engines(move: Move) -> AsyncIterator[Engines]:
    """Yield the way to the engines; all connections are closed at the end."""
    engines = Engines(move)
    try:
        yield engines
    finally:
        engines.close()
        await _turn()


def _head_of(request: EngineRequest, engine: Engine, pool: EnginePool) -> bytes:
    """Return the request's head as it goes over the wire: the caller's, for this engine."""
    line = f"{request.method} {pool.path}{request.path_and_query} HTTP/1.1\r\nhost: {pool.authority}"
    lines = [line.encode("latin-1"), *map(b": ".join, request.headers)]
    if engine.authorization:
        lines.append(b"authorization: " + engine.authorization)
    if request.body or request.method in _METHODS_WITH_BODY:
        lines.append(b"content-length: %d" % len(request.body))
    lines.append(b"\r\n")
    return b"\r\n".join(lines)
