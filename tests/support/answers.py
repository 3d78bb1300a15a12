"""Ways in which the scripted engine answers: the good ones, the slow ones and the ones that die.

Each is a `Script`: `engine.answer = Stream(tokens=5, gap_s=0.1)`, or, to choose per request,
`engine.choose = lambda seen: Failure(503) if seen.path.endswith("embeddings") else Stream()`.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from tests.support.reply import Header, Reply, Script

EVENT_STREAM: Header = ("content-type", "text/event-stream")
JSON: Header = ("content-type", "application/json")
GIB = 1 << 30

# clean: finish chunk, [DONE], clean end. bare: a clean end without finish chunk and [DONE]. error: an error
# event, then a clean end. reset: RST at an event boundary. torn: RST in the middle of an event. cut: FIN
# without the last chunk.
Ending = Literal["clean", "bare", "error", "reset", "torn", "cut"]


@dataclass(frozen=True)
class Usage:
    """What the engine reports of its work; cached_tokens None leaves the evidence out."""

    prompt_tokens: int = 32
    cached_tokens: int | None = None

    def report(self, completion_tokens: int) -> dict[str, Any]:
        """Return the `usage` object."""
        usage: dict[str, Any] = {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": completion_tokens,
            "total_tokens": self.prompt_tokens + completion_tokens,
        }
        if self.cached_tokens is not None:
            usage["prompt_tokens_details"] = {"cached_tokens": self.cached_tokens}
        return usage


def event(payload: dict[str, Any]) -> bytes:
    """Return one server-sent event."""
    return b"data: " + json.dumps(payload, ensure_ascii=False).encode() + b"\n\n"


def chunk(delta: dict[str, Any], finish: str | None = None) -> bytes:
    """Return one chat completion chunk as an event."""
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return event({**_frame("chat.completion.chunk"), "choices": [choice]})


def _frame(kind: str) -> dict[str, Any]:
    return {"id": "chatcmpl-scripted", "object": kind, "created": 1700000000, "model": "scripted"}


@dataclass(frozen=True, kw_only=True)
class Stream:
    """A chat completion as server-sent events: a role-only chunk, `tokens` chunks, an ending.

    tokens          None: for ever
    delay_s         silence before the headers; first_gap_s: between headers and first token; gap_s: between
                    tokens
    hold_before_head, hold_after    silence until the test says `finish`: before the headers, or after so many
                                    tokens
    usage           report it in a chunk with empty `choices` (always, whatever the request asked for)
    comment_s       send a comment so long after [DONE], before the end of the body
    segment         write each event in TCP segments of so many bytes
    zipped          gzip the body, flushed at each event
    text            content of token n: `text.format(n)`
    """

    tokens: int | None = 3
    delay_s: float = 0.0
    first_gap_s: float = 0.0
    gap_s: float = 0.0
    hold_before_head: bool = False
    hold_after: int | None = None
    ending: Ending = "clean"
    usage: Usage | None = None
    comment_s: float | None = None
    segment: int | None = None
    zipped: bool = False
    role_first: bool = True
    text: str = " token{0}"
    headers: tuple[Header, ...] = ()

    async def __call__(self, reply: Reply) -> None:
        """Write the whole reply."""
        await reply.pause(self.delay_s)
        if self.hold_before_head:
            await reply.hold()
        body = _Body(reply, self.segment, zlib.compressobj(wbits=31) if self.zipped else None)
        coding: tuple[Header, ...] = (("content-encoding", "gzip"),) if self.zipped else ()
        await reply.head(200, (EVENT_STREAM, *coding, *self.headers))
        if self.role_first:
            await body.write(chunk({"role": "assistant", "content": None}))
        await self._tokens(reply, body)
        await self._end(reply, body)

    async def _tokens(self, reply: Reply, body: _Body) -> None:
        count = 0
        while True:
            if self.hold_after == count:
                await reply.hold()
            if self.tokens is not None and count >= self.tokens:
                return
            await reply.pause(self.gap_s if count else self.first_gap_s)
            await body.write(chunk({"content": self.text.format(count)}))
            count += 1

    async def _end(self, reply: Reply, body: _Body) -> None:
        if self.ending == "reset":
            return reply.reset()
        if self.ending == "torn":
            half = chunk({"content": "torn in the middle"})[:40]
            await body.write(half)
            return reply.reset()
        if self.ending == "cut":
            return reply.close()
        if self.ending == "error":
            await body.write(
                event({"error": {"message": "the engine fell over", "type": "server_error", "code": 500}})
            )
        if self.ending == "clean":
            await self._finish(reply, body)
        await body.close()
        return await reply.end()

    async def _finish(self, reply: Reply, body: _Body) -> None:
        await body.write(chunk({}, "stop"))
        if self.usage is not None:
            usage = self.usage.report(self.tokens or 0)
            await body.write(event({**_frame("chat.completion.chunk"), "choices": [], "usage": usage}))
        await body.write(b"data: [DONE]\n\n")
        if self.comment_s is not None:
            await reply.pause(self.comment_s)
            await body.write(b": late comment\n\n")


@dataclass
class _Body:
    """Writes events through gzip and in segments, as asked."""

    reply: Reply
    segment: int | None
    zipper: Any

    async def write(self, data: bytes) -> None:
        if self.zipper is not None:
            data = self.zipper.compress(data) + self.zipper.flush(zlib.Z_SYNC_FLUSH)
        await self._pieces(data)

    async def close(self) -> None:
        if self.zipper is not None:
            await self._pieces(self.zipper.flush(zlib.Z_FINISH))

    async def _pieces(self, data: bytes) -> None:
        step = self.segment or len(data)
        for start in range(0, len(data), step):
            await self.reply.piece(data[start : start + step])


@dataclass(frozen=True, kw_only=True)
class Whole:
    """One body with a Content-Length. Without `body` it is a chat completion of `tokens` tokens."""

    status: int = 200
    body: bytes | None = None
    tokens: int = 3
    usage: Usage = field(default_factory=Usage)
    delay_s: float = 0.0
    hold_before_head: bool = False
    zipped: bool = False
    headers: tuple[Header, ...] = (JSON,)

    async def __call__(self, reply: Reply) -> None:
        """Write the whole reply."""
        await reply.pause(self.delay_s)
        if self.hold_before_head:
            await reply.hold()
        body = self.body if self.body is not None else self._completion()
        extra: tuple[Header, ...] = ()
        if self.zipped:
            zipper = zlib.compressobj(wbits=31)
            body = zipper.compress(body) + zipper.flush()
            extra = (("content-encoding", "gzip"),)
        if self.status in (204, 304):
            return await reply.head(self.status, self.headers, framing="length")
        await reply.head(
            self.status, (*self.headers, *extra, ("content-length", str(len(body)))), framing="length"
        )
        return await reply.piece(body)

    def _completion(self) -> bytes:
        message = {"role": "assistant", "content": "".join(f" token{n}" for n in range(self.tokens))}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        usage = self.usage.report(self.tokens)
        return json.dumps({**_frame("chat.completion"), "choices": [choice], "usage": usage}).encode()


def failure(status: int, *, retry_after: str | None = None, delay_s: float = 0.0) -> Script:
    """Answer with an error status and a JSON body, as engines do."""
    error = {"error": {"message": f"scripted {status}", "type": "scripted", "code": status}}
    extra: tuple[Header, ...] = (("retry-after", retry_after),) if retry_after is not None else ()
    return Whole(status=status, body=json.dumps(error).encode(), delay_s=delay_s, headers=(JSON, *extra))


@dataclass(frozen=True)
class Dies:
    """Dies before, within or right after the headers: by RST, or by FIN when `politely`."""

    where: Literal["before_head", "within_head", "after_head"]
    delay_s: float = 0.0
    politely: bool = False

    async def __call__(self, reply: Reply) -> None:
        """Write what comes before the end, then end."""
        await reply.pause(self.delay_s)
        if self.where == "within_head":
            await reply.raw(b"HTTP/1.1 200 Scripted\r\ncontent-type: text/ev")
        if self.where == "after_head":
            await reply.head(200, (EVENT_STREAM,))
        if self.politely:
            reply.close()
        else:
            reply.reset()


@dataclass(frozen=True)
class Flood:
    """As many bytes as the other side takes, in token events, without a pause."""

    total_bytes: int = GIB

    async def __call__(self, reply: Reply) -> None:
        """Write until the total is reached or the other side leaves."""
        await reply.head(200, (EVENT_STREAM,))
        block = chunk({"content": " flood" * 50}) * 64
        sent = 0
        while sent < self.total_bytes:
            await reply.piece(block)
            sent += len(block)
        await reply.piece(b"data: [DONE]\n\n")
        await reply.end()


async def as_asked(reply: Reply) -> None:
    """Answer as the request asks: a stream of three tokens or one JSON body, usage where it is wanted."""
    try:
        asked = reply.seen.json()
    except ValueError:
        asked = {}
    if not asked.get("stream"):
        await Whole()(reply)
        return
    wants_usage = bool((asked.get("stream_options") or {}).get("include_usage"))
    await Stream(usage=Usage() if wants_usage else None)(reply)
