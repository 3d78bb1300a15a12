"""The log: one JSON line per event, written without ever blocking the event loop.

A log collector that stops reading must not stop the gateway, so lines are handed to a thread in batches
and dropped, counted, when too many wait.
"""

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncIterator, MutableMapping
from typing import Any, Final

import msgspec
import structlog

LINES_MAX: Final = 20_000
FLUSH_S: Final = 0.25
# How long a full pipe may hold up the end of the process.
_LAST_FLUSH_S: Final = 2.0


class _Sink:
    """What structlog writes to: every level appends one line."""

    def __init__(self) -> None:
        self.lines: list[bytes] = []
        self.dropped = 0

    def info(self, line: bytes) -> None:
        if len(self.lines) < LINES_MAX:
            self.lines.append(line)
        else:
            self.dropped += 1

    debug = warning = error = critical = exception = msg = info


def _as_line(_logger: object, _method: str, event: MutableMapping[str, Any]) -> bytes:
    return msgspec.json.encode(event, enc_hook=str) + b"\n"


class _Bridge(logging.Handler):
    """Takes in what libraries and asyncio say by the standard library's logging."""

    def __init__(self, journal: "Journal") -> None:
        super().__init__(logging.WARNING)
        self._journal = journal

    def emit(self, record: logging.LogRecord) -> None:
        self._journal.log.warning(record.getMessage(), logger=record.name, exc_info=record.exc_info)


_PROCESSORS: Final[list[structlog.typing.Processor]] = [
    structlog.processors.add_log_level,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
    structlog.processors.format_exc_info,
    _as_line,
]
_LEVEL: Final = structlog.make_filtering_bound_logger("info")


class Journal:
    """The log of one process. `log` is an ordinary structlog logger; any thread may use it."""

    def __init__(self, fd: int) -> None:
        """Write to the open file descriptor `fd`, which stays the caller's."""
        self._fd = fd
        self._sink = _Sink()
        self.log: structlog.typing.FilteringBoundLogger = structlog.wrap_logger(
            self._sink, processors=_PROCESSORS, wrapper_class=_LEVEL, cache_logger_on_first_use=True
        )

    def take_over(self) -> None:
        """Write down also what the permit library, other libraries and asyncio have to say.

        Changes the process's own logging: for entry points only.
        """
        structlog.configure(
            processors=_PROCESSORS, wrapper_class=_LEVEL, logger_factory=lambda *_: self._sink
        )
        logging.basicConfig(handlers=[_Bridge(self)], level=logging.WARNING)

    def note(self, line: msgspec.Struct) -> None:
        """Write a line as `log.info` would, for the one event that every request causes."""
        self._sink.info(msgspec.json.encode(line) + b"\n")

    async def run(self) -> None:
        """Write what has gathered, each FLUSH_S, until cancelled."""
        while True:
            await asyncio.sleep(FLUSH_S)
            if self._sink.lines:
                await asyncio.to_thread(self._write, self._take())

    async def flush(self) -> None:
        """Write everything now, as far as the reader takes it in time."""
        if self._sink.lines:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asyncio.to_thread(self._write, self._take()), _LAST_FLUSH_S)

    def _take(self) -> bytes:
        lines, self._sink.lines = self._sink.lines, []
        if self._sink.dropped:
            lines.append(
                msgspec.json.encode({"event": "log lines dropped", "count": self._sink.dropped}) + b"\n"
            )
            self._sink.dropped = 0
        return b"".join(lines)

    def _write(self, data: bytes) -> None:
        with contextlib.suppress(OSError):
            while data:
                data = data[os.write(self._fd, data) :]


@contextlib.asynccontextmanager
async def open_journal(fd: int) -> AsyncIterator[Journal]:
    """Yield a journal that is written while the block runs and flushed at its end."""
    journal = Journal(fd)
    writer = asyncio.create_task(journal.run())
    try:
        yield journal
    finally:
        writer.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await writer
        await journal.flush()
