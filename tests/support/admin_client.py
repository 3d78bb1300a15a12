"""Administration over HTTP as a script of an operator does it: one call, one status, one JSON answer."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

from tests.support.client import fetch

TOKEN: Final = "the-admin-token"
# What `write_config` takes, for gateways that are to be administered.
ADMIN: Final = {"token": TOKEN}


@dataclass(frozen=True)
class AdminClient:
    """Talks to one replica; `who` is the name under which its changes are recorded."""

    url: str
    token: str | None = TOKEN
    who: str = "ann"

    async def call(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Return (status, answer); None when there is no body. `path` begins after /admin/v1."""
        answer = await fetch(
            self.url,
            f"/admin/v1{path}",
            method=method,
            key=self.token,
            body=body,
            headers=[("tenure-who", self.who)],
        )
        return answer.status, json.loads(answer.body) if answer.body else None

    async def ok(self, method: str, path: str, body: Any = None) -> Any:
        """Return the answer of a call that must succeed."""
        status, answer = await self.call(method, path, body)
        assert status < 300, (status, answer)
        return answer

    async def fails(self, method: str, path: str, body: Any = None) -> tuple[int, str, str]:
        """Return (status, code, sentence) of a call that must not."""
        status, answer = await self.call(method, path, body)
        assert set(answer) == {"error"}, answer
        assert set(answer["error"]) == {"message", "type", "param", "code"}
        return status, answer["error"]["code"], answer["error"]["message"]

    async def set_limits(self, fleet: str = "demo", **limits: Any) -> Any:
        """Set limits of a fleet and return what it is then."""
        return await self.ok("PATCH", f"/fleets/{fleet}", limits)

    async def events(self, kind: str) -> list[dict[str, Any]]:
        """Return all events of a kind, the oldest first."""
        answer = await self.ok("GET", "/events?limit=1000")
        return [event for event in answer["events"] if event["kind"] == kind]
