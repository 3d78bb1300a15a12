"""The folder `.tenure`: everything that `tenure up` writes is in here, nothing is outside."""

import contextlib
import fcntl
import os
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from services.cli.failure import Failure

FOLDER: Final = ".tenure"
_OWNER_ONLY: Final = 0o600


@dataclass(frozen=True, slots=True)
class Place:
    """One `.tenure` folder and the files in it."""

    root: Path

    @property
    def config(self) -> Path:
        """The configuration in force, found by every `tenure` command run beside the folder."""
        return self.root / "tenure.toml"

    @property
    def demo_key(self) -> Path:
        """The demo key, so that a second terminal can use it."""
        return self.root / "demo-key"

    @property
    def logs(self) -> Path:
        """One log per process."""
        return self.root / "logs"

    @property
    def redis(self) -> Path:
        """The embedded server's working directory."""
        return self.root / "redis"


def shown(path: Path) -> str:
    """Return `path` as a person would type it here."""
    with contextlib.suppress(ValueError):
        path = path.absolute().relative_to(Path.cwd())
    return shlex.quote(str(path))


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner can read, also when it existed with wider rights."""
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _OWNER_ONLY)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)


@contextlib.contextmanager
def occupy(directory: Path) -> Iterator[Place]:
    """Make `.tenure` in `directory` and keep it for this process alone until the block ends.

    Raises Failure when another `tenure up` has it or the folder cannot be written.
    """
    place = Place(directory / FOLDER)
    try:
        for folder in (place.root, place.logs, place.redis):
            folder.mkdir(exist_ok=True)
        lock = (place.root / "lock").open("a+")
    except OSError as error:
        raise Failure(
            f"cannot write {place.root}: {error.strerror}; change to a directory of your own"
        ) from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Failure(
                f"another `tenure up` runs from {directory}: stop it, or start this one in another directory"
            ) from None
        yield place
