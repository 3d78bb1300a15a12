"""Makes redis-py's connections say so when they were reset while they were idle."""

import asyncio
from collections.abc import Iterable
from typing import Any


class _Honest:
    """A connection that was reset while it was idle says so when it is written to.

    The write itself would not, or not in these words: what it does is up to the event loop (nothing, a
    RuntimeError of uvloop, a TypeError of asyncio from Python 3.12 on).
    """

    async def _send_packed_command(self, command: Iterable[bytes]) -> None:
        writer: asyncio.StreamWriter = self._writer  # type: ignore[attr-defined]
        if writer.is_closing():
            raise ConnectionResetError("it was reset while it was idle")
        await super()._send_packed_command(command)  # type: ignore[misc]


def honest(kind: type) -> Any:  # noqa: ANN401  (a subclass of `kind`)
    """Return the kind of connection that is `kind`, and honest."""
    return type(f"Honest{kind.__name__}", (_Honest, kind), {})
