"""Makes redis-py's connections say what they keep to themselves, and forget what nobody waits for."""

import asyncio
from collections.abc import Iterable
from typing import Any

from services.permits.resets import reset


class _Honest:
    """A connection that was reset while it was idle says so when it is written to.

    The write itself would not, or not in these words: what it does is up to the event loop (nothing, a
    RuntimeError of uvloop, a TypeError of asyncio from Python 3.12 on).

    Nor is a cancellation ever lost. redis-py writes under `asyncio.wait_for`, which before Python 3.12
    forgets one that comes just as the write is done: whoever was cancelled went on, in a loop for ever.
    """

    async def send_packed_command(
        self,
        command: bytes | str | Iterable[bytes],
        check_health: bool = True,  # noqa: FBT001, FBT002  (as redis-py has it)
    ) -> None:
        task = asyncio.current_task()
        before = task.cancelling() if task else 0
        try:
            await super().send_packed_command(command, check_health)  # type: ignore[misc]
        finally:
            # Also when it failed in the same turn: the error would pass for the outcome.
            if task and task.cancelling() > before:
                # Its reply is read by nobody.
                await self.disconnect(nowait=True)
                raise asyncio.CancelledError

    async def disconnect(self, nowait: bool = False, **more: Any) -> None:  # noqa: ANN401, FBT001, FBT002
        if nowait and (writer := self._writer) is not None:  # type: ignore[attr-defined]
            # A tick that nobody waits for any more must not arrive behind releases that were sent anew: its
            # leases would be places lost for a ttl.
            reset(writer.transport)
        await super().disconnect(nowait, **more)  # type: ignore[misc]

    async def _send_packed_command(self, command: Iterable[bytes]) -> None:
        # None: whoever saw its node in trouble closed it, since it was found to be connected.
        writer: asyncio.StreamWriter | None = self._writer  # type: ignore[attr-defined]
        if writer is None or writer.is_closing():
            raise ConnectionResetError("it was closed or reset before it was written to")
        await super()._send_packed_command(command)  # type: ignore[misc]


def honest(kind: type) -> Any:  # noqa: ANN401  (a subclass of `kind`)
    """Return the kind of connection that is `kind`, and honest."""
    return type(f"Honest{kind.__name__}", (_Honest, kind), {})
