"""The engine as an ASGI application: one guard is opened before anything of a request is looked at.

Plain ASGI, because what ends a request must close its guard in every case: a framework's generators may never
start when the client is gone early, and their `finally` may not run when it leaves late.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from datetime import UTC, datetime
from time import monotonic
from typing import TYPE_CHECKING

from services.engine import http
from services.engine.asks import Ask, Kind, parse
from services.engine.control import Control
from services.engine.errors import BadRequest, Gone
from services.engine.metrics import Meters
from services.engine.pages import PageCache
from services.engine.room import End, Guard, Room
from services.engine.wire import Report, Wire, error_body, vectors_of
from services.engine.work import Pace, decode, prefill

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from services.engine.options import EngineOptions

_REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,128}")
_KINDS: dict[str, Kind] = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "text",
    "/v1/embeddings": "embedding",
}


def create_app(options: EngineOptions) -> EngineApp:
    """Build an engine with an empty cache. It belongs to the event loop that serves it."""
    meters = Meters()
    room = Room(PageCache(options.page_count, options.page_tokens), options.slots, meters.cancelled)
    meters.watch(room)
    control = Control(room=room, meters=meters, model=options.model, created=_now_s())
    return EngineApp(options=options, room=room, control=control)


class EngineApp:
    """Routes a call: what generates goes through a guard, all else is answered at once."""

    def __init__(self, *, options: EngineOptions, room: Room, control: Control) -> None:
        self.options = options
        self.room = room
        self._control = control

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise RuntimeError(f"the engine speaks http only, not {scope['type']}")
        kind = _KINDS.get(scope["path"])
        try:
            if kind is None:
                await self._control.answer(scope, send)
            elif scope["method"] == "POST":
                await self._generate(kind, scope, receive, send)
            else:
                raise BadRequest(f"{scope['path']} takes POST", status=405, code="method_not_allowed")
        except BadRequest as error:
            body = error_body(error.message, kind=error.kind, code=error.code)
            await http.answer(send, error.status, body)
        except Gone:
            return  # nobody is there to be answered

    async def _generate(self, kind: Kind, scope: Scope, receive: Receive, send: Send) -> None:
        """One request's life: read, wait, compute, answer. Every way out closes the guard."""
        with self.room.guard() as guard:
            ask = parse(kind, await http.read_body(receive), self.options.model)
            more_tokens, reason = self._length(ask)
            watch = asyncio.create_task(_watch(receive, guard))
            try:
                await guard.admitted(ask.prompt, more_tokens)
                reply = _Reply(ask, guard, self.options, reason, scope)
                await (reply.stream(send) if ask.stream else reply.whole(send))
            finally:
                watch.cancel()

    def _length(self, ask: Ask) -> tuple[int, str]:
        """How many tokens to generate and why it ends there. Raises BadRequest for a prompt without room."""
        capacity = self.room.cache.size * self.room.cache.page_tokens
        room = capacity - len(ask.prompt)
        embeds = ask.kind == "embedding"
        if room < (0 if embeds else 1):
            size = f"the prompt has {len(ask.prompt)} tokens, the cache room for {capacity} with the answer"
            raise BadRequest(f"{size}; shorten the prompt", code="context_length_exceeded")
        if embeds:
            return 0, "stop"
        wanted = ask.max_tokens or self.options.tokens
        return min(wanted, room), "length" if ask.max_tokens or wanted > room else "stop"


class _Reply:
    """Computes and sends the answer of one admitted request. The guard stays the caller's."""

    def __init__(self, ask: Ask, guard: Guard, options: EngineOptions, reason: str, scope: Scope) -> None:
        self._ask = ask
        self._guard = guard
        self._options = options
        self._pace = Pace()
        self._wire = Wire(ask, model=options.model, tail_id=_tail_id(scope), created=_now_s())
        self._report = Report(
            prompt_tokens=len(ask.prompt),
            cached_tokens=guard.pages.cached_tokens,
            generated_tokens=guard.more_tokens,
            reason=reason,
        )

    async def stream(self, send: Send) -> None:
        """Send head and role as soon as the slot is taken: only the first token proves that work was done."""
        report, wire = self._report, self._wire
        total, cached, since_s = report.prompt_tokens, report.cached_tokens, monotonic()

        async def on_chunk(done: int) -> None:
            time_ms = round((monotonic() - since_s) * 1000)
            await http.part(send, wire.progress(total=total, cached=cached, done=done, time_ms=time_ms))

        async def say(word: str) -> None:
            await http.part(send, wire.token(word))

        await http.start(send, 200, http.EVENT_STREAM, [(b"cache-control", b"no-cache")])
        await http.part(send, wire.role())
        await prefill(self._guard, self._options, self._pace, on_chunk if self._ask.progress else None)
        await decode(self._guard, self._options, self._pace, say)
        # Before the last bytes: who has read [DONE] finds the slot free.
        self._guard.close(End.COMPLETED)
        await http.part(send, wire.ending(report), more=False)

    async def whole(self, send: Send) -> None:
        """Send nothing until all is computed."""
        words: list[str] = []

        async def say(word: str) -> None:
            words.append(word)

        await prefill(self._guard, self._options, self._pace)
        await decode(self._guard, self._options, self._pace, say)
        self._guard.close(End.COMPLETED)
        if self._ask.kind == "embedding":
            vectors = vectors_of(self._ask.prompt, self._ask.inputs)
            await http.answer(send, 200, self._wire.embeddings(vectors, self._report))
        else:
            await http.answer(send, 200, self._wire.body("".join(words), self._report))


async def _watch(receive: Receive, guard: Guard) -> None:
    """Tell the guard when the client hangs up."""
    while (await receive())["type"] != "http.disconnect":
        pass
    guard.client_left()


def _tail_id(scope: Scope) -> str:
    """The caller's request id where it has a harmless one, so that logs can be joined; else a new one."""
    for name, value in scope["headers"]:
        if name == b"x-request-id" and _REQUEST_ID.fullmatch(value):
            return str(value, "ascii")
    return secrets.token_hex(12)


def _now_s() -> int:
    return int(datetime.now(UTC).timestamp())
