"""What one `tenure up` is going to start, worked out and checked before anything is started."""

import hashlib
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx

from services.cli.engine_checks import Facts, ask
from services.cli.failure import Failure, why
from services.cli.listeners import Listener, check_free, free_port
from services.settings.load import DEFAULT_FILES, find_config, load
from services.settings.schema import Settings

DEMO: Final = "demo"
# Of an engine that does not say how much it does at once.
SLOTS: Final = 8
PLACEHOLDER: Final = "MODEL"

ENGINE_PORT: Final = 8710
# How far from the first gateway's port the others are when that one is chosen.
ENGINE_STEP: Final = 10
REAPER_STEP: Final = 90


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """The command line of `tenure up`. A port that is None comes from `port`, else from the configuration."""

    gateways: int
    port: int | None
    reaper_port: int | None
    engine_port: int | None
    redis_url: str | None
    engines: Sequence[str]
    config: Path | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to start and where.

    `settings` are complete but for the address of an embedded Redis. `key` is the demo key, empty when the
    configuration has tenants of its own. `model` is one that can be asked for. `remarks` are for the user.
    """

    settings: Settings
    base: Path | None
    gateways: tuple[Listener, ...]
    reaper: Listener
    engine: Listener | None
    embedded: bool
    key: str
    model: str
    remarks: tuple[str, ...]


async def make_plan(wishes: Wishes, environ: Mapping[str, str]) -> Plan:
    """Work the plan out. Raises Failure or SettingsError with one line; asks real engines who they are."""
    base = _base(wishes.config, environ)
    if base and wishes.engines:
        raise Failure(f"--engine and {base} both name engines: leave one out")
    file = load(base, environ) if base else None
    gateways, reaper, engine = _listeners(wishes, file)
    overrides: dict[str, Any] = {"gateway": {"port": gateways[0].port}, "reaper": {"port": reaper.port}}
    if wishes.redis_url:
        overrides["redis"] = {"url": wishes.redis_url}
    remarks: list[str] = []
    if file is None:
        overrides["fleets"], model = await _demo_fleet(wishes.engines, engine, remarks)
    else:
        engine = None
        model = _model_of(file, base)
        if not wishes.redis_url:
            remarks.append(f"redis.url of {base} is not used; to use that Redis, give it with --redis-url")
    key = "" if file and file.tenants else f"demo-{secrets.token_urlsafe(18)}"
    if key:
        overrides["tenants"] = {DEMO: {"keys_sha256": [hashlib.sha256(key.encode()).hexdigest()]}}
    # Before the schema sees them: here a port is named with the option that moves it.
    check_free((*gateways, reaper, *((engine,) if engine else ())))
    settings = load(base, environ, **overrides)
    return Plan(
        settings=settings,
        base=base,
        gateways=gateways,
        reaper=reaper,
        engine=engine,
        embedded=wishes.redis_url is None,
        key=key,
        model=model,
        remarks=tuple(remarks),
    )


def _base(explicit: Path | None, environ: Mapping[str, str]) -> Path | None:
    """Return the user's own file; the one that an earlier `up` left is not one."""
    found = find_config(explicit, environ)
    return None if explicit is None and found == DEFAULT_FILES[-1] else found


def _model_of(file: Settings, base: Path | None) -> str:
    """Return a model that can be asked for; a placeholder when the first fleet has only globs."""
    if not file.fleets:
        raise Failure(f"{base} names no fleet: add [fleets.NAME], or start without it for a demo")
    models = next(iter(file.fleets.values())).models
    return next((model for model in models if not set("*?[") & set(model)), PLACEHOLDER)


def _listeners(
    wishes: Wishes, file: Settings | None
) -> tuple[tuple[Listener, ...], Listener, Listener | None]:
    """Give everybody a port: the one asked for, the file's, or the default; 0 is any free one.

    A first port that was asked for takes the others along, so that one option makes room for a second `up`.
    """
    defaults = file or Settings()
    first = defaults.gateway.port if wishes.port is None else wishes.port
    ports = [first and first + number for number in range(wishes.gateways)]
    gateways = tuple(
        Listener(f"gateway g{number}", port or free_port(), "--port")
        for number, port in enumerate(ports, start=1)
    )
    reaper_port, engine_port = wishes.reaper_port, wishes.engine_port
    if reaper_port is None:
        moves = wishes.port is not None and "port" not in defaults.reaper.model_fields_set
        reaper_port = first and first + REAPER_STEP if moves else defaults.reaper.port
    reaper = Listener("reaper", reaper_port or free_port(), "--reaper-port")
    if wishes.engines:
        return gateways, reaper, None
    if engine_port is None:
        engine_port = ENGINE_PORT if wishes.port is None else first and first + ENGINE_STEP
    return gateways, reaper, Listener("engine", engine_port or free_port(), "--engine-port")


async def _demo_fleet(
    urls: Sequence[str], simulated: Listener | None, remarks: list[str]
) -> tuple[dict[str, Any], str]:
    """Return the demo fleet's table and a model that can be asked for."""
    if simulated:
        fleet = {"models": [DEMO], "engines": [{"name": "e1", "url": simulated.url, "slots": SLOTS}]}
        return {DEMO: fleet}, DEMO
    engines = []
    models: tuple[str, ...] = ()
    for number, url in enumerate(urls, start=1):
        facts = await _facts(url, remarks)
        models += facts.models
        engines.append({"name": f"e{number}", "url": url, "kind": facts.kind, "slots": facts.slots or SLOTS})
    return {DEMO: {"models": ["*"], "engines": engines}}, models[0] if models else PLACEHOLDER


async def _facts(url: str, remarks: list[str]) -> Facts:
    """Ask an engine who it is; one that is still loading its model is no reason not to start."""
    try:
        return await ask(url.rstrip("/"))
    except httpx.HTTPError as error:
        remarks.append(f"the engine {url} does not answer yet ({why(error)})")
    except (httpx.InvalidURL, UnicodeError):
        pass  # the settings refuse it, with what to write instead
    return Facts()
