"""What of Docker is here: the engine that DOCKER_HOST (or the default socket) leads to, images, compose.

Nothing here starts an engine. Everything that is missing is a reason in one line, for a test to skip with.
"""

from __future__ import annotations

import contextlib
import gc
import shutil
import subprocess
import warnings
from functools import cache
from typing import TYPE_CHECKING, Final

import docker  # type: ignore[import-untyped]
from docker import DockerClient
from docker.errors import APIError, DockerException, ImageNotFound  # type: ignore[import-untyped]
from docker.models.containers import Container  # type: ignore[import-untyped]

if TYPE_CHECKING:
    from collections.abc import Iterator

# The one module that imports the library, which ships no types.
__all__ = ["Container", "DockerClient", "client", "compose_command", "missing", "missing_image"]

# An engine that is there answers in milliseconds.
ANSWER_S: Final = 2
# Pulling an image or stopping a container takes its time.
PATIENCE_S: Final = 300


@cache
def missing() -> str | None:
    """Return why there is no engine to work with, or None when one answers; within ANSWER_S or so."""
    with warnings.catch_warnings():
        # The library forgets to close the socket that it could not connect, which must not fail a test.
        warnings.simplefilter("ignore", ResourceWarning)
        try:
            docker.from_env(timeout=ANSWER_S).close()
        except (DockerException, OSError) as error:
            return f"no Docker engine answers ({_in_one_line(error)})"
        finally:
            gc.collect()
    return None


@cache
def missing_image(name: str) -> str | None:
    """Return why the image cannot be had, or None when it is here, pulled if need be."""
    with client() as engine:
        try:
            engine.images.get(name)
        except ImageNotFound:
            try:
                engine.images.pull(name)
            except APIError as error:
                return f"{name} is not here and cannot be pulled ({_in_one_line(error)})"
    return None


@cache
def compose_command() -> tuple[str, ...] | None:
    """Return the words that start compose: v2 as a plugin of docker, else the older program, else None."""
    for words in (("docker", "compose"), ("docker-compose",)):
        if shutil.which(words[0]) and _succeeds(*words, "version"):
            return words
    return None


@contextlib.contextmanager
def client() -> Iterator[DockerClient]:
    """Yield a client that is patient, and close it."""
    engine = docker.from_env(timeout=PATIENCE_S)
    try:
        yield engine
    finally:
        engine.close()


def _succeeds(*command: str) -> bool:
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def _in_one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
