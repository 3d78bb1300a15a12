"""Loads `lua/` and expands its includes; `pipe.py` runs the scripts by their SHA.

The text travels with each process and is addressed by its own hash, so two versions of Tenure can share
one Redis during a rollout. A Redis that does not know a script (new, restarted, failed over, flushed) is
sent the text once, in the same call.
"""

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from operator import itemgetter
from pathlib import Path
from typing import Any, Final

from services.permits.errors import Unusable

# In a wheel the scripts lie beside this file; in a checkout at the top of the repository.
_PACKAGED: Final = Path(__file__).parent / "lua"
LUA_DIR: Final = _PACKAGED if _PACKAGED.is_dir() else Path(__file__).parents[2] / "lua"

_INCLUDE: Final = re.compile(r"^-- @include (\w+)$", re.MULTILINE)

Arg = str | int


# A row of a header's KEYS or ARGV table: number (with "+" when the rest belongs to it), name, type.
_ROW: Final = re.compile(r"^ {4}(\d+)(\+?) +(\w+)  ")
_WORD: Final = re.compile(r"^ {4}([A-Z]+)\b")


@dataclass(frozen=True, slots=True)
class Header:
    """What the comment on top of a script promises; the store sends its arguments by these names."""

    keys: tuple[str, ...]
    args: tuple[str, ...]
    variadic: bool
    replies: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> "Header":
        """Read the KEYS, ARGV and RETURNS tables of a script."""
        comment = text.partition("--[[")[2].partition("]]")[0]
        sections: dict[str, list[str]] = {"KEYS": [], "ARGV": [], "RETURNS": []}
        lines: list[str] = []
        for line in comment.splitlines():
            lines = sections.get(line.strip(), lines) if not line.startswith("    ") else lines
            lines.append(line)
        keys = [row for line in sections["KEYS"] if (row := _ROW.match(line))]
        args = [row for line in sections["ARGV"] if (row := _ROW.match(line))]
        return cls(
            keys=tuple(row.group(3) for row in keys),
            args=tuple(row.group(3) for row in args),
            variadic=bool(args) and args[-1].group(2) == "+",
            replies=tuple(word.group(1) for line in sections["RETURNS"] if (word := _WORD.match(line))),
        )


@dataclass(frozen=True)
class Script:
    """One composed script. `sha` is what EVALSHA sends."""

    verb: str
    text: str
    sha: str
    header: Header

    def arrange(
        self, keys: Mapping[str, str], args: Mapping[str, Arg], rest: Sequence[Arg]
    ) -> tuple[tuple[str, ...], tuple[Arg, ...]]:
        """Put named keys and arguments into the header's order; `rest` fills a trailing list."""
        return self._pick_keys(keys), (*self._pick_args(args), *rest)

    @cached_property
    def _pick_keys(self) -> Callable[[Mapping[str, str]], tuple[str, ...]]:
        return _picker(self.header.keys)

    @cached_property
    def _pick_args(self) -> Callable[[Mapping[str, Arg]], tuple[Arg, ...]]:
        return _picker(self.header.args[:-1] if self.header.variadic else self.header.args)


def _picker(names: Sequence[str]) -> Callable[[Mapping[str, Any]], tuple[Any, ...]]:
    """Return what picks the values of `names` out of a mapping, in their order."""
    if len(names) > 1:
        return itemgetter(*names)
    if not names:
        return lambda _: ()
    (name,) = names
    return lambda mapping: (mapping[name],)


def compose(source: str, includes: Mapping[str, str]) -> str:
    """Replace each `-- @include name` line by its text; an unknown or repeated name is an error."""
    seen: set[str] = set()

    def expand(match: re.Match[str]) -> str:
        name = match.group(1)
        if name not in includes:
            raise Unusable(f"lua include {name!r} does not exist")
        if name in seen:
            raise Unusable(f"lua include {name!r} is included twice")
        seen.add(name)
        return includes[name].rstrip()

    return _INCLUDE.sub(expand, source)


@cache
def load(directory: Path = LUA_DIR) -> Mapping[str, Script]:
    """Read and compose every script of `directory`; the file's name is the verb."""
    includes = {path.stem: path.read_text() for path in sorted((directory / "includes").glob("*.lua"))}
    scripts = {}
    for path in sorted(directory.glob("*.lua")):
        text = compose(path.read_text(), includes)
        sha = hashlib.sha1(text.encode()).hexdigest()  # noqa: S324  (the hash that EVALSHA is defined by)
        scripts[path.stem] = Script(path.stem, text, sha, Header.parse(text))
    if not scripts:
        raise Unusable(f"no Lua scripts in {directory}: the installation is incomplete")
    return scripts
