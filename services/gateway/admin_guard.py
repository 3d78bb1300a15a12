"""Before any admin call: its token, and a bound on its body. In one place, so that no call can forget it."""

import hmac
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from services.gateway.body import ClientGone, read_body
from services.gateway.headers import read_head
from services.gateway.problems import problem
from services.gateway.refusals import NotServed

# The largest legal body sets a quota for every fleet.
BODY_BYTES_MAX: Final = 64 * 1024
BODY_GAP_S: Final = 5.0


class AdminGuard:
    """An ASGI application in front of another one."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        """With an empty token every call is refused."""
        self._app = app
        self._token = token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check, read the body whole, and pass both on."""
        try:
            self._check(scope)
            body = await read_body(receive, read_head(scope), limit_bytes=BODY_BYTES_MAX, gap_s=BODY_GAP_S)
        except NotServed as no:
            headers = {"WWW-Authenticate": "Bearer"} if no.code == "invalid_api_key" else {}
            await problem(no.code, no.message, headers, close=no.close)(scope, receive, send)
        except ClientGone:
            return
        else:
            await self._app(scope, _replay(body, receive), send)

    def _check(self, scope: Scope) -> None:
        if not self._token:
            raise NotServed("forbidden", "admin calls are refused: admin.token is empty in the configuration")
        sent = [value for name, value in scope["headers"] if name == b"authorization"]
        scheme, _, token = sent[0].partition(b" ") if len(sent) == 1 else (b"", b"", b"")
        right = hmac.compare_digest(token.strip(), self._token)
        if scheme.lower() != b"bearer" or not right:
            what = "wrong" if sent else "missing"
            raise NotServed(
                "invalid_api_key", f"the admin token is {what}; send `Authorization: Bearer TOKEN`"
            )


def _replay(body: bytes, receive: Receive) -> Receive:
    unread = [body]

    async def again() -> Message:
        if unread:
            return {"type": "http.request", "body": unread.pop(), "more_body": False}
        return await receive()

    return again
