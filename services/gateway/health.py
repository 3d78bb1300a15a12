"""The calls that take no permit: health, readiness, metrics, the list of models."""

import asyncio
from collections.abc import Iterator
from typing import Any, Final

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from services.gateway.callers import tenant_of
from services.gateway.fleets import Fleet, Fleets
from services.gateway.headers import read_head
from services.gateway.metrics import Metrics
from services.gateway.refusals import NotServed, refusal_of
from services.gateway.trips import Trips
from services.permits.errors import PermitError, Unavailable
from services.permits.gate import Gate

_COUNTS_FRESH_S: Final = 0.5
_PROBE: Final = ["GET", "HEAD"]


class ControlPlane:
    """Answers for the gateway itself. None of it waits behind traffic, and only /metrics asks Redis."""

    def __init__(self, *, gate: Gate, fleets: Fleets, trips: Trips, metrics: Metrics) -> None:
        """Use what others own and close."""
        self._gate = gate
        self._fleets = fleets
        self._trips = trips
        self._metrics = metrics
        self._counting = asyncio.Lock()
        self._counted_s = float("-inf")

    def router(self) -> APIRouter:
        """Return the routes."""
        router = APIRouter(include_in_schema=False)
        router.add_api_route("/healthz", self.healthz, methods=_PROBE)
        router.add_api_route("/readyz", self.readyz, methods=_PROBE)
        router.add_api_route("/metrics", self.metrics, methods=_PROBE)
        router.add_api_route("/v1/models", self.models, methods=_PROBE)
        return router

    async def healthz(self) -> Response:
        """The loop turns."""
        return JSONResponse({"status": "ok"})

    async def readyz(self) -> Response:
        """Whether a request could be admitted here now, and why not."""
        ready, why = (False, "draining") if self._trips.draining else self._gate.ready()
        return JSONResponse({"ready": ready, "reason": why}, 200 if ready else 503)

    async def metrics(self) -> Response:
        """Prometheus's text format."""
        async with self._counting:
            now_s = asyncio.get_running_loop().time()
            if now_s - self._counted_s >= _COUNTS_FRESH_S:
                await self._count()
                self._counted_s = now_s
        return Response(self._metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def _count(self) -> None:
        tenants = self._gate.tenants()
        try:
            for fleet in self._fleets:
                counts = await self._gate.count(fleet.name, tenants, tuple(fleet.engines))
                self._metrics.pools(fleet.name, counts)
        except PermitError:
            self._metrics.no_pools()

    async def models(self, request: Request) -> Response:
        """List the models of all fleets that the key may use."""
        try:
            tenant = tenant_of(read_head(request.scope), self._gate.tenant_of)
        except (NotServed, Unavailable) as no:
            refusal = refusal_of(no)
            body = refusal.envelope
            headers = {name.decode(): value.decode() for name, value in refusal.headers(body)}
            return Response(body, refusal.status, headers)
        return JSONResponse({"object": "list", "data": list(self._visible(tenant))})

    def _visible(self, tenant: str) -> Iterator[dict[str, Any]]:
        for fleet in self._fleets:
            if self._quota(fleet, tenant) > 0:
                for model in fleet.config.models:
                    yield {"id": model, "object": "model", "created": 0, "owned_by": fleet.name}

    def _quota(self, fleet: Fleet, tenant: str) -> int:
        """Return the tenant's quota as Redis had it at the last tick, else as the file has it."""
        view = self._gate.view(fleet.name)
        limits = view.limits if view else {}
        default = limits.get("tenant_default", fleet.config.tenant_default)
        return limits.get(f"tenant:{tenant}", default)
