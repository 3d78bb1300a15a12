"""An HTTP client on bare sockets: what a caller of the gateway can do to it, well-behaved or not.

Nothing reads ahead: a `Call` that is not asked for more has stopped reading, and what its kernel buffers is
bounded by `receive_buffer`. Waits are bounded; a TimeoutError names nothing because the test's line does.
"""

from __future__ import annotations

import asyncio
import json
import socket
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Self
from urllib.parse import urlsplit

from tests.support import sockets

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

PATIENCE_S = 10.0
CHAT = "/v1/chat/completions"


def chat_body(
    model: str = "demo", *, prompt: str = "hello", stream: bool = True, **fields: Any
) -> dict[str, Any]:
    """Return the body of a chat request; `fields` are laid over it."""
    return {"model": model, "messages": [{"role": "user", "content": prompt}], "stream": stream, **fields}


def request_bytes(
    url: str,
    *,
    method: str = "POST",
    path: str = CHAT,
    key: str | None = None,
    body: Mapping[str, Any] | bytes | None = None,
    headers: Iterable[tuple[str, str]] = (),
) -> bytes:
    """Return a whole request; `headers` that name content-length or transfer-encoding replace our framing."""
    content = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    lines = [("host", urlsplit(url).netloc), *headers]
    named = {name.lower() for name, _ in lines}
    if key is not None:
        lines.append(("authorization", f"Bearer {key}"))
    if body is not None and "content-type" not in named:
        lines.append(("content-type", "application/json"))
    if body is not None and not named & {"content-length", "transfer-encoding"}:
        lines.append(("content-length", str(len(content))))
    head = "".join(f"{name}: {value}\r\n" for name, value in lines)
    return f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode("latin-1") + content


class HungUpError(Exception):
    """The server closed the connection before the head of a reply was complete."""


@dataclass
class Call:
    """One request on a connection of its own. `head` first, then `next_event` or `rest`, then any way out.

    ended: how the body ended: "clean" as framed, "cut" by FIN before its end, "reset" by RST; None: not yet.
    """

    sock: socket.socket
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    ended: Literal["clean", "cut", "reset"] | None = None
    sent_at: float = 0.0
    head_at: float = 0.0
    _raw: bytearray = field(default_factory=bytearray)
    _text: bytearray = field(default_factory=bytearray)
    _left: int | None = None
    _chunked: bool = False

    @classmethod
    async def connect(cls, url: str, *, receive_buffer: int | None = None) -> Self:
        """Connect and send nothing yet."""
        at = urlsplit(url)
        sock = socket.socket()
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if receive_buffer is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        try:
            async with asyncio.timeout(PATIENCE_S):
                await asyncio.get_running_loop().sock_connect(sock, (at.hostname, at.port))
        except BaseException:
            sock.close()
            raise
        return cls(sock)

    @classmethod
    async def start(cls, url: str, *, receive_buffer: int | None = None, **request: Any) -> Self:
        """Connect and send a request (the arguments of `request_bytes`); wait for nothing."""
        call = await cls.connect(url, receive_buffer=receive_buffer)
        await call.send(request_bytes(url, **request))
        return call

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    async def send(self, data: bytes) -> None:
        """Send bytes as they are."""
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.get_running_loop().sock_sendall(self.sock, data)
        self.sent_at = time.monotonic()

    async def head(self, patience_s: float = PATIENCE_S) -> int:
        """Read the head (header names in lower case) and return the status; 1xx replies are passed over."""
        async with asyncio.timeout(patience_s):
            while True:
                lines = (await self._line_block()).decode("latin-1").split("\r\n")
                self.status = int(lines[0].split(" ")[1])
                if self.status >= 200:
                    break
        self.head_at = time.monotonic()
        pairs = (line.partition(":") for line in lines[1:] if line)
        self.headers = {name.lower(): value.strip() for name, _, value in pairs}
        self._chunked = "chunked" in self.headers.get("transfer-encoding", "")
        length = self.headers.get("content-length")
        self._left = int(length) if length is not None else None
        if self.status in (204, 304) or self._left == 0:
            self.ended = "clean"
        return self.status

    async def next_event(self, patience_s: float = PATIENCE_S) -> bytes | None:
        """Return the next server-sent event without its blank line, or None once the body has ended."""
        async with asyncio.timeout(patience_s):
            while (at := self._text.find(b"\n\n")) < 0:
                if self.ended is not None:
                    return None
                await self._more_text()
        found = bytes(self._text[:at])
        del self._text[: at + 2]
        return found

    async def next_token(self, patience_s: float = PATIENCE_S) -> str | None:
        """Return the content of the next event that has any, or None once the body has ended."""
        while (found := await self.next_event(patience_s)) is not None:
            content = token_of(found)
            if content:
                return content
        return None

    async def first_token(self, patience_s: float = PATIENCE_S) -> str | None:
        """Read the head, then everything up to the first generated content, and return that."""
        await self.head(patience_s)
        return await self.next_token(patience_s)

    async def rest(self, patience_s: float = PATIENCE_S) -> bytes:
        """Read the body to its end, however it ends, and return what `next_event` has not."""
        async with asyncio.timeout(patience_s):
            while self.ended is None:
                await self._more_text()
        text = bytes(self._text)
        self._text.clear()
        return text

    async def json(self) -> Any:
        """Read the body to its end and return it parsed."""
        return json.loads(await self.rest())

    async def error_code(self) -> str | None:
        """Return `error.code` of a refusal's body, or None when there is none."""
        try:
            return str((await self.json())["error"]["code"])
        except (ValueError, KeyError, TypeError):
            return None

    def reset(self) -> None:
        """Leave with RST."""
        if self.sock.fileno() >= 0:
            sockets.reset_on_close(self.sock)
        self.sock.close()

    def close(self) -> None:
        """Leave with FIN (the kernel makes it RST when bytes are unread). Safe to repeat."""
        self.sock.close()

    def vanish(self) -> None:
        """Be gone without a word: from now on nothing that arrives here is even acknowledged."""
        sockets.deafen(self.sock)

    def half_close(self) -> None:
        """Say that no more will be sent, and go on reading."""
        self.sock.shutdown(socket.SHUT_WR)

    async def _line_block(self) -> bytes:
        while (at := self._raw.find(b"\r\n\r\n")) < 0:
            if not await self._receive():
                raise HungUpError(bytes(self._raw[:200]))
        block = bytes(self._raw[:at])
        del self._raw[: at + 4]
        return block

    async def _receive(self) -> bool:
        """Take what the kernel has; False at the end of the connection, which `ended` then names."""
        try:
            data = await asyncio.get_running_loop().sock_recv(self.sock, 65536)
        except ConnectionResetError:
            self.ended = "reset"
            return False
        if not data:
            self.ended = "clean" if not self._chunked and self._left is None and self.status else "cut"
            return False
        self._raw += data
        return True

    async def _more_text(self) -> None:
        """Move at least one piece of the body from the framing to `_text`, or set `ended`."""
        if not self._chunked:
            if self._raw or await self._receive():
                self._unframe(len(self._raw))
            return
        while (at := self._raw.find(b"\r\n")) < 0:
            if not await self._receive():
                return
        size = int(self._raw[:at].split(b";")[0], 16)
        while len(self._raw) < at + 2 + size + 2:
            if not await self._receive():
                self._text += self._raw[at + 2 :]
                return
        self._text += self._raw[at + 2 : at + 2 + size]
        del self._raw[: at + 2 + size + 2]
        if size == 0:
            self.ended = "clean"

    def _unframe(self, count: int) -> None:
        self._text += self._raw[:count]
        del self._raw[:count]
        if self._left is not None:
            self._left -= count
            if self._left <= 0:
                self.ended = "clean"


def token_of(sse_event: bytes) -> str | None:
    """Return the generated content of an event, or None for anything else ([DONE], comments, role, usage)."""
    if not sse_event.startswith(b"data: {"):
        return None
    choices = json.loads(sse_event[6:]).get("choices") or [{}]
    content = (choices[0].get("delta") or {}).get("content")
    return content if isinstance(content, str) else None


@dataclass(frozen=True)
class Answer:
    """A reply that was read to its end."""

    status: int
    headers: dict[str, str]
    body: bytes


async def fetch(
    url: str, path: str, *, method: str = "GET", patience_s: float = PATIENCE_S, **request: Any
) -> Answer:
    """Make one call, read all of the reply, close."""
    call = await Call.start(url, method=method, path=path, **request)
    try:
        status = await call.head(patience_s)
        body = b"" if method == "HEAD" else await call.rest(patience_s)
        return Answer(status, call.headers, body)
    finally:
        call.reset()
