"""Another edition of the product: a copy with a few edits, to run beside this one or to plant a fault in."""

from __future__ import annotations

import re
import shutil
from typing import TYPE_CHECKING

from tests.support.processes import ROOT

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


def edition(folder: Path, edits: Mapping[str, tuple[str, str]]) -> Path:
    """Copy `services/` and `lua/` into `folder` and return it: what processes take as their `root`.

    `edits` maps a file's path to (regular expression, replacement); each must fit exactly once, or the test
    would run the product as it is.
    """
    for part in ("services", "lua"):
        shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
    for name, (pattern, replacement) in edits.items():
        path = folder / name
        text, count = re.subn(pattern, replacement, path.read_text())
        assert count == 1, f"{pattern!r} fits {count} times in {name}"
        path.write_text(text)
    return folder
