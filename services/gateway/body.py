"""Reading a request's body, bounded in bytes and in time. No permit is held meanwhile."""

import asyncio

from starlette.types import Message, Receive

from services.gateway.headers import Head
from services.gateway.refusals import NotServed


class ClientGone(Exception):
    """The client left before its request was whole."""


async def read_body(
    receive: Receive, head: Head, *, limit_bytes: int, gap_s: float, arrived: bool = False
) -> bytes:
    """Return the whole body. `arrived` says that all of it is here already: nothing need be waited for.

    Raises NotServed: request_too_large as soon as that is certain, with or without Content-Length;
    bad_request when nothing came for `gap_s`. Raises ClientGone when the client left.
    """
    if head.content_length is not None and head.content_length > limit_bytes:
        raise _too_large(limit_bytes)
    chunks: list[bytes] = []
    size = 0
    while True:
        # A timeout costs more than a body that has arrived already.
        message = await (receive() if arrived else _receive_within(gap_s, receive))
        if message["type"] == "http.disconnect":
            raise ClientGone
        chunk = message.get("body", b"")
        size += len(chunk)
        if size > limit_bytes:
            raise _too_large(limit_bytes)
        chunks.append(chunk)
        if not message.get("more_body", False):
            return chunks[0] if len(chunks) == 1 else b"".join(chunks)


async def _receive_within(gap_s: float, receive: Receive) -> Message:
    try:
        async with asyncio.timeout(gap_s):
            return await receive()
    except TimeoutError:
        raise NotServed("bad_request", f"no byte of the body arrived for {gap_s:g} s", close=True) from None


def _too_large(limit_bytes: int) -> NotServed:
    return NotServed("request_too_large", f"the body is larger than {limit_bytes} bytes", close=True)
