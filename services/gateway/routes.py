"""The request on one screen: authenticate, classify, acquire, open the engine, stream, release."""

import asyncio

from starlette.types import Receive, Scope, Send

from services.gateway.body import ClientGone, check_size, read_body
from services.gateway.callers import tenant_of
from services.gateway.classify import Ask, classify
from services.gateway.engine_wire import EngineFailed
from services.gateway.engines import EngineRequest, Engines
from services.gateway.evidence import covered
from services.gateway.fleets import Fleet, Fleets
from services.gateway.prefixes import candidates
from services.gateway.refusals import NotServed, refusal_of
from services.gateway.relay import Stream, farewell, send_refusal
from services.gateway.trip import Trip
from services.gateway.trips import Trips
from services.permits.errors import Refused, Unavailable
from services.permits.gate import Gate
from services.permits.model import Demand
from services.permits.permit import Permit
from services.settings.schema import Settings


class DataPlane:
    """Everything under /v1/ that runs on an engine, as a plain ASGI application."""

    def __init__(
        self, *, settings: Settings, gate: Gate, fleets: Fleets, engines: Engines, trips: Trips
    ) -> None:
        """Use what others own and close."""
        self._gate = gate
        self._fleets = fleets
        self._engines = engines
        self._trips = trips
        self._body_bytes_max = settings.gateway.max_body_bytes
        self._body_gap_s = settings.budgets.stall_ms / 1000

    async def _serve(self, trip: Trip, receive: Receive) -> None:
        """Live one request's whole life. Whatever ends it early leaves as an exception."""
        trip.tenant = tenant_of(trip.head, self._gate.tenant_of)
        request = await self._read(trip, receive)
        ask = classify(trip.head, request.body)
        fleet = trip.fleet = self._fleets.serving(ask.model)

        trip.watch_client()
        async with self._gate.hold(_demand(trip, ask, fleet)) as permit:
            trip.admit(permit)
            async with self._engines.open(request, fleet, permit) as reply:
                stream = trip.stream = Stream(reply, trip)
                await stream.pass_on()
        # The engine is done: its place is on the way back before the client has the last bytes.
        await stream.finish()

        trip.end("completed")
        self._learn(permit, ask, stream)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, and settle how it ended. Only a foreign cancellation gets out."""
        del send  # replies go out by the trip's wire
        trip = self._trips.begin(scope)
        try:
            if self._trips.draining:
                raise NotServed("draining", "this gateway is shutting down", close=True)
            await self._serve(trip, receive)
        except (NotServed, Refused, Unavailable) as no:
            await self._refuse(trip, no)
        except ClientGone:
            trip.end("client_disconnect")
        except EngineFailed as failed:
            trip.end(failed.reason)
            self._trips.journal.log.info("engine failed", request_id=trip.request_id, why=str(failed))
            await farewell(trip)
        except asyncio.CancelledError:
            if trip.reason is None:
                trip.end("shutdown")
                raise
            await farewell(trip)
        except Exception:
            trip.end("internal_error")
            self._trips.journal.log.exception("internal error", request_id=trip.request_id)
            await farewell(trip)
        finally:
            trip.close()
            if trip.permit is not None and trip.reason is not None:
                self._gate.ended(trip.permit, trip.reason)

    async def _read(self, trip: Trip, receive: Receive) -> EngineRequest:
        head = trip.head
        if trip.wire.has_whole_body:
            body = trip.wire.take_body()
            check_size(len(body), self._body_bytes_max)
        else:
            body = await read_body(receive, head, limit_bytes=self._body_bytes_max, gap_s=self._body_gap_s)
        trip.body_read = True
        return EngineRequest(
            method=head.method,
            path_and_query=f"{head.path}?{head.query}" if head.query else head.path,
            headers=[*head.forward, (b"x-request-id", trip.request_id.encode())],
            body=body,
        )

    def _learn(self, permit: Permit, ask: Ask, stream: Stream) -> None:
        """Note what the engine proved: prefixes it had, and those it lacked against an earlier word.

        A cold permit means that there was no earlier word, so there is none to take back.
        """
        facts = covered(stream.report(), ask.boundaries)
        if facts and permit.class_ == "cold":
            facts = {prefix: held for prefix, held in facts.items() if held}
        if facts:
            self._gate.witness(permit, facts)

    async def _refuse(self, trip: Trip, no: NotServed | Refused | Unavailable) -> None:
        fleet = trip.fleet
        view = self._gate.view(fleet.name) if fleet else None
        refusal = refusal_of(
            no,
            fleet.pace if fleet else None,
            gateways=view.gateways if view else 1,
            total=view.limits.get("total", 1) if view else 1,
        )
        await trip.refuse(refusal.code)
        send_refusal(refusal, trip)


def _demand(trip: Trip, ask: Ask, fleet: Fleet) -> Demand:
    return Demand(
        fleet=fleet.name,
        tenant=trip.tenant,
        request_id=trip.request_id,
        engines=fleet.usable_engines(),
        prefixes=candidates(ask.boundaries),
        # A caller may wait for less than the fleet allows, never for more.
        patience_ms=min(trip.head.patience_ms, fleet.queue_ms),
        # One id from line to log: whoever has it can find the lease of the request on any replica.
        tail=trip.request_id,
    )
