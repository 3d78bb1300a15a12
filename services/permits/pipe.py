"""Sends scripts down one connection, many at a time, and hands each reply to whoever asked.

A general client lends a connection per call and waits for its reply before the next: the largest part of what
a request cost a gateway. Here all who ask in one turn of the event loop share a write, and their replies a
read. Redis answers in order, so a caller that leaves disturbs nobody: its reply is read and thrown away.

The connection is made by redis-py (TLS, passwords, users, databases), which then has no more part in it.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Sequence
from typing import Any, Final, cast

import hiredis
from redis.asyncio import BlockingConnectionPool, Connection
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoScriptError, OutOfMemoryError, ReadOnlyError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from services.permits.clock import monotonic
from services.permits.resets import reset
from services.permits.scripts import Arg, Script

_ERRORS: Final = {"NOSCRIPT": NoScriptError, "READONLY": ReadOnlyError, "OOM": OutOfMemoryError}
_NOT_YET: Final = object()
# A timer that comes later than this was held up by other work in its loop.
_BUSY_S: Final = 0.05

Reply = Any


class Pipe:
    """The one connection of a client for scripts, made when it is first needed and again when it broke."""

    def __init__(self, pool: BlockingConnectionPool, *, timeout_s: float) -> None:
        """Connect as `pool` does, without counting among its connections. A reply may take `timeout_s`."""
        self._pool = pool
        self._timeout_s = timeout_s
        self._line: _Line | None = None
        self._connecting: asyncio.Task[_Line] | None = None
        self._closed = False

    async def run(self, script: Script, keys: Sequence[str], args: Sequence[Arg]) -> Reply:
        """Run one script and return its raw reply; errors are redis-py's own.

        A connection that breaks is replaced, once: all scripts may be sent twice. Cancelling the caller takes
        nothing back that was sent; see `settled`.
        """
        by_name = ("EVALSHA", script.sha, len(keys), *keys, *args)
        try:
            try:
                return await self._send(by_name)
            except RedisConnectionError:
                return await self._send_anew(by_name)
        except NoScriptError:
            return await self._call(("EVAL", script.text, *by_name[2:]))

    def settled(self) -> "asyncio.Future[None]":
        """Return a future that is done once every call sent so far was answered, or lost."""
        if self._line is not None:
            return self._line.settled()
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        done.set_result(None)
        return done

    def drop(self) -> None:
        """Connect anew for the next call: what is at the other end is no longer what it was."""
        line, self._line = self._line, None
        if line is not None:
            line.retire()

    async def close(self) -> None:
        """Close the connection; calls that are under way fail, and those that come."""
        self._closed = True
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.gather(self._connecting, return_exceptions=True)
        line, self._line = self._line, None
        if line is not None:
            line.abort(_closed())
            await line.closed

    async def _call(self, command: tuple[Arg, ...]) -> Reply:
        try:
            return await self._send(command)
        except RedisConnectionError:
            return await self._send_anew(command)

    def _send(self, command: tuple[Arg, ...]) -> Awaitable[Reply]:
        line = self._line
        # Mostly there is one: then nothing but the reply is awaited.
        return self._send_anew(command) if line is None or line.closed.done() else line.send(command)

    async def _send_anew(self, command: tuple[Arg, ...]) -> Reply:
        return await (await self._ready()).send(command)

    async def _ready(self) -> "_Line":
        if self._line is not None and not self._line.closed.done():
            return self._line
        if self._closed:
            raise _closed()
        if self._connecting is None:
            self._connecting = asyncio.create_task(self._connect())
            self._connecting.add_done_callback(self._connected)
        # Shared by all who wait for it, so none of them may take it along when it leaves.
        return await asyncio.shield(self._connecting)

    async def _connect(self) -> "_Line":
        connection = self._pool.make_connection()  # type: ignore[no-untyped-call]
        try:
            # In all: a name may resolve to several hosts, and several Sentinels be asked for it.
            async with asyncio.timeout(2 * self._timeout_s):
                await connection.connect()
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        self._line = _Line(connection, self._timeout_s)
        return self._line

    def _connected(self, connecting: "asyncio.Task[_Line]") -> None:
        self._connecting = None
        if not connecting.cancelled():
            # Taken note of also when everybody who waited for it has left.
            connecting.exception()


class _Line(asyncio.Protocol):
    """One connection that was taken over from redis-py: commands out, replies back in the same order."""

    def __init__(self, connection: Connection, timeout_s: float) -> None:
        self._loop = asyncio.get_running_loop()
        # Kept because it would close the transport when nobody refers to it; redis-py forgets it.
        self._writer = _taken_from(connection)
        self._transport = self._writer.transport
        self._transport.set_protocol(self)
        self._reader = hiredis.Reader(encoding="utf-8", replyError=_error_of, notEnoughData=_NOT_YET)
        self._timeout_s = timeout_s
        self._timer: asyncio.TimerHandle | None = None
        self._unwritten: list[bytes] = []
        # Of each call that is under way: who waits, and since when.
        self._calls: deque[tuple[asyncio.Future[Reply], float]] = deque()
        self._sent = self._answered = 0
        self._fences: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._why_lost: Exception = RedisConnectionError("Redis closed the connection")
        self._retired = False
        self.closed: asyncio.Future[None] = self._loop.create_future()

    def send(self, command: tuple[Arg, ...]) -> "asyncio.Future[Reply]":
        """Write a command soon and return its reply to come. Callers bound how many are under way."""
        future: asyncio.Future[Reply] = self._loop.create_future()
        if self.closed.done():
            future.set_exception(RedisConnectionError("Redis closed the connection"))
            return future
        self._calls.append((future, monotonic()))
        self._sent += 1
        if not self._unwritten:
            # Behind everything that is ready to run: what that asks goes along.
            self._loop.call_soon(self._write)
        self._unwritten.append(hiredis.pack_command(command))  # type: ignore[arg-type]  # of any length
        if self._timer is None:
            self._look_in(self._timeout_s)
        return future

    def settled(self) -> "asyncio.Future[None]":
        fence: asyncio.Future[None] = self._loop.create_future()
        if self._calls:
            self._fences.append((self._sent, fence))
        else:
            fence.set_result(None)
        return fence

    def retire(self) -> None:
        """Close as soon as nothing is under way."""
        self._retired = True
        if not self._calls:
            self._transport.close()

    def abort(self, why: Exception) -> None:
        """Fail all calls that are under way, and close."""
        self._why_lost = why
        reset(self._transport)

    def data_received(self, data: bytes) -> None:
        """Hand out the replies that are whole."""
        self._reader.feed(data)
        try:
            while (reply := self._reader.gets()) is not _NOT_YET:
                self._hand_out(reply)
        except hiredis.ProtocolError as error:
            self.abort(RedisConnectionError(f"Redis sent what is no reply: {error}"))
        while self._fences and self._fences[0][0] <= self._answered:
            _settle(self._fences.popleft()[1])
        if self._retired and not self._calls:
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail what is under way: whether it was carried out is unknown."""
        del exc
        if self._timer is not None:
            self._timer.cancel()
        for future, _ in self._calls:
            if not future.done():
                future.set_exception(self._why_lost)
        self._calls.clear()
        for _, fence in self._fences:
            _settle(fence)
        self._fences.clear()
        _settle(self.closed)

    def _write(self) -> None:
        unwritten, self._unwritten = self._unwritten, []
        if not self._transport.is_closing():
            self._transport.write(b"".join(unwritten))

    def _hand_out(self, reply: Reply) -> None:
        if not self._calls:
            self.abort(RedisConnectionError("Redis sent a reply that nobody asked for"))
            return
        self._answered += 1
        future, _ = self._calls.popleft()
        if future.done():
            return
        if isinstance(reply, ResponseError):
            future.set_exception(reply)
        else:
            future.set_result(reply)

    def _look_in(self, delay_s: float) -> None:
        self._timer = self._loop.call_later(delay_s, self._look, monotonic() + delay_s)

    def _look(self, due_s: float) -> None:
        """Give the connection up when its oldest call is overdue: all others wait behind it.

        A loop that was busy until now has not read for as long, and cannot say that Redis is late: the reply
        may lie there. It gets that time again.
        """
        self._timer = None
        if not self._calls:
            return
        now_s = monotonic()
        busy_s = now_s - due_s
        left_s = self._calls[0][1] + self._timeout_s - now_s
        if left_s > 0:
            self._look_in(left_s)
        elif busy_s > _BUSY_S:
            self._look_in(min(busy_s, self._timeout_s))
        else:
            self.abort(RedisTimeoutError(f"no reply from Redis within {self._timeout_s:g} s"))


def _closed() -> RedisConnectionError:
    return RedisConnectionError("the client is closed")


def _taken_from(connection: Connection) -> asyncio.StreamWriter:
    """Return the stream of a connection that is ready for commands, and leave it without one."""
    writer: Any = connection._writer  # noqa: SLF001
    connection._reader = connection._writer = None  # noqa: SLF001
    return cast("asyncio.StreamWriter", writer)


def _error_of(message: str) -> ResponseError:
    """Return an error reply as redis-py's exception: those that somebody reacts to by their own class."""
    return _ERRORS.get(message.partition(" ")[0], ResponseError)(message)


def _settle(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)
