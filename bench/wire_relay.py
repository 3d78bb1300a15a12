"""The bare relay once more, with Tenure's own client of engines in place of aiohttp.

`ENGINE=http://127.0.0.1:8710 uvicorn bench.wire_relay:app`
"""

import os
from typing import Final

from starlette.types import Receive, Scope, Send

from services.gateway.engine_pool import EnginePool

_ENGINE: Final = os.environ.get("ENGINE", "")
_pools: list[EnginePool] = []


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    """Relay one request; anything else is refused by uvicorn."""
    if scope["type"] != "http":
        return
    if not _pools:
        _pools.append(EnginePool(_ENGINE))
    pool = _pools[0]
    body, more = b"", True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    head = (
        f"{scope['method']} {scope['path']} HTTP/1.1\r\nhost: {pool.authority}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    connection = pool.take_idle() or await pool.connect(5)
    reply = await connection.exchange(head.encode(), body)
    kind = (b"content-type", reply.content_type)
    await send({"type": "http.response.start", "status": reply.status, "headers": [kind]})
    while chunk := await reply.read():
        await send({"type": "http.response.body", "body": chunk, "more_body": True})
    await send({"type": "http.response.body", "body": b""})
