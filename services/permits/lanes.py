"""Sends scripts over connections that are kept at hand, without the ceremony of a general client.

`Redis.execute_command` looks for a connection, wraps each call in retries and measures it: of a request's
CPU in a gateway that was a seventh. A lane is one of the client's own connections, borrowed for good; what a
call needs is to write a command and to read a reply.
"""

from collections.abc import Sequence
from typing import Any, Final

from redis.asyncio import Connection, Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoScriptError, ResponseError

from services.permits.scripts import Arg, Script

SPARE_MAX: Final = 4


class Lanes:
    """The lanes of one client, in one event loop. Closing the client closes them."""

    def __init__(self, client: Redis) -> None:
        """Borrow nothing yet."""
        self._pool = client.connection_pool
        # The others are for plain commands, which take theirs from the pool.
        most = int(self._pool.max_connections)
        self._keep = most - max(1, min(SPARE_MAX, most // 2))
        self._idle: list[Connection] = []

    async def run(self, script: Script, keys: Sequence[str], args: Sequence[Arg]) -> Any:  # noqa: ANN401  (checked by the store, reply by reply)
        """Run one script and return its raw reply; errors are redis-py's own.

        A connection that died while it was idle is replaced, once: all scripts may be sent twice.
        """
        try:
            return await self._call("EVALSHA", script.sha, len(keys), *keys, *args)
        except NoScriptError:
            return await self._call("EVAL", script.text, len(keys), *keys, *args)

    async def drop(self) -> None:
        """Close the idle lanes: what they are connected to is no longer what it was."""
        idle, self._idle = self._idle, []
        for lane in idle:
            await lane.disconnect()
            await self._pool.release(lane)

    async def _call(self, *command: Arg) -> Any:  # noqa: ANN401
        lane = self._idle.pop() if self._idle else await self._pool.get_connection()  # type: ignore[no-untyped-call]
        try:
            try:
                return await _ask(lane, command)
            except RedisConnectionError:
                await lane.disconnect()
                return await _ask(lane, command)
        except ResponseError:
            # Redis said no; the connection is as good as before.
            raise
        except BaseException:
            # Its reply may still come, and must not be read by the next call.
            await lane.disconnect(nowait=True)
            raise
        finally:
            if len(self._idle) < self._keep:
                self._idle.append(lane)
            else:
                await self._pool.release(lane)


async def _ask(lane: Connection, command: Sequence[Arg]) -> Any:  # noqa: ANN401
    await lane.send_command(*command)
    return await lane.read_response()
