"""The commands around limits and live requests, and `tenure top`. Thin on purpose, as in `app.py`."""

import asyncio
from typing import Annotated

import typer

from services.cli.options import Config, Json, OneFleet, RedisUrl, settings_of


def register(app: typer.Typer) -> None:
    """Add everything here to the command line."""
    for command in (limits, line, gateways, revoke, drain, events, top):
        app.command()(command)


def limits(
    context: typer.Context,
    fleet: Annotated[str, typer.Argument(metavar="FLEET")],
    changes: Annotated[list[str] | None, typer.Argument(metavar="[NAME=N]...", help="Like total=8.")] = None,
    *,
    config: Config = None,
    redis_url: RedisUrl = None,
    as_json: Json = False,
) -> None:
    """Show a fleet's limits, or set some, live: total cold tenant_default line_max ... shadow=cold,total."""
    from services.cli.limits import limits as go

    asyncio.run(go(settings_of(context, config, redis_url), fleet, changes or (), as_json=as_json))


def line(
    context: typer.Context,
    *,
    config: Config = None,
    fleet: OneFleet = None,
    redis_url: RedisUrl = None,
    as_json: Json = False,
) -> None:
    """Show who waits, in the order in which a free place finds them."""
    from services.cli.requests import show_line

    asyncio.run(show_line(settings_of(context, config, redis_url), fleet=fleet, as_json=as_json))


def gateways(
    context: typer.Context, *, config: Config = None, redis_url: RedisUrl = None, as_json: Json = False
) -> None:
    """Show every gateway that still ticks."""
    from services.cli.requests import show_gateways

    asyncio.run(show_gateways(settings_of(context, config, redis_url), as_json=as_json))


def revoke(
    context: typer.Context,
    lease: Annotated[str, typer.Argument(metavar="LEASE")],
    *,
    config: Config = None,
    redis_url: RedisUrl = None,
    as_json: Json = False,
) -> None:
    """End one request, running or waiting, by its lease."""
    from services.cli.requests import revoke as go

    asyncio.run(go(settings_of(context, config, redis_url), lease, as_json=as_json))


def drain(
    context: typer.Context,
    gateway: Annotated[str, typer.Argument(metavar="GATEWAY", help="Its name, or its holder id.")],
    *,
    config: Config = None,
    redis_url: RedisUrl = None,
    as_json: Json = False,
) -> None:
    """Let a replica finish what it serves, and stop."""
    from services.cli.requests import drain as go

    asyncio.run(go(settings_of(context, config, redis_url), gateway, as_json=as_json))


def events(
    context: typer.Context,
    *,
    config: Config = None,
    fleet: OneFleet = None,
    after: Annotated[str | None, typer.Option("--after", help="Those that follow this id.")] = None,
    most: Annotated[int, typer.Option("--limit", min=1, max=1000, help="So many.")] = 50,
    ends: Annotated[bool, typer.Option("--ends/--no-ends", help="Also how each request ended.")] = True,
    redis_url: RedisUrl = None,
    as_json: Json = False,
) -> None:
    """Show what happened, the newest: ends, reclaims, revokes, changes of limits, tenants and keys."""
    from services.cli.requests import show_events

    settings = settings_of(context, config, redis_url)
    asyncio.run(show_events(settings, fleet=fleet, after=after, most=most, ends=ends, as_json=as_json))


def top(
    context: typer.Context,
    *,
    config: Config = None,
    fleet: Annotated[str | None, typer.Option("--fleet", help="Begin with this fleet.")] = None,
    tenant: Annotated[str, typer.Option("--tenant", help="Only tenants that begin like this.")] = "",
    once: Annotated[bool, typer.Option("--once", help="Print one frame and exit.")] = False,
    interval: Annotated[float, typer.Option("--interval", min=0.1, max=60, help="Seconds.")] = 1.0,
    redis_url: RedisUrl = None,
    as_json: Json = False,
) -> None:
    """Watch a fleet live: pools, tenants, line, leases, events; revoke with r. q quits."""
    from services.cli.top.live import top as go

    asyncio.run(
        go(
            settings_of(context, config, redis_url),
            fleet=fleet,
            tenant=tenant,
            once=once,
            interval_s=interval,
            as_json=as_json,
        )
    )
