"""Makes redis-py's connections say so when they were reset while idle, and when their caller was cancelled."""

import asyncio
from collections.abc import Iterable
from typing import Any


class _Honest:
    """What redis-py's own connections keep to themselves.

    One that was reset while it was idle says so when it is written to. The write itself would not, or not in
    these words: what it does is up to the event loop (nothing, a RuntimeError of uvloop, a TypeError of asyncio
    from Python 3.12 on).

    And a cancellation is never lost. redis-py writes under `asyncio.wait_for`, which before Python 3.12 forgets
    one that comes just as the write is done: whoever was cancelled then went on, for ever if it was a loop.
    """

    async def send_packed_command(
        self,
        command: bytes | str | Iterable[bytes],
        check_health: bool = True,  # noqa: FBT001, FBT002  (as redis-py has it)
    ) -> None:
        task = asyncio.current_task()
        before = task.cancelling() if task else 0
        await super().send_packed_command(command, check_health)  # type: ignore[misc]
        if task and task.cancelling() > before:
            # Its reply is read by nobody.
            await self.disconnect(nowait=True)  # type: ignore[attr-defined]
            raise asyncio.CancelledError

    async def _send_packed_command(self, command: Iterable[bytes]) -> None:
        writer: asyncio.StreamWriter = self._writer  # type: ignore[attr-defined]
        if writer.is_closing():
            raise ConnectionResetError("it was reset while it was idle")
        await super()._send_packed_command(command)  # type: ignore[misc]


def honest(kind: type) -> Any:  # noqa: ANN401  (a subclass of `kind`)
    """Return the kind of connection that is `kind`, and honest."""
    return type(f"Honest{kind.__name__}", (_Honest, kind), {})
