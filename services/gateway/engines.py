"""The engines' side: open a request there, read the reply, and let go of it so that the engine notices.

The only module that knows aiohttp. Its errors become EngineFailed.
"""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import aiohttp
from tenacity import AsyncRetrying, retry_if_exception, stop_after_attempt
from yarl import URL

from services.gateway.fleets import Fleet
from services.permits.errors import PermitError
from services.permits.permit import Permit
from services.settings import schema

# What is held of one reply: at most twice READ_BYTES in aiohttp, one read on its way to the client, and
# what the client's transport buffers (64 KiB and that read).
READ_BYTES: Final = 32 * 1024
RECEIVE_BUFFER_BYTES: Final = 32 * 1024
# Engines behind uvicorn close an idle connection after 5 s; one that closes just as we write looks like a
# crash, so ours go first.
KEEP_ALIVE_S: Final = 3.0
_DNS_CACHE_S: Final = 10
_HEAD_BYTES_MAX: Final = 64 * 1024
# aiohttp warns about larger bodies in one piece; they are handed over in slices.
_PIECE_BYTES: Final = 256 * 1024
_SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_LOWEST_STATUS, _HIGHEST_STATUS = 200, 599

Move = Callable[[Permit, Sequence[str]], Awaitable[bool]]


class EngineFailed(Exception):
    """The engine could not be reached, or broke off. `may_retry`: no work can have begun there."""

    def __init__(
        self, reason: Literal["engine_unreachable", "engine_error"], why: str, *, may_retry: bool = False
    ) -> None:
        """`why` is for the log; the caller is told the reason only."""
        super().__init__(why)
        self.reason: Literal["engine_unreachable", "engine_error"] = reason
        self.may_retry = may_retry


@dataclass(slots=True)
class EngineRequest:
    """What is sent, to whichever engine of the fleet. The body goes on byte for byte.

    `body` is let go of once an engine has answered: a long stream must not keep a large prompt.
    """

    method: str
    path_and_query: str
    headers: list[tuple[str, str]]
    body: bytes


class Reply:
    """A reply whose head has arrived. Owned by whoever entered `Engines.open`."""

    __slots__ = ("_broken", "_content", "_response", "content_type", "encoding", "raw_headers", "status")

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        """Take over `response`."""
        self._response = response
        self._content = response.content
        self._broken: EngineFailed | None = None
        self.status = response.status
        self.raw_headers = response.raw_headers
        self.content_type = response.headers.get("Content-Type", "").lower().encode("latin-1", "replace")
        self.encoding = (
            response.headers.get("Content-Encoding", "").strip().lower().encode("latin-1", "replace")
        )

    async def read(self) -> bytes:
        """Return the next bytes as they arrived, b"" at the clean end; raise EngineFailed at any other."""
        if self._broken is not None:
            raise self._broken
        try:
            return await self._content.read(READ_BYTES)
        except (aiohttp.ClientError, OSError) as error:
            self._broken = EngineFailed("engine_error", f"the reply broke off: {type(error).__name__}")
            # aiohttp raises before it hands out what arrived ahead of the break; the client shall have it.
            left: bytes = self._content._read_nowait(-1)  # noqa: SLF001
            if left:
                return left
            raise self._broken from None

    @property
    def is_read(self) -> bool:
        """Whether the clean end has come and every byte before it was read."""
        return self._content.at_eof()

    def close(self) -> None:
        """Let go. After a clean end the connection has gone back to the pool; otherwise it is cut now."""
        connection = self._response.connection
        if connection is not None and connection.transport is not None:
            # Not close(): that would first write out a request body which nobody wants any more.
            connection.transport.abort()
        self._response.close()


class Engines:
    """The connections to all engines of this gateway. Made by `open_engines`."""

    def __init__(self, session: aiohttp.ClientSession, move: Move) -> None:
        """`move` takes a permit to another engine."""
        self._session = session
        self._move = move

    @contextlib.asynccontextmanager
    async def open(self, request: EngineRequest, fleet: Fleet, permit: Permit) -> AsyncIterator[Reply]:
        """Send `request` to the permit's engine and yield its reply; on the way out let go of it.

        An engine that cannot have begun to work is left for another one, under the same permit. Raises
        EngineFailed. Cancelling closes the connection: the engine has lost it when this is left.
        """
        try:
            reply = await self._first_reply(request, fleet, permit)
            request.body = b""
            try:
                yield reply
            finally:
                reply.close()
        except BaseException:
            # The event loop closes a socket in its next turn. The permit, which goes back after this, may be
            # granted to another replica at once: the engine must not see two requests on one place.
            await asyncio.sleep(0)
            raise

    async def _first_reply(self, request: EngineRequest, fleet: Fleet, permit: Permit) -> Reply:
        try:
            return await self._call(request, fleet, permit.engine)
        except EngineFailed as failed:
            if not failed.may_retry or len(fleet.engines) == 1:
                raise
            return await self._elsewhere(request, fleet, permit, failed)

    async def _elsewhere(
        self, request: EngineRequest, fleet: Fleet, permit: Permit, failed: EngineFailed
    ) -> Reply:
        """Try each other engine once, as far as the permit can be moved there."""
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
                return await self._call(request, fleet, permit.engine)
        raise failed

    async def _moved(self, permit: Permit, others: Sequence[str]) -> bool:
        try:
            return await self._move(permit, others)
        except PermitError:
            return False

    async def _call(self, request: EngineRequest, fleet: Fleet, name: str) -> Reply:
        """Send the request to one engine and await the reply's head."""
        engine = fleet.engines[name]
        try:
            response = await self._session.request(
                request.method,
                _url_of(engine, request),
                headers=_headers_for(engine, request),
                data=_payload(request.body),
                timeout=_timeout(fleet.config.budgets.connect_ms),
                allow_redirects=False,
            )
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            fleet.engine_failed(name)
            why = f"cannot connect to {name}: {type(error).__name__}"
            raise EngineFailed("engine_unreachable", why, may_retry=True) from None
        except (aiohttp.ClientError, OSError) as error:
            # No reason to leave the engine out: one caller's request must not cost the others an engine.
            why = f"{name} broke off before its reply: {type(error).__name__}"
            raise EngineFailed("engine_error", why, may_retry=request.method in _SAFE_METHODS) from None
        if not _LOWEST_STATUS <= response.status <= _HIGHEST_STATUS:
            response.close()
            raise EngineFailed("engine_error", f"{name} answered with status {response.status}")
        fleet.engine_answered(name)
        return Reply(response)


@contextlib.asynccontextmanager
async def open_engines(move: Move) -> AsyncIterator[Engines]:
    """Yield the engines' client; all its connections are closed at the end."""
    connector = aiohttp.TCPConnector(
        limit=0,  # how many requests run is the permits' business
        keepalive_timeout=KEEP_ALIVE_S,
        ttl_dns_cache=_DNS_CACHE_S,
        socket_factory=_small_socket,
    )
    session = aiohttp.ClientSession(
        connector=connector,
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        read_bufsize=READ_BYTES,
        max_line_size=_HEAD_BYTES_MAX,
        max_field_size=_HEAD_BYTES_MAX,
        # The engine sees what the client sent and nothing that aiohttp would add.
        skip_auto_headers=("Accept", "Accept-Encoding", "User-Agent", "Content-Type"),
        trust_env=False,
    )
    async with session:
        yield Engines(session, move)


def _small_socket(address: tuple[Any, ...]) -> socket.socket:
    """Make a socket whose kernel buffer is small, so that a client that stops reading stops the engine."""
    family, kind, protocol = address[:3]
    sock = socket.socket(family, kind, protocol)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    return sock


def _url_of(engine: schema.Engine, request: EngineRequest) -> URL:
    return URL(engine.url + request.path_and_query, encoded=True)


def _headers_for(engine: schema.Engine, request: EngineRequest) -> list[tuple[str, str]]:
    added = []
    if engine.api_key:
        added.append(("authorization", f"Bearer {engine.api_key}"))
    if len(request.body) > _PIECE_BYTES:
        added.append(("content-length", str(len(request.body))))
    return [*request.headers, *added]


def _payload(body: bytes) -> bytes | AsyncIterator[bytes] | None:
    if len(body) <= _PIECE_BYTES:
        return body or None
    return _pieces(body)


async def _pieces(body: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(body), _PIECE_BYTES):
        yield body[start : start + _PIECE_BYTES]


_timeouts: Final[dict[int, aiohttp.ClientTimeout]] = {}


def _timeout(connect_ms: int) -> aiohttp.ClientTimeout:
    """Return aiohttp's form of the connect budget; all other budgets are the trip's own."""
    if connect_ms not in _timeouts:
        _timeouts[connect_ms] = aiohttp.ClientTimeout(
            total=None, connect=connect_ms / 1000, ceil_threshold=3600
        )
    return _timeouts[connect_ms]
