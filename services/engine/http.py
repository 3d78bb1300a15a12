"""The few HTTP moves the engine needs, on plain ASGI."""

from __future__ import annotations

from typing import TYPE_CHECKING

from services.engine.errors import BadRequest, Gone

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.types import Receive, Send

MAX_BODY_BYTES = 32 << 20
JSON = b"application/json"
EVENT_STREAM = b"text/event-stream; charset=utf-8"

Header = tuple[bytes, bytes]


async def read_body(receive: Receive) -> bytes:
    """Read a body. Raises Gone when the client leaves first, BadRequest (413) when it is too large."""
    parts: list[bytes] = []
    size = 0
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Gone
        part: bytes = message.get("body", b"")
        parts.append(part)
        size += len(part)
        if size > MAX_BODY_BYTES:
            raise BadRequest(
                f"the body is larger than {MAX_BODY_BYTES} bytes", status=413, code="request_too_large"
            )
        more = message.get("more_body", False)
    return b"".join(parts)


async def start(send: Send, status: int, content_type: bytes, headers: Sequence[Header] = ()) -> None:
    """Send the head of an answer."""
    await send(
        {
            "type": "http.response.start",
            "status": status,
            "headers": [(b"content-type", content_type), *headers],
        }
    )


async def part(send: Send, body: bytes, *, more: bool = True) -> None:
    """Send a piece of the body; `more=False` ends it. Blocks while the client does not read."""
    await send({"type": "http.response.body", "body": body, "more_body": more})


async def answer(
    send: Send, status: int, body: bytes, content_type: bytes = JSON, headers: Sequence[Header] = ()
) -> None:
    """Send a whole answer."""
    length = (b"content-length", str(len(body)).encode())
    await start(send, status, content_type, (length, *headers))
    await part(send, body, more=False)
