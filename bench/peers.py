"""Other gateways of this kind, each installed into a virtual environment of its own below .cache/peers."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.targets import Target, answers, spawn
from tests.support.config_file import MODEL, key_of
from tests.support.processes import ROOT
from tests.support.redis_server import free_port

HOME: Final = ROOT / ".cache" / "peers"
INSTALL_S: Final = 900
START_S: Final = 90


@dataclass(frozen=True, slots=True)
class Absent:
    """A peer that could not be measured, and why in one line."""

    name: str
    why: str


@dataclass(frozen=True, slots=True)
class Peer:
    """What is installed, and `command(folder, engine_url, port)`: how it is started, found in its `bin/`."""

    name: str
    requirement: str
    command: Callable[[Path, str, int], Sequence[str]]


def _sglang_router(folder: Path, engine_url: str, port: int) -> Sequence[str]:
    """Start it as it comes: it looks for cached prefixes and logs each request, as Tenure does."""
    del folder
    listen = ("--host", "127.0.0.1", "--port", str(port), "--prometheus-port", str(free_port()))
    return ("python", "-m", "sglang_router.launch_router", "--worker-urls", engine_url, *listen)


def _sglang_router_bare(folder: Path, engine_url: str, port: int) -> Sequence[str]:
    bare = ("--policy", "round_robin", "--log-level", "warn")
    return (*_sglang_router(folder, engine_url, port), *bare)


def _litellm(folder: Path, engine_url: str, port: int) -> Sequence[str]:
    config = folder / "litellm.yaml"
    config.write_text(
        f"model_list:\n  - model_name: {MODEL}\n    litellm_params:\n"
        f"      model: openai/{MODEL}\n      api_base: {engine_url}/v1\n      api_key: none\n"
        f"litellm_settings:\n  telemetry: false\ngeneral_settings:\n  master_key: {key_of('acme')}\n"
    )
    return ("litellm", "--config", str(config), "--host", "127.0.0.1", "--port", str(port))


PEERS: Final = (
    Peer("sglang-router", "sglang-router", _sglang_router),
    Peer("sglang-router, no log", "sglang-router", _sglang_router_bare),
    Peer("LiteLLM", "litellm[proxy]", _litellm),
)
# Nothing of theirs looks anything up outside this machine.
_ENVIRONMENT: Final = {
    "HF_HUB_OFFLINE": "1",
    "HF_ENDPOINT": "http://127.0.0.1:9",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LITELLM_LOG": "ERROR",
    # The key of a benchmark guards nothing.
    "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",
    "DO_NOT_TRACK": "1",
}


async def start(stack: AsyncExitStack, folder: Path, engine_url: str) -> tuple[list[Target], list[Absent]]:
    """Install what is missing, start each peer, and end it with `stack`. What fails is told, not raised."""
    targets: list[Target] = []
    absent: list[Absent] = []
    for peer in PEERS:
        try:
            # An installation takes minutes, and the engine should go on answering health checks meanwhile.
            await asyncio.to_thread(_install, peer)
            targets.append(await _start(stack, folder, peer, engine_url))
        except (OSError, AssertionError, subprocess.SubprocessError) as error:
            absent.append(Absent(peer.name, _last_line(error)))
    return targets, absent


def _home(peer: Peer) -> Path:
    return HOME / peer.requirement.partition("[")[0]


def _install(peer: Peer) -> None:
    home = _home(peer)
    done = home / ".installed"
    if done.exists():
        return
    pip = (str(home / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    for command in ((sys.executable, "-m", "venv", str(home)), (*pip, peer.requirement)):
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=INSTALL_S)
    done.touch()


async def _start(stack: AsyncExitStack, folder: Path, peer: Peer, engine_url: str) -> Target:
    port = free_port()
    program, *words = peer.command(folder, engine_url, port)
    command = (str(_home(peer) / "bin" / program), *words)
    log = folder / f"{peer.name}.log"
    pid = spawn(stack, log, command, {**os.environ, **_ENVIRONMENT})
    target = Target(peer.name, f"http://127.0.0.1:{port}", pid)
    await answers(target, START_S)
    return target


def _last_line(error: Exception) -> str:
    told = error.stderr if isinstance(error, subprocess.CalledProcessError) else str(error)
    lines = (told or "").strip().splitlines()
    return lines[-1][:200] if lines else type(error).__name__
