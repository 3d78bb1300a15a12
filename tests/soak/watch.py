"""Those who look on: at Redis, past every shim, ten times a second; and at the logs, as they grow."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import redis

from services.permits.store import whole_numbers
from tests.nodes.places import EVENTS, LIMITS
from tests.soak.world import World
from tests.support.history import Line, Told

if TYPE_CHECKING:
    from pathlib import Path

    from tests.soak.book import Book

LOOK_S: Final = 0.1


@dataclass
class Watch:
    """Notes the limits in force and the fleet's events; a Redis that does not answer is looked at again."""

    world: World
    book: Book
    _after: str = "-"
    _looking: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(LOOK_S)

    async def look(self) -> None:
        """Look once; two at once would count an event twice."""
        async with self._looking:
            try:
                at_s, limits, events = await asyncio.to_thread(self._read)
            except redis.RedisError:
                return
            self._note(at_s, limits, events)

    def _note(self, at_s: float, limits: dict[str, str], events: list[tuple[str, dict[str, str]]]) -> None:
        if "total" in limits:
            self.book.chapter.limits.append((at_s, whole_numbers(limits)))
        for event_id, fields in events:
            self._after = f"({event_id}"
            kind = fields["kind"]
            self.book.events[kind] += 1
            if kind == "reclaimed":
                by = fields["holder"].partition("~")[0]
                self.book.chapter.reclaims.append(Told(kind, by or None, at_s, fields))

    def _read(self) -> tuple[float, dict[str, str], list[tuple[str, dict[str, str]]]]:
        path = str(self.world.redis.socket_path)
        with redis.Redis(unix_socket_path=path, decode_responses=True, socket_timeout=5) as client:
            pipeline = client.pipeline(transaction=True)
            pipeline.hgetall(LIMITS)
            pipeline.xrange(EVENTS, self._after, "+", count=1000)
            limits, events = pipeline.execute()
        return time.monotonic(), limits, events


@dataclass
class Logs:
    """Reads what gateways and reapers write, each line once."""

    folder: Path
    book: Book
    holders: dict[str, str] = field(default_factory=dict)
    _read: dict[str, int] = field(default_factory=dict)
    _wall_offset_s: float = field(default_factory=lambda: time.time() - time.monotonic())  # noqa: TID251

    async def run(self) -> None:
        """Read until cancelled."""
        while True:
            self.read()
            await asyncio.sleep(1)

    def read(self) -> None:
        """Read what is new in every log."""
        for path in sorted(self.folder.glob("*.log")):
            if path.stem == "redis":
                continue
            with path.open("rb") as log:
                log.seek(self._read.get(path.stem, 0))
                text = log.read()
            whole = text[: text.rfind(b"\n") + 1]
            self._read[path.stem] = self._read.get(path.stem, 0) + len(whole)
            for line in whole.splitlines():
                self._take(path.stem, line)

    def _take(self, name: str, text: bytes) -> None:
        chapter = self.book.chapter
        try:
            fields: dict[str, Any] = json.loads(text)
        except ValueError:
            fields = {"event": "no JSON", "level": "stray", "text": text.decode(errors="replace")}
        if fields.get("event") == "listening":
            self.holders[name] = fields["holder"]
            self.book.lines_of = {
                holder: lines
                for holder, lines in self.book.lines_of.items()
                if not holder.startswith(f"{name}~")
            }
        if fields.get("event") == "request":
            line = Line(name, self.holders.get(name, ""), fields)
            chapter.lines.append(line)
            self.book.lines_of.setdefault(line.holder, []).append(line)
            return
        at_s = time.monotonic()
        if "timestamp" in fields:
            at_s = datetime.fromisoformat(fields["timestamp"]).timestamp() - self._wall_offset_s
        by = name if name in self.holders else None
        chapter.words.append(Told(str(fields.get("event")), by, at_s, fields))
