"""Runs llama.cpp's own HTTP server (from the `xllamacpp` wheel) as a process: a real engine for tests.

`python -m tests.support.llama_server MODEL --port P` is what the process runs; `LlamaServer` starts and ends
it.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import signal
import subprocess
import sys
from functools import cache
from typing import TYPE_CHECKING, Any, Final, cast

from tests.support.client import fetch
from tests.support.processes import Process
from tests.support.redis_server import free_port

if TYPE_CHECKING:
    from pathlib import Path

MODEL: Final = "tiny-random"
SLOTS: Final = 4
CONTEXT_PER_SLOT: Final = 8192
# A cancelled prefill is noticed between batches, so they are small.
BATCH: Final = 128


def missing() -> str | None:
    """Return why the server cannot run here, or None when it can."""
    absent = [name for name in ("xllamacpp", "gguf", "numpy") if importlib.util.find_spec(name) is None]
    if absent:
        return f"pip install {' '.join(absent)} (group engine-tests)"
    return _unloadable("xllamacpp")


@cache
def _unloadable(module: str) -> str | None:
    """Say which library of the system a module lacks (on a bare Debian: apt-get install libgomp1)."""
    tried = subprocess.run(
        [sys.executable, "-c", f"import {module}"], capture_output=True, text=True, check=False
    )
    return tried.stderr.strip().rpartition("\n")[2] if tried.returncode else None


class LlamaServer:
    """One running server. `slots` slots, one model named MODEL."""

    def __init__(self, folder: Path, model: Path, *, slots: int = SLOTS) -> None:
        """Start the process; it answers after `ready`."""
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        command = ("-m", __name__, str(model), "--port", str(port), "--slots", str(slots))
        self.process = Process(folder, "llama", *command, url=self.url, ready_path="/health")

    async def ready(self) -> None:
        """Return when the model is loaded."""
        await self.process.ready()

    async def busy_slots(self) -> int:
        """Return how many slots compute now.

        Ask seldom: each question puts off the moment at which llama.cpp looks whether a client has left.
        """
        slots = json.loads((await fetch(self.url, "/slots")).body)
        return sum(1 for slot in slots if slot["is_processing"])

    async def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Call the server directly, past any gateway."""
        answer = await fetch(self.url, path, method="POST", body=body, patience_s=60)
        return cast("dict[str, Any]", json.loads(answer.body))

    async def end(self) -> None:
        """End the process."""
        await self.process.end()


def _serve() -> None:
    import xllamacpp  # noqa: PLC0415 - only the process itself needs the engine

    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--slots", type=int, default=SLOTS)
    asked = parser.parse_args()

    # Before the server starts threads, so that all of them leave the signals to us.
    ends = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)
    server = xllamacpp.Server(_params(xllamacpp.CommonParams(), asked))
    print(server.listening_address, flush=True)  # noqa: T201 - into the process's log
    signal.sigwait(ends)


def _params(params: Any, asked: argparse.Namespace) -> Any:
    params.model.path = asked.model
    params.model_alias = {MODEL}
    params.hostnames = ["127.0.0.1"]
    params.port = asked.port
    params.n_parallel = asked.slots
    params.n_ctx = CONTEXT_PER_SLOT * asked.slots
    params.n_batch = params.n_ubatch = BATCH
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.n_gpu_layers = 0
    params.cache_ram_mib = 64
    params.endpoint_slots = params.endpoint_metrics = True
    params.offline = True
    params.ui = params.fit_params = False
    return params


if __name__ == "__main__":
    _serve()
