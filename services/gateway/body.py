"""Reading a request's body, bounded in bytes and in time. No permit is held meanwhile."""

import asyncio
from typing import Final

from starlette.types import Message, Receive

from services.gateway.headers import Head
from services.gateway.refusals import NotServed
from services.permits.clock import monotonic

# Once the first gap has passed, a body must have come at this pace on the average: whoever sends a byte now
# and then would hold its connection, and what it has sent, for as long as it likes.
BYTES_PER_S_MIN: Final = 4 * 1024


class ClientGone(Exception):
    """The client left before its request was whole."""


async def read_body(receive: Receive, head: Head, *, limit_bytes: int, gap_s: float) -> bytes:
    """Return the whole body.

    Raises NotServed: request_too_large as soon as that is certain, with or without Content-Length;
    bad_request when nothing came for `gap_s`, or too little in all. Raises ClientGone when the client left.
    """
    check_size(head.content_length or 0, limit_bytes)
    body = bytearray()
    began_s = monotonic()
    while True:
        message = await _receive(receive, len(body), began_s, gap_s)
        if message["type"] == "http.disconnect":
            raise ClientGone
        chunk = message.get("body", b"")
        check_size(len(body) + len(chunk), limit_bytes)
        if not message.get("more_body", False):
            return bytes(body + chunk) if body else chunk
        body += chunk


async def _receive(receive: Receive, size: int, began_s: float, gap_s: float) -> Message:
    """Wait for more of a body of which `size` bytes have come since `began_s`."""
    due_s = began_s + gap_s + size / BYTES_PER_S_MIN
    try:
        async with asyncio.timeout(min(gap_s, due_s - monotonic())):
            return await receive()
    except TimeoutError:
        raise NotServed(
            "bad_request", f"the body stopped coming, or came too slowly: {size} bytes so far", close=True
        ) from None


def check_size(size: int, limit_bytes: int) -> None:
    """Raise NotServed("request_too_large") for a body of `size` bytes when that is above the limit."""
    if size > limit_bytes:
        raise NotServed("request_too_large", f"the body is larger than {limit_bytes} bytes", close=True)
