"""An engine that costs next to nothing, so that on two cores the gateway is measured and not the engine.

`python -m bench.engine --port 8710 --gap-ms 10` streams the same token again and again: any POST gets
`max_tokens` of them, one each gap. It also answers what health checks of gateways ask for, and
`GET /closed` says when the connections of requests that did not end were closed: `{mark: monotonic seconds}`,
with the `user` field of each request for its mark.
"""

import argparse
import asyncio
import json
import re
from functools import partial
from time import monotonic
from typing import Any, Final, cast

import uvloop

from bench.wires import message_bytes

TOKEN: Final = b"jade"
_WANTED: Final = re.compile(rb'"max_(?:completion_)?tokens": ?(\d+)')
_MARK: Final = re.compile(rb'"user": ?"([^"]*)"')
_EVENT: Final = (
    b'data: {"id":"chatcmpl-7f8c9b2c4d5e","object":"chat.completion.chunk","created":1795980697,'
    b'"model":"demo","choices":[{"index":0,"delta":{%s},"finish_reason":%s}]}\n\n'
)
_HEAD: Final = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ncache-control: no-cache\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)
# What the routers that we compare with ask their workers before they send them anything.
_PAGES: Final[dict[bytes, dict[str, Any]]] = {
    b"/health": {"status": "ok"},
    b"/v1/models": {"object": "list", "data": [{"id": "demo", "object": "model", "owned_by": "bench"}]},
    b"/model_info": {"is_generation": True},
    b"/server_info": {"served_model_name": "demo", "version": "0"},
}


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


_ROLE: Final = _HEAD + _chunk(_EVENT % (b'"role":"assistant","content":""', b"null"))
_WORD: Final = _chunk(_EVENT % (b'"content":"%s"' % TOKEN, b"null"))
_ENDING: Final = _chunk(_EVENT % (b"", b'"stop"')) + _chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"


class Connection(asyncio.Protocol):
    """One connection: requests on it are answered one after the other."""

    def __init__(self, *, gap_s: float, prefill_s: float, closed: dict[str, float]) -> None:
        """`closed` is shared by all: mark -> when its connection was lost."""
        self._gap_s = gap_s
        self._prefill_s = prefill_s
        self._closed = closed
        self._loop = asyncio.get_running_loop()
        self._data = bytearray()
        self._left = 0
        self._mark = ""
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._data += data
        size = message_bytes(self._data)
        if size is not None and len(self._data) >= size:
            request = bytes(self._data[:size])
            del self._data[:size]
            self._answer(request)

    def connection_lost(self, error: Exception | None) -> None:
        del error
        if self._timer is not None:
            self._timer.cancel()
            self._closed[self._mark] = monotonic()

    def _answer(self, request: bytes) -> None:
        if request.startswith(b"PRI "):
            # A router asks whether we speak HTTP/2.
            self._transport.close()
            return
        method, path, _ = request.split(b" ", 2)
        if method != b"POST":
            page = self._closed if path == b"/closed" else _PAGES.get(path.partition(b"?")[0])
            body = json.dumps({} if page is None else page).encode()
            status = b"404 Not Found" if page is None else b"200 OK"
            head = b"HTTP/1.1 %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
            self._transport.write(head % (status, len(body)) + body)
            return
        wanted, mark = _WANTED.search(request), _MARK.search(request)
        self._left = int(wanted[1]) if wanted else 1
        self._mark = mark[1].decode() if mark else ""
        self._transport.write(_ROLE)
        self._timer = self._loop.call_later(self._prefill_s, self._token)

    def _token(self) -> None:
        self._left -= 1
        if self._left:
            self._transport.write(_WORD)
            self._timer = self._loop.call_later(self._gap_s, self._token)
        else:
            self._timer = None
            self._transport.write(_WORD + _ENDING)


async def _serve(port: int, gap_s: float, prefill_s: float) -> None:
    make = partial(Connection, gap_s=gap_s, prefill_s=prefill_s, closed={})
    server = await asyncio.get_running_loop().create_server(make, "127.0.0.1", port, backlog=4096)
    await server.serve_forever()


def main() -> None:
    """Serve until ended by a signal."""
    parser = argparse.ArgumentParser(prog="bench.engine", description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--gap-ms", type=float, default=10, help="between two tokens of a stream")
    parser.add_argument("--prefill-ms", type=float, default=1, help="before the first token")
    options = parser.parse_args()
    uvloop.run(_serve(options.port, options.gap_ms / 1000, options.prefill_ms / 1000))


if __name__ == "__main__":
    main()
