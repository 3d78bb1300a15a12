"""A cancellation that redis-py swallows is raised all the same, whatever else came of the write."""

import asyncio
import contextlib

import pytest

from services.permits.honest import honest


class Swallows:
    """A connection whose write forgets that it was cancelled, as under `wait_for` before Python 3.12."""

    error: Exception | None = None
    _writer = None

    async def send_packed_command(self, command: bytes, check_health: bool = True) -> None:
        del command, check_health
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        if self.error is not None:
            raise self.error

    async def disconnect(self, nowait: bool = False) -> None:
        assert nowait
        self.closed = True


@pytest.mark.parametrize("error", [None, ConnectionResetError("reset")])
async def test_who_is_cancelled_ends(error: Exception | None) -> None:
    connection = honest(Swallows)()
    connection.error = error
    writing = asyncio.create_task(connection.send_packed_command(b"PING"))
    await asyncio.sleep(0)
    writing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await writing
    assert connection.closed
