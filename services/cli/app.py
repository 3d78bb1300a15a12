"""The command line itself: every command, its options, and what it calls. Thin on purpose."""

import asyncio
import shutil
import sys
from pathlib import Path
from typing import Annotated

import typer

from services.cli import admin_commands, tenant_commands
from services.cli.failure import Failure
from services.cli.options import Config, Json, OneFleet, RedisUrl, environ_of, settings_of
from services.cli.place import shown

app = typer.Typer(
    name="tenure",
    help="Leased permits for LLM engines: gateways, a reaper, and a look at who holds what.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Host = Annotated[str, typer.Option("--host", help="Address to listen on.")]
PortNumber = typer.Option("--port", min=0, max=65535, help="Port to listen on. Default: the configuration's.")


@app.command()
def up(
    context: typer.Context,
    *,
    gateways: Annotated[int, typer.Option("--gateways", min=1, max=64, help="How many replicas.")] = 2,
    port: Annotated[
        int | None,
        typer.Option(
            "--port", min=0, max=65535, help="First gateway's port; the others move along. Default: 8700."
        ),
    ] = None,
    redis_url: Annotated[
        str | None,
        typer.Option("--redis-url", envvar="TENURE_REDIS__URL", help="Use this Redis; start none."),
    ] = None,
    engine: Annotated[list[str] | None, typer.Option("--engine", help="Front this one.")] = None,
    config: Annotated[Path | None, typer.Option("--config", help="Use its fleets and tenants.")] = None,
    reaper_port: Annotated[int | None, typer.Option("--reaper-port", min=0, max=65535)] = None,
    engine_port: Annotated[int | None, typer.Option("--engine-port", min=0, max=65535)] = None,
    as_json: Json = False,
) -> None:
    """Start everything on this machine: Redis, an engine, gateways and a reaper. Ctrl-C stops all of it."""
    from services.cli.greeting import Report
    from services.cli.plan import Wishes
    from services.cli.up import up as go

    wishes = Wishes(
        gateways=gateways,
        port=port,
        reaper_port=reaper_port,
        engine_port=engine_port,
        redis_url=redis_url,
        engines=engine or (),
        config=config,
    )
    report = Report(as_json=as_json, program=_program())
    asyncio.run(go(wishes, environ_of(context), report))


@app.command()
def gateway(
    context: typer.Context,
    *,
    config: Config = None,
    host: Annotated[str | None, typer.Option("--host", help="Address to listen on.")] = None,
    port: Annotated[int | None, PortNumber] = None,
    name: Annotated[str | None, typer.Option("--name", help="Name of this replica.")] = None,
    redis_url: RedisUrl = None,
) -> None:
    """Run one gateway replica until SIGTERM; it drains first."""
    from services.gateway.__main__ import run

    settings = settings_of(context, config, redis_url)
    try:
        raise typer.Exit(run(settings, host=host, port=port, name=name))
    except OSError as error:
        raise Failure(str(error)) from error


@app.command()
def reaper(
    context: typer.Context,
    *,
    config: Config = None,
    host: Host = "127.0.0.1",
    port: Annotated[int | None, PortNumber] = None,
    once: Annotated[bool, typer.Option("--once", help="Make one whole pass, say what it did, exit.")] = False,
    redis_url: RedisUrl = None,
    as_json: Json = False,
) -> None:
    """Take back the leases of holders that died, until SIGTERM."""
    from services.reaper.run import run, run_once

    settings = settings_of(context, config, redis_url)
    if once:
        raise typer.Exit(run_once(settings, as_json=as_json))
    raise typer.Exit(run(settings, host=host, port=settings.reaper.port if port is None else port))


@app.command()
def engine(
    *,
    host: Host = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="Port to listen on.")] = 8710,
    model: Annotated[str, typer.Option("--model", help="The one model it serves.")] = "demo",
    tokens: Annotated[int, typer.Option("--tokens", help="Tokens of an answer without max_tokens.")] = 64,
    token_ms: Annotated[float, typer.Option("--token-ms", help="Gap between two tokens.")] = 20.0,
    prefill_ms: Annotated[float, typer.Option("--prefill-ms", help="Time per uncached prompt token.")] = 0.2,
    slots: Annotated[int, typer.Option("--slots", help="Requests computed at the same time.")] = 8,
) -> None:
    """Run the simulated engine."""
    from services.engine.options import EngineError, EngineOptions
    from services.engine.server import serve

    try:
        serve(
            EngineOptions(
                host=host,
                port=port,
                model=model,
                tokens=tokens,
                token_ms=token_ms,
                prefill_ms=prefill_ms,
                slots=slots,
            )
        )
    except EngineError as error:
        raise Failure(str(error)) from error


@app.command()
def fleets(
    context: typer.Context, config: Config = None, redis_url: RedisUrl = None, as_json: Json = False
) -> None:
    """Show what each fleet has in use, pool by pool."""
    from services.cli.looks import show_fleets

    asyncio.run(show_fleets(settings_of(context, config, redis_url), as_json=as_json))


@app.command()
def leases(
    context: typer.Context,
    *,
    config: Config = None,
    fleet: OneFleet = None,
    tenant: Annotated[str | None, typer.Option("--tenant", help="Only this tenant.")] = None,
    most: Annotated[int, typer.Option("--limit", min=1, max=10_000, help="So many per fleet.")] = 1000,
    redis_url: RedisUrl = None,
    as_json: Json = False,
) -> None:
    """Show who holds what, since when, for how long."""
    from services.cli.looks import show_leases

    settings = settings_of(context, config, redis_url)
    asyncio.run(show_leases(settings, fleet=fleet, tenant=tenant, most=most, as_json=as_json))


@app.command()
def doctor(
    context: typer.Context, config: Config = None, redis_url: RedisUrl = None, as_json: Json = False
) -> None:
    """Check configuration, Redis and engines; say what is wrong and how to put it right."""
    from services.cli.diagnosis import diagnose

    healthy = asyncio.run(diagnose(config, environ_of(context), redis_url=redis_url, as_json=as_json))
    raise typer.Exit(0 if healthy else 1)


admin_commands.register(app)
tenant_commands.register(app)


def _program() -> str:
    """Return how the user can call this command again, from here."""
    called = Path(sys.argv[0])
    if called.name != "tenure":
        return "python -m services.cli"
    found = shutil.which("tenure")
    return "tenure" if found and Path(found).samefile(called) else shown(called)
