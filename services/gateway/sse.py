"""Watching a reply go by, without changing it: the first token, the tokens, the report at the end.

Each observer sees a copy of every chunk. Before the first token a stream is parsed event by event; after it
a chunk costs a bounded append, and what no longer fits is counted in bulk.
"""

import re
from typing import Final, Protocol

import msgspec

from services.gateway.evidence import Report, may_report, read_events, read_report, read_tail
from services.gateway.unzip import Unzip

# A stream that has not shown a token after this much is not worth parsing further.
PARSE_BYTES_MAX: Final = 64 * 1024
TAIL_BYTES: Final = 8 * 1024
_TAIL_BYTES_MAX: Final = 2 * TAIL_BYTES
# Each chunk that is kept by itself has its own overhead, also one that cannot be read and is empty here.
_CHUNKS_MAX: Final = 128
# A JSON reply up to this size is kept whole for its report; of a longer one the tail is searched.
WHOLE_BYTES_MAX: Final = 32 * 1024
_BOUNDARY: Final = re.compile(rb"\r\n\r\n|\n\n|\r\r")
_ENDS: Final = (b"\n\n", b"\r\n\r\n", b"\r\r")
_COUNTED: Final = {end: re.compile(end) for end in _ENDS}
_EMPTY: Final = frozenset({b"", b"null", b'""', b"[]", b"{}"})
# Events of the Responses and Messages APIs that come before any generated content.
_PREAMBLES: Final = frozenset({
    "ping", "error", "message_start", "content_block_start", "response.created", "response.queued",
    "response.in_progress", "response.output_item.added", "response.content_part.added",
    "response.reasoning_summary_part.added",
})  # fmt: skip
# Finish, usage, timings, [DONE] and a comment or two: what may follow the last token.
_CLOSING_EVENTS_MAX: Final = 8
_DONE: Final = b"data: [DONE]"
_NONE: Final = msgspec.Raw(b"")
# What can be empty and so say nothing. Anything else makes the event one of unknown shape.
_Said = str | list[msgspec.Raw] | dict[str, msgspec.Raw] | None


class _Delta(msgspec.Struct, gc=False):
    """What a choice may say; all of it is looked at."""

    content: _Said = None
    reasoning_content: _Said = None
    reasoning: _Said = None
    tool_calls: _Said = None
    function_call: _Said = None
    refusal: _Said = None
    audio: _Said = None


class _Choice(msgspec.Struct, gc=False):
    delta: _Delta | None = None
    text: _Said = None


class _Event(msgspec.Struct, gc=False):
    choices: list[_Choice] | None = None
    type: str | None = None
    error: msgspec.Raw = _NONE
    prompt_progress: msgspec.Raw = _NONE


_event = msgspec.json.Decoder(_Event)
_UNREADABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


class Observer(Protocol):
    """Sees a copy of every chunk of one reply. `first_token` turns True once and stays."""

    first_token: bool
    is_stream: bool

    def feed(self, chunk: bytes) -> None:
        """Look at one chunk as the engine sent it."""

    def at_boundary(self) -> bool:
        """Whether an event of our own may follow what was fed so far."""

    def report(self) -> Report | None:
        """The engine's report, after the last chunk."""

    def generated(self) -> int:
        """How many events carried generated content, for engines that report no figure."""


def observer_for(status: int, content_type: bytes, encoding: bytes) -> Observer:
    """Choose how to watch a reply from its head. Errors and anything but events count from byte one."""
    is_error = status >= 400  # noqa: PLR2004
    if is_error or not content_type.startswith(b"text/event-stream"):
        return BodyObserver(keep=b"json" in content_type and not is_error, encoding=encoding)
    return StreamObserver(encoding=encoding)


class StreamObserver:
    """Watches text/event-stream, compressed or not."""

    __slots__ = (
        "_chunks", "_closing", "_counted", "_end", "_events", "_pending", "_plain", "_size", "_unzip",
        "first_token",
    )  # fmt: skip
    is_stream = True

    def __init__(self, *, encoding: bytes = b"") -> None:
        """`encoding` is the reply's Content-Encoding; one that cannot be read counts from byte one."""
        self.first_token = False
        self._plain = not encoding or encoding == b"identity"
        self._unzip = None if self._plain else Unzip(encoding)
        self._pending = b""
        # What the tail is made of, and how long it is: joined when somebody looks, not token by token.
        self._chunks: list[bytes] = []
        self._size = 0
        self._closing: list[bytes] | None = None
        self._end = b"\n\n"
        # How many events have come since the first token, up to this place in the tail.
        self._events = self._counted = 0

    def feed(self, chunk: bytes) -> None:
        """See Observer."""
        if self._unzip is not None:
            chunk = self._unzip.feed(chunk)
        self._chunks.append(chunk)
        self._size += len(chunk)
        if not self.first_token:
            self._look_for_token(chunk)
        if self._size > _TAIL_BYTES_MAX:
            self._trim()
        elif len(self._chunks) > _CHUNKS_MAX:
            self._tail()

    def at_boundary(self) -> bool:
        """See Observer. Compressed streams have none: our bytes would be noise inside them."""
        tail = self._tail()
        return self._plain and (not tail or tail.endswith(_ENDS))

    def report(self) -> Report | None:
        """See Observer."""
        if not may_report(self._tail()):
            return None
        return read_events(data_of(block) for block in self._last_events() if may_report(block))

    def generated(self) -> int:
        """See Observer. Counted without parsing; the end of the stream is looked at once, for its markers."""
        if not self.first_token:
            return 0
        events, markers = self._events, 0
        if self._counted < self._size:
            events += _count(self._end, self._tail(), self._counted)
        for block in reversed(self._last_events()[:-1]):
            # The first token's own event need not be looked at again.
            if markers >= events - 1 or (block and has_content(block)):
                break
            markers += bool(block)
        return events - markers

    def _last_events(self) -> list[bytes]:
        """Return what the stream ended with; the very last event may be open, and is mostly empty."""
        if self._closing is None:
            tail, count = self._tail(), _CLOSING_EVENTS_MAX + 1
            blocks = tail.rsplit(b"\n\n", count) if tail.find(b"\r") < 0 else _BOUNDARY.split(tail)
            self._closing = blocks[-count:]
        return self._closing

    def _look_for_token(self, chunk: bytes) -> None:
        """Parse whole events until one has generated content; the rest waits for its end."""
        data = self._pending + chunk
        blocks = _blocks(data)
        self._pending = blocks.pop()
        for number, block in enumerate(blocks):
            if has_content(block):
                self._begin(len(blocks) - number)
                self._end = b"\n\n" if data.find(b"\r\n\r\n") < 0 else b"\r\n\r\n"
                return
        is_blind = self._unzip is not None and self._unzip.is_blind
        if is_blind or len(self._pending) > PARSE_BYTES_MAX:
            self._begin(0)

    def _begin(self, events: int) -> None:
        """Take note of the first token, and of how many events have ended since."""
        self.first_token = True
        self._events, self._counted = events, max(0, self._size - len(self._pending))
        self._pending = b""

    def _trim(self) -> None:
        """Cut the tail, but first count the events in what goes, also one that ends just across the cut."""
        tail, cut = self._tail(), self._size - TAIL_BYTES
        self._events += _count(self._end, tail, self._counted, cut + len(self._end) - 1)
        self._counted = max(0, self._counted - cut)
        self._chunks, self._size = [tail[cut:]], TAIL_BYTES

    def _tail(self) -> bytes:
        """Return what is kept of the stream, as one."""
        self._chunks = [b"".join(self._chunks)]
        return self._chunks[0]


class BodyObserver:
    """Watches anything that is not an event stream: its first byte counts as the first token."""

    is_stream = False

    def __init__(self, *, keep: bool, encoding: bytes = b"") -> None:
        """`keep` says that the body is JSON whose report is wanted."""
        self.first_token = False
        self._keep = keep
        self._unzip = None if encoding in (b"", b"identity") else Unzip(encoding)
        self._tail = bytearray()
        self._cut = False

    def feed(self, chunk: bytes) -> None:
        """See Observer."""
        self.first_token = True
        if not self._keep:
            return
        self._tail += self._unzip.feed(chunk) if self._unzip else chunk
        if len(self._tail) > WHOLE_BYTES_MAX:
            self._cut = True
            del self._tail[:-TAIL_BYTES]

    def at_boundary(self) -> bool:
        """See Observer. A body that is no stream of events has no place for one."""
        return False

    def report(self) -> Report | None:
        """See Observer."""
        if not self._keep:
            return None
        return read_tail(bytes(self._tail)) if self._cut else read_report(bytes(self._tail))

    def generated(self) -> int:
        """See Observer."""
        return 0


def _count(end: bytes, data: bytes, *span: int) -> int:
    """Return `data.count(end, *span)`. For so short a word the pattern takes half as long."""
    return len(_COUNTED[end].findall(data, *span))


def _blocks(data: bytes) -> list[bytes]:
    """Return the events in `data`; the last one may be open. Carriage returns are rare and cost a pattern."""
    # Not `in`: for bytes it costs three times as much.
    return data.split(b"\n\n") if data.find(b"\r") < 0 else _BOUNDARY.split(data)


def data_of(block: bytes) -> bytes:
    """Return the joined data lines of one event; empty for comments and bare fields."""
    lines = [line[5:].removeprefix(b" ") for line in block.splitlines() if line.startswith(b"data:")]
    return b"\n".join(lines)


def has_content(block: bytes) -> bool:
    """Whether one event carries something generated: not a role, a ping, a progress or an end.

    A shape nobody told us about counts: a stream must not be cut for being unknown.
    """
    if block == _DONE:
        return False
    data = block.removeprefix(b"data: ")
    if data is block:
        return _has_odd_content(block)
    try:
        return _says_something(_event.decode(data))
    except _UNREADABLE:
        return _has_odd_content(block)


def _has_odd_content(block: bytes) -> bool:
    """See `has_content`: of an event that is not JSON in one line."""
    data = data_of(block)
    if not data or data == b"[DONE]":
        return False
    try:
        return _says_something(_event.decode(data))
    except _UNREADABLE:
        return True


def _says_something(event: _Event) -> bool:
    if event.choices is None:
        if event.type is not None:
            return event.type not in _PREAMBLES
        return bytes(event.error) in _EMPTY and bytes(event.prompt_progress) in _EMPTY
    for choice in event.choices:
        delta = choice.delta
        if choice.text or (
            delta is not None
            and (
                delta.content
                or delta.reasoning_content
                or delta.reasoning
                or delta.tool_calls
                or delta.function_call
                or delta.refusal
                or delta.audio
            )
        ):
            return True
    return False
