"""Everything that computes nothing: health, the model list, metrics, and the debug calls for tests."""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING

import msgspec

from services.engine import http
from services.engine.errors import BadRequest
from services.engine.metrics import Meters, hit_rate
from services.engine.room import End, Room

if TYPE_CHECKING:
    from starlette.types import Scope, Send

METRICS_TYPE = b"text/plain; version=0.0.4; charset=utf-8"


class Control:
    """Answers at once, also when all slots are taken."""

    def __init__(self, *, room: Room, meters: Meters, model: str, created: int) -> None:
        self._room = room
        self._meters = meters
        card = {"id": model, "object": "model", "created": created, "owned_by": "tenure"}
        self._models = msgspec.json.encode({"object": "list", "data": [card]})

    async def answer(self, scope: Scope, send: Send) -> None:
        """Serve one call. Raises BadRequest with 404 or 405 when there is no such call."""
        match scope["method"], scope["path"]:
            case "GET" | "HEAD", "/health":
                await http.answer(send, 200, b'{"status":"ok"}')
            case "GET" | "HEAD", "/v1/models":
                await http.answer(send, 200, self._models)
            case "GET", "/metrics":
                await http.answer(send, 200, self._meters.text(), METRICS_TYPE)
            case "GET", "/debug/state":
                await http.answer(send, 200, msgspec.json.encode(state(self._room)))
            case "POST", "/debug/reset":
                _check_loopback(scope)
                self._room.zero_maxima()
                await http.answer(send, 200, msgspec.json.encode(state(self._room)))
            case method, path:
                raise BadRequest(f"there is no {method} {path[:100]} here", status=404, code="not_found")


def state(room: Room) -> dict[str, float]:
    """The room in figures: what is live, the maxima since the last reset, and the totals."""
    return {
        "open": room.open,
        "max_open": room.max_open,
        "running": room.running,
        "max_running": room.max_running,
        "queued": room.queued,
        "slots": room.slots,
        "pages": room.cache.size,
        "pages_in_use": room.cache.pages_in_use,
        "pages_cached": room.cache.pages_idle,
        "leaked_pages": room.leaked_pages,
        "hits": room.cache.hits,
        "lookups": room.cache.lookups,
        "hit_rate": hit_rate(room),
        "generated_tokens": room.generated_tokens,
        **{end.value: room.ends[end] for end in End},
    }


def _check_loopback(scope: Scope) -> None:
    """The reset is for tests on the same machine: nobody else may blur what was measured."""
    client = scope.get("client")
    host = client[0] if client else ""
    try:
        local = ipaddress.ip_address(host).is_loopback
    except ValueError:
        local = not host  # a unix socket has no address
    if not local:
        raise BadRequest("POST /debug/reset is answered on loopback only", status=403, code="forbidden")
