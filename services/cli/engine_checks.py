"""Asks engines who they are: for the doctor, and for `tenure up --engine`."""

import asyncio
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final, Literal

import httpx

from services.cli.failure import why
from services.cli.findings import Finding, fine, problem
from services.settings.schema import Engine, Settings

ANSWER_WITHIN_S: Final = 2.0
_MODELS_SHOWN: Final = 5

Kind = Literal["openai", "llama.cpp", "vllm", "sglang"]
# What each engine calls itself in `owned_by`.
_KINDS: Final[dict[str, Kind]] = {"llamacpp": "llama.cpp", "vllm": "vllm", "sglang": "sglang"}


@dataclass(frozen=True, slots=True)
class Facts:
    """What an engine said of itself. `slots` is 0 when it does not say how much it does at once."""

    kind: Kind = "openai"
    models: tuple[str, ...] = ()
    slots: int = 0


async def ask(url: str, *, api_key: str = "") -> Facts:
    """Return what the engine at `url` says of itself. Raises httpx.HTTPError when it does not answer."""
    headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
    async with httpx.AsyncClient(
        base_url=url, headers=headers, timeout=ANSWER_WITHIN_S, trust_env=False
    ) as client:
        listed = await client.get("/v1/models")
        if listed.status_code in (HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED):
            (await client.get("/health")).raise_for_status()
            return Facts()
        listed.raise_for_status()
        models = _models(listed)
        kind: Kind = next((_KINDS[owner] for _, owner in models if owner in _KINDS), "openai")
        slots = await _slots(client) if kind == "llama.cpp" else 0
        return Facts(kind, tuple(name for name, _ in models), slots)


async def examine_engines(settings: Settings) -> list[Finding]:
    """Ask every engine of every fleet, all at once."""
    return await asyncio.gather(
        *(
            _examine(fleet, engine)
            for fleet, configured in sorted(settings.fleets.items())
            for engine in configured.engines
        )
    )


async def _examine(fleet: str, engine: Engine) -> Finding:
    check = f"engine.{fleet}.{engine.name}"
    field = f"fleets.{fleet}.engines"
    try:
        facts = await ask(engine.url, api_key=engine.api_key)
    except httpx.HTTPStatusError as error:
        status = error.response.status_code
        if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            return problem(check, f"{engine.url} refuses our key ({status})", f"set api_key in {field}")
        return problem(check, f"{engine.url} answers {status}", f"see the engine's log, or correct {field}")
    except httpx.HTTPError as error:
        return problem(check, f"{engine.url} does not answer ({why(error)})", f"start it, or correct {field}")
    shown = ", ".join(facts.models[:_MODELS_SHOWN]) or "no list of models"
    return fine(check, f"{engine.url} answers: {shown}")


def _models(listed: httpx.Response) -> list[tuple[str, str]]:
    """Return (id, owner) of each model; an answer of another shape has none."""
    try:
        entries: Any = listed.json()["data"]
        return [(str(entry["id"]), str(entry.get("owned_by", ""))) for entry in entries]
    except (ValueError, KeyError, TypeError, AttributeError):
        return []


async def _slots(client: httpx.AsyncClient) -> int:
    """Return how many requests a llama.cpp server computes at once; 0 when it does not say."""
    try:
        return int((await client.get("/props")).json()["total_slots"])
    except (httpx.HTTPError, ValueError, KeyError, TypeError):
        return 0
