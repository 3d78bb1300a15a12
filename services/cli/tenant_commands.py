"""The commands around tenants, their keys and quotas. Thin on purpose, as in `app.py`."""

import asyncio
from typing import Annotated

import typer

from services.cli.options import Config, Json, RedisUrl, settings_of

TenantName = Annotated[str, typer.Argument(metavar="TENANT")]
Weight = Annotated[str | None, typer.Option("--weight", help="Share of the fleet under contention, 1-1000.")]

tenant_app = typer.Typer(no_args_is_help=True, help="Who may send requests.")
key_app = typer.Typer(no_args_is_help=True, help="The keys of a tenant.")


def register(app: typer.Typer) -> None:
    """Add everything here to the command line."""
    app.command()(quota)
    app.add_typer(tenant_app, name="tenant")
    app.add_typer(key_app, name="key")


def quota(
    context: typer.Context,
    tenant: TenantName,
    changes: Annotated[
        list[str] | None, typer.Argument(metavar="[FLEET=N]...", help="0 closes it, `default` takes it back.")
    ] = None,
    *,
    weight: Weight = None,
    config: Config = None,
    redis_url: RedisUrl = None,
    as_json: Json = False,
) -> None:
    """Show a tenant's quotas and weight, or set them, live."""
    from services.cli.tenants import quota as go

    settings = settings_of(context, config, redis_url)
    asyncio.run(go(settings, tenant, changes or (), weight=weight, as_json=as_json))


@tenant_app.command("add")
def tenant_add(
    context: typer.Context,
    tenant: TenantName,
    *,
    weight: Weight = None,
    config: Config = None,
    redis_url: RedisUrl = None,
    as_json: Json = False,
) -> None:
    """Make a tenant."""
    from services.cli.tenants import add_tenant

    asyncio.run(add_tenant(settings_of(context, config, redis_url), tenant, weight=weight, as_json=as_json))


@tenant_app.command("list")
def tenant_list(
    context: typer.Context, *, config: Config = None, redis_url: RedisUrl = None, as_json: Json = False
) -> None:
    """List all tenants."""
    from services.cli.tenants import list_tenants

    asyncio.run(list_tenants(settings_of(context, config, redis_url), as_json=as_json))


@tenant_app.command("show")
def tenant_show(
    context: typer.Context,
    tenant: TenantName,
    *,
    config: Config = None,
    redis_url: RedisUrl = None,
    as_json: Json = False,
) -> None:
    """Show a tenant's weight, quotas and keys."""
    from services.cli.tenants import show_tenant

    asyncio.run(show_tenant(settings_of(context, config, redis_url), tenant, as_json=as_json))


@tenant_app.command("remove")
def tenant_remove(
    context: typer.Context,
    tenant: TenantName,
    *,
    config: Config = None,
    redis_url: RedisUrl = None,
    as_json: Json = False,
) -> None:
    """Refuse a tenant's new requests; its live streams run on."""
    from services.cli.tenants import remove_tenant

    asyncio.run(remove_tenant(settings_of(context, config, redis_url), tenant, as_json=as_json))


@key_app.command("add")
def key_add(
    context: typer.Context,
    tenant: TenantName,
    *,
    config: Config = None,
    redis_url: RedisUrl = None,
    as_json: Json = False,
) -> None:
    """Make a key and show it, once."""
    from services.cli.tenants import add_key

    asyncio.run(add_key(settings_of(context, config, redis_url), tenant, as_json=as_json))


@key_app.command("list")
def key_list(
    context: typer.Context,
    tenant: TenantName,
    *,
    config: Config = None,
    redis_url: RedisUrl = None,
    as_json: Json = False,
) -> None:
    """List a tenant's keys by id and last four characters."""
    from services.cli.tenants import list_keys

    asyncio.run(list_keys(settings_of(context, config, redis_url), tenant, as_json=as_json))


@key_app.command("revoke")
def key_revoke(
    context: typer.Context,
    tenant: TenantName,
    key_id: Annotated[str, typer.Argument(metavar="KEY_ID", help="As `tenure key list` has it.")],
    *,
    config: Config = None,
    redis_url: RedisUrl = None,
    as_json: Json = False,
) -> None:
    """End a key for ever."""
    from services.cli.tenants import revoke_key

    asyncio.run(revoke_key(settings_of(context, config, redis_url), tenant, key_id, as_json=as_json))
