"""The user's stop: a caller ends a request of its own tenant, on whichever replica it runs or waits."""

from collections.abc import Callable
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Path, Request
from fastapi.security import HTTPBearer

from services.gateway.admin_models import ErrorEnvelope, StopAnswer
from services.gateway.callers import tenant_of
from services.gateway.desk import Desk
from services.gateway.headers import read_head
from services.gateway.refusals import NotServed

_BEARER: Final = HTTPBearer(scheme_name="CallerKey", auto_error=False, description="The caller's own key")
_PROBLEMS: Final[dict[int | str, dict[str, Any]]] = {
    status: {"model": ErrorEnvelope} for status in (401, 404, 503)
}


class Stops:
    """`DELETE /v1/requests/{request_id}`. Takes no permit and never waits behind traffic."""

    def __init__(self, desk: Desk, lookup: Callable[[str], str | None]) -> None:
        """`lookup` says whose a key is."""
        self._desk = desk
        self._lookup = lookup

    def router(self) -> APIRouter:
        """Return the route."""
        router = APIRouter(prefix="/v1", tags=["requests"], dependencies=[Depends(_BEARER)])
        router.add_api_route(
            # Any rest of the path: what is no id of a request is an unknown one.
            "/requests/{request_id:path}",
            self.stop,
            methods=["DELETE"],
            status_code=202,
            operation_id="stop_request",
            responses=_PROBLEMS,
        )
        return router

    async def stop(
        self,
        request: Request,
        request_id: Annotated[str, Path(description="`X-Request-Id` of the reply, exactly")],
    ) -> StopAnswer:
        """End a request of the caller's own tenant; another's is as unknown as one that never was."""
        tenant = tenant_of(read_head(request.scope), self._lookup)
        who = f"tenant {tenant}"
        if not await self._desk.ask(lambda admin: admin.stop(request_id, tenant), who=who):
            raise NotServed("unknown_request", "no request of yours with this id is running or waiting")
        return StopAnswer(request_id=request_id)
