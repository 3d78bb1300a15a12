"""The floor of the parts that Tenure is made of: uvicorn and aiohttp, passing bytes on, admitting everybody.

`ENGINE=http://127.0.0.1:8710 uvicorn bench.raw_relay:app`
"""

import os
from typing import Final

import aiohttp
from starlette.types import Receive, Scope, Send

_ENGINE: Final = os.environ.get("ENGINE", "")
_sessions: list[aiohttp.ClientSession] = []


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    """Relay one request; anything else is refused by uvicorn."""
    if scope["type"] != "http":
        return
    if not _sessions:
        _sessions.append(
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), auto_decompress=False)
        )
    body, more = b"", True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    headers = {"content-type": "application/json"}
    url = _ENGINE + scope["path"]
    async with _sessions[0].request(scope["method"], url, data=body, headers=headers) as reply:
        kind = (b"content-type", reply.headers["content-type"].encode())
        await send({"type": "http.response.start", "status": reply.status, "headers": [kind]})
        async for chunk in reply.content.iter_any():
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b""})
