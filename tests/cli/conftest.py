"""The command as a user runs it: a process in a folder of its own."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Awaitable, Mapping
from pathlib import Path
from typing import Protocol

import pytest

from tests.support.processes import ROOT

Done = subprocess.CompletedProcess[str]
MAIN = ("-m", "services.cli")


class Tenure(Protocol):
    """Runs `tenure WORDS...` to its end."""

    def __call__(
        self, *words: str, environ: Mapping[str, str] | None = None, main: tuple[str, ...] = MAIN
    ) -> Awaitable[Done]: ...


@pytest.fixture
def tenure(tmp_path: Path) -> Tenure:
    """Run the command in the test's folder; `environ` is laid over a clean environment."""

    async def run(
        *words: str, environ: Mapping[str, str] | None = None, main: tuple[str, ...] = MAIN
    ) -> Done:
        return await asyncio.to_thread(
            subprocess.run,
            [sys.executable, *main, *words],
            cwd=tmp_path,
            env={**clean_environment(), **(environ or {})},
            capture_output=True,
            text=True,
            check=False,
            timeout=50,
        )

    return run


def clean_environment() -> dict[str, str]:
    """Return our environment without settings of the product."""
    here = dict(os.environ)  # noqa: TID251
    return {
        **{name: value for name, value in here.items() if not name.startswith("TENURE_")},
        "PYTHONPATH": str(ROOT),
    }


def only_line(text: str) -> str:
    """Return the one line of `text`; there must not be more."""
    (line,) = text.splitlines()
    return line
