"""The options that commands share, and the settings they lead to."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from services.settings.load import find_config, load
from services.settings.schema import Settings

Config = Annotated[
    Path | None,
    typer.Option(
        "--config", help="The TOML file. Default: $TENURE_CONFIG, tenure.toml, .tenure/tenure.toml."
    ),
]
RedisUrl = Annotated[str | None, typer.Option("--redis-url", help="Use this Redis instead of redis.url.")]
Json = Annotated[bool, typer.Option("--json", help="Plain JSON on stdout.")]
OneFleet = Annotated[str | None, typer.Option("--fleet", help="Only this fleet.")]


def environ_of(context: typer.Context) -> Mapping[str, str]:
    """Return the environment that `__main__` handed on."""
    environ: Mapping[str, str] = context.obj
    return environ


def settings_of(context: typer.Context, config: Path | None, redis_url: str | None) -> Settings:
    """Return the configuration in force; the command line wins over the environment and the file."""
    environ = environ_of(context)
    overrides = {"redis": {"url": redis_url}} if redis_url else {}
    return load(find_config(config, environ), environ, **overrides)
