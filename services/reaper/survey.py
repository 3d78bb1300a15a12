"""What the keyspace shows of each fleet: its pools and its lease records, a bounded part per look.

A script cannot search for keys (and must not: its work is bounded), so ghosts are found from
outside: SCAN names the candidates, and the reap script compares and repairs them atomically. A name
that is out of date by then costs one lookup and changes nothing.
"""

import re
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

# One SCAN call of 250 keys holds Redis up for well under a millisecond.
KEYS_PER_CALL: Final = 250
# A pass costs Redis about as much as a few dozen acquires, whatever else lives in that database.
CALLS_PER_LOOK: Final = 8

# (cursor, pattern, count) -> (next cursor, keys); 0 begins and ends a round, as SCAN has it.
Scan = Callable[[int, str, int], Awaitable[tuple[int, list[str]]]]


@dataclass(slots=True)
class Seen:
    """The names that one look found for one fleet."""

    pools: set[str] = field(default_factory=set)
    records: set[str] = field(default_factory=set)


class Survey:
    """Walks the keys of one prefix, a bounded step per look, round after round.

    Owns the cursor. Not for concurrent use. Raises what `scan` raises; the cursor then stays where
    it was. A cancelled look loses nothing but its own findings.
    """

    def __init__(self, scan: Scan, *, prefix: str) -> None:
        """Begin a first round at the start of the keyspace."""
        self._scan = scan
        self._pattern = f"{_literal(prefix)}:{{*}}:*"
        self._key = re.compile(
            re.escape(prefix) + r":\{([^{}]+)\}:(?:pool:((?:tenant|engine):.+)|lease:(.+))"
        )
        self._cursor = 0

    async def look(self, *, whole: bool = False) -> dict[str, Seen]:
        """Return what the next keys show, by fleet; with `whole`, everything from the start."""
        found: dict[str, Seen] = {}
        if whole:
            self._cursor = 0
        calls = 0
        while whole or calls < CALLS_PER_LOOK:
            calls += 1
            self._cursor, keys = await self._scan(self._cursor, self._pattern, KEYS_PER_CALL)
            self._note(keys, found)
            if self._cursor == 0:
                break
        return found

    def _note(self, keys: Iterable[str], found: dict[str, Seen]) -> None:
        """Sort keys into fleets; keys of other kinds say nothing."""
        for key in keys:
            match = self._key.fullmatch(key)
            if match is None:
                continue
            fleet, pool, record = match.groups()
            seen = found.setdefault(fleet, Seen())
            if pool is not None:
                seen.pools.add(pool)
            else:
                seen.records.add(record)


def _literal(text: str) -> str:
    """Return `text` as a pattern that matches only itself."""
    return re.sub(r"([\\*?\[\]^])", r"\\\1", text)
