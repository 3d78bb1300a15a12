"""What the scripted engine saw of one request, and the pen with which a script writes the reply."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.support.http_peer import Peer

Header = tuple[str, str]
Framing = Literal["chunked", "length", "close"]


@dataclass(eq=False)
class Seen:
    """One request as the engine saw it.

    Times are time.monotonic() seconds; closed_* are None while it is open.
    closed_by is "client" when the other side closed or reset while the reply was still due, "engine" when the
    script came to its end (also when that end was a reset by the engine).
    """

    method: str
    path: str
    version: str
    headers: list[Header]
    connection: int
    opened_at: float
    body: bytes = b""
    closed_at: float | None = None
    closed_by: Literal["client", "engine"] | None = None
    _accepted: Callable[[], int] = field(default=int, repr=False)

    @property
    def bytes_accepted(self) -> int:
        """Return how many bytes of the reply the kernel has taken, also while it is being written."""
        return self._accepted()

    def count_bytes(self, meter: Callable[[], int]) -> None:
        """Count from now on by `meter`, a running total of the connection."""
        base = meter()
        self._accepted = lambda: meter() - base

    def close(self, closed_by: Literal["client", "engine"], closed_at: float) -> None:
        """Stamp the end and freeze the count: the connection may carry other requests."""
        total = self._accepted()
        self._accepted = lambda: total
        self.closed_by, self.closed_at = closed_by, closed_at

    def header(self, name: str) -> str | None:
        """Return the first value of a header, by any case, or None."""
        return next((value for key, value in self.headers if key.lower() == name.lower()), None)

    def json(self) -> dict[str, Any]:
        """Return the body as a JSON object; raises ValueError when it is none."""
        parsed = json.loads(self.body)
        if not isinstance(parsed, dict):
            msg = f"a JSON object was expected, got {self.body[:80]!r}"
            raise ValueError(msg)  # noqa: TRY004 - one error for all that is wrong with the bytes
        return parsed

    @property
    def body_sha256(self) -> str:
        """Return the SHA-256 of the body, in hex."""
        return hashlib.sha256(self.body).hexdigest()


@dataclass
class Held:
    """The replies that wait for the test's word; in order of arrival."""

    waiting: list[asyncio.Future[None]] = field(default_factory=list)

    def finish(self, count: int | None) -> int:
        """Let the first `count` (None: all) go on; return how many that were."""
        ready = [one for one in self.waiting if not one.done()][:count]
        for one in ready:
            one.set_result(None)
        return len(ready)


class Reply:
    """Writes one reply. Every call that waits raises PeerGoneError at the moment the other side leaves."""

    def __init__(self, seen: Seen, peer: Peer, held: Held) -> None:
        """Write to `peer`; `hold` waits among `held`."""
        self.seen = seen
        self.reusable = True
        self._peer = peer
        self._held = held
        self._framing: Framing = "close"

    async def pause(self, seconds: float) -> None:
        """Wait `seconds` of silence."""
        if seconds > 0:
            await self._peer.pause(seconds)

    async def hold(self) -> None:
        """Stay silent until the test calls `finish` or the other side leaves."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        gone = asyncio.ensure_future(self._peer.wait_gone())
        self._held.waiting.append(waiter)
        try:
            await asyncio.wait({waiter, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._held.waiting.remove(waiter)
            waiter.cancel()
            gone.cancel()
        self._peer.check()

    async def head(
        self, status: int, headers: Iterable[Header] = (), *, framing: Framing = "chunked"
    ) -> None:
        """Send the status line and the headers; `framing` says how `piece` will mark the body."""
        self._framing = framing
        lines = [f"HTTP/1.1 {status} Scripted", *(f"{name}: {value}" for name, value in headers)]
        if framing == "chunked":
            lines.append("transfer-encoding: chunked")
        if framing == "close":
            lines.append("connection: close")
            self.reusable = False
        await self.raw("\r\n".join([*lines, "", ""]).encode("latin-1"))

    async def piece(self, data: bytes) -> None:
        """Send a piece of the body in the framing that `head` chose; nothing in answer to a HEAD."""
        if self.seen.method == "HEAD":
            return
        if self._framing == "chunked":
            data = b"%x\r\n%s\r\n" % (len(data), data)
        await self.raw(data)

    async def end(self) -> None:
        """Mark the clean end of the body."""
        if self._framing == "chunked" and self.seen.method != "HEAD":
            await self.raw(b"0\r\n\r\n")

    async def raw(self, data: bytes) -> None:
        """Send bytes as they are."""
        await self._peer.send(data)

    def reset(self) -> None:
        """Cut the connection with RST: the engine died."""
        self.reusable = False
        self._peer.reset()

    def close(self) -> None:
        """Close the connection with FIN, whatever was promised."""
        self.reusable = False
        self._peer.close()


# A script is one way to answer: it runs in the engine's own thread and may take as long as it likes.
Script = Callable[[Reply], Awaitable[None]]
