"""The administration of the whole fleet, over HTTP, on every replica. What it does is in `permits.admin`."""

from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Header, Path, Query, Request
from fastapi.security import HTTPBearer

from services.gateway import admin_models as m
from services.gateway.desk import Desk
from services.permits.admin_checks import PAGE_MAX
from services.permits.admin_model import row_json

_NAME: Final = r"^[A-Za-z0-9._-]{1,64}$"
Fleet = Annotated[str, Path(max_length=64, description="The name of a fleet")]
Tenant = Annotated[str, Path(pattern=_NAME, description="The name of a tenant")]
Limit = Annotated[int, Query(ge=1, le=PAGE_MAX)]
TenantFilter = Annotated[str | None, Query(pattern=_NAME, description="Only this tenant's")]

# The guard in front checks the token; this says so in the schema.
_BEARER: Final = HTTPBearer(auto_error=False, description="`admin.token` of the configuration")


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the error answers of one call, beside those that every call has."""
    return {status: {"model": m.ErrorEnvelope} for status in (*statuses, 400, 401, 403, 413, 503)}


async def _who(
    request: Request,
    tenure_who: Annotated[
        str, Header(pattern=r"^[A-Za-z0-9._@-]{1,64}$", description="Who makes the change, for the events")
    ] = "admin",
) -> str:
    return f"{tenure_who}@{request.client.host}" if request.client else tenure_who


Who = Annotated[str, Depends(_who)]


class AdminApi:
    """The routes under /admin/v1."""

    def __init__(self, desk: Desk) -> None:
        """Ask at a desk of its own: callers' stops do not wait behind administration."""
        self._desk = desk

    def router(self) -> APIRouter:
        """Return the routes."""
        router = APIRouter(prefix="/admin/v1", tags=["admin"], dependencies=[Depends(_BEARER)])
        add = router.add_api_route
        missing, plain = problems(404), problems()
        add("/fleets", self.fleets, operation_id="list_fleets", responses=plain)
        add("/fleets/{fleet}", self.fleet, operation_id="show_fleet", responses=missing)
        add(
            "/fleets/{fleet}",
            self.set_limits,
            methods=["PATCH"],
            operation_id="set_limits",
            responses=missing,
        )
        add("/fleets/{fleet}/leases", self.leases, operation_id="list_leases", responses=missing)
        add("/fleets/{fleet}/line", self.line, operation_id="show_line", responses=missing)
        add(
            "/leases/{lease}",
            self.revoke,
            methods=["DELETE"],
            status_code=202,
            operation_id="revoke_lease",
            responses=missing,
        )
        add("/gateways", self.gateways, operation_id="list_gateways", responses=plain)
        add(
            "/gateways/{gateway}/drain",
            self.drain,
            methods=["POST"],
            status_code=202,
            operation_id="drain_gateway",
            responses=missing,
        )
        add("/events", self.events, operation_id="list_events", responses=missing)
        self._add_tenants(router)
        return router

    def _add_tenants(self, router: APIRouter) -> None:
        add, missing = router.add_api_route, problems(404)
        path = "/tenants/{tenant}"
        add("/tenants", self.tenants, operation_id="list_tenants", responses=problems())
        add(path, self.tenant, operation_id="show_tenant", responses=missing)
        add(path, self.put_tenant, methods=["PUT"], operation_id="put_tenant", responses=missing)
        add(
            path,
            self.delete_tenant,
            methods=["DELETE"],
            status_code=204,
            operation_id="delete_tenant",
            responses=missing,
        )
        add(
            f"{path}/keys",
            self.add_key,
            methods=["POST"],
            status_code=201,
            operation_id="add_key",
            responses=missing,
        )
        add(
            f"{path}/keys/{{key_id}}",
            self.revoke_key,
            methods=["DELETE"],
            status_code=204,
            operation_id="revoke_key",
            responses=missing,
        )

    # --- fleets

    async def fleets(self) -> m.FleetsAnswer:
        """List the fleets by name."""
        return m.FleetsAnswer(fleets=await self._desk.ask(lambda admin: admin.fleets()))

    async def fleet(self, fleet: Fleet) -> m.FleetAnswer:
        """Show the pools of one fleet: limits, use, and who waits."""
        state = await self._desk.ask(lambda admin: admin.fleet(fleet))
        return m.FleetAnswer.model_validate(state.as_json())

    async def set_limits(self, fleet: Fleet, changes: m.LimitChanges, who: Who) -> m.FleetAnswer:
        """Set limits, at once on every replica; nobody who runs is cut, and who waits and fits now starts."""
        fields = changes.model_dump(exclude_unset=True)
        state = await self._desk.ask(lambda admin: admin.set_limits(fleet, fields), who=who)
        return m.FleetAnswer.model_validate(state.as_json())

    async def leases(
        self,
        fleet: Fleet,
        tenant: TenantFilter = None,
        limit: Limit = 100,
        cursor: Annotated[str, Query(max_length=255, description="The `cursor` of the page before")] = "",
    ) -> m.LeasesAnswer:
        """List who holds what, since when, for how long, in the order of the lease ids."""
        page = await self._desk.ask(
            lambda admin: admin.leases(fleet, tenant=tenant, limit=limit, cursor=cursor)
        )
        leases = [m.Lease.model_validate(row_json(row)) for row in page.items]
        return m.LeasesAnswer(leases=leases, cursor=page.cursor)

    async def line(self, fleet: Fleet) -> m.LineAnswer:
        """List those who wait, in the order of the line; the first thousand."""
        rows = await self._desk.ask(lambda admin: admin.line(fleet))
        return m.LineAnswer(line=[m.Waiter.model_validate(row_json(row)) for row in rows])

    async def revoke(self, lease: Annotated[str, Path(max_length=255)], who: Who) -> m.LeaseEnding:
        """End one request, running or waiting, on whichever replica it is."""
        await self._desk.ask(lambda admin: admin.revoke(lease), who=who)
        return m.LeaseEnding(lease=lease)

    # --- tenants

    async def tenants(self) -> m.TenantsAnswer:
        """List the tenants by name."""
        return m.TenantsAnswer(tenants=await self._desk.ask(lambda admin: admin.tenants()))

    async def tenant(self, tenant: Tenant) -> m.TenantAnswer:
        """Show one tenant: its weight, its quotas, and its keys by id and last four characters."""
        state = await self._desk.ask(lambda admin: admin.tenant(tenant))
        return m.TenantAnswer.model_validate(state.as_json())

    async def put_tenant(self, tenant: Tenant, changes: m.TenantChanges, who: Who) -> m.TenantAnswer:
        """Make a tenant, or change its weight and the quotas that are named."""
        fields = changes.model_dump(exclude_unset=True)
        state = await self._desk.ask(lambda admin: admin.put_tenant(tenant, **fields), who=who)
        return m.TenantAnswer.model_validate(state.as_json())

    async def delete_tenant(self, tenant: Tenant, who: Who) -> None:
        """Remove a tenant, its keys and its quotas: new requests are refused, running ones run on."""
        await self._desk.ask(lambda admin: admin.delete_tenant(tenant), who=who)

    async def add_key(self, tenant: Tenant, who: Who) -> m.KeyAnswer:
        """Make a key for a tenant, which every replica knows within a second. It is shown this once."""
        made = await self._desk.ask(lambda admin: admin.add_key(tenant), who=who)
        return m.KeyAnswer(tenant=made.tenant, key=made.key, key_id=made.key_id)

    async def revoke_key(self, tenant: Tenant, key_id: Annotated[str, Path(max_length=64)], who: Who) -> None:
        """End a key for ever, within a second on every replica; requests it began run on."""
        await self._desk.ask(lambda admin: admin.revoke_key(tenant, key_id), who=who)

    # --- gateways and history

    async def gateways(self) -> m.GatewaysAnswer:
        """List the gateway processes that still tick."""
        rows = await self._desk.ask(lambda admin: admin.gateways())
        return m.GatewaysAnswer(gateways=[m.GatewayProcess.model_validate(row_json(row)) for row in rows])

    async def drain(self, gateway: Annotated[str, Path(max_length=80)], who: Who) -> m.DrainAnswer:
        """Let a replica finish and stop, as SIGTERM does."""
        return m.DrainAnswer(
            gateway=gateway, holders=await self._desk.ask(lambda admin: admin.drain(gateway), who=who)
        )

    async def events(
        self,
        fleet: Annotated[str | None, Query(max_length=64, description="Only this fleet's")] = None,
        after: Annotated[
            str, Query(pattern=r"^[0-9]{1,15}(-[0-9]{1,15})?$", description="The `after` of the page before")
        ] = "0",
        limit: Limit = 100,
        *,
        ends: Annotated[bool, Query(description="Whether to list also how each request ended")] = True,
    ) -> m.EventsAnswer:
        """List ends, reclaims, changes and revokes after an event: who, what, when, old and new value."""
        page = await self._desk.ask(lambda admin: admin.events(fleet, after, limit, ends=ends))
        events = [m.Event.model_validate(event) for event in page.items]
        return m.EventsAnswer(events=events, after=page.cursor)
