"""Watching a reply go by, without changing it: the first token, the tokens, the report at the end.

Each observer sees a copy of every chunk. Before the first token a stream is parsed event by event;
after it a chunk costs a count and a bounded append.
"""

import re
from typing import Final, Protocol

import msgspec

from services.gateway.evidence import Report, may_report, read_events, read_report, read_tail
from services.gateway.unzip import Unzip

# A stream that has not shown a token after this much is not worth parsing further.
PARSE_BYTES_MAX: Final = 64 * 1024
TAIL_BYTES: Final = 8 * 1024
# A JSON reply up to this size is kept whole for its report; of a longer one the tail is searched.
WHOLE_BYTES_MAX: Final = 32 * 1024
_BOUNDARY: Final = re.compile(rb"\r\n\r\n|\n\n|\r\r")
_ENDS: Final = (b"\n\n", b"\r\n\r\n", b"\r\r")
_EMPTY: Final = frozenset({b"", b"null", b'""', b"[]", b"{}"})
# Events of the Responses and Messages APIs that come before any generated content.
_PREAMBLES: Final = frozenset({
    "ping", "error", "message_start", "content_block_start", "response.created", "response.queued",
    "response.in_progress", "response.output_item.added", "response.content_part.added",
    "response.reasoning_summary_part.added",
})  # fmt: skip
# Finish, usage, timings, [DONE] and a comment or two: what may follow the last token.
_CLOSING_EVENTS_MAX: Final = 8
_NONE: Final = msgspec.Raw(b"")


class _Delta(msgspec.Struct):
    """What a choice may say; all of it is looked at."""

    content: msgspec.Raw = _NONE
    reasoning_content: msgspec.Raw = _NONE
    reasoning: msgspec.Raw = _NONE
    tool_calls: msgspec.Raw = _NONE
    function_call: msgspec.Raw = _NONE
    refusal: msgspec.Raw = _NONE
    audio: msgspec.Raw = _NONE


class _Choice(msgspec.Struct):
    delta: _Delta | None = None
    text: msgspec.Raw = _NONE


class _Event(msgspec.Struct):
    choices: list[_Choice] | msgspec.UnsetType | None = msgspec.UNSET
    type: str | None = None
    error: msgspec.Raw = _NONE
    prompt_progress: msgspec.Raw = _NONE


_event = msgspec.json.Decoder(_Event)


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

    is_stream = True

    def __init__(self, *, encoding: bytes = b"") -> None:
        """`encoding` is the reply's Content-Encoding; one that cannot be read counts from byte one."""
        self.first_token = False
        self._plain = encoding in (b"", b"identity")
        self._unzip = None if self._plain else Unzip(encoding)
        self._pending = b""
        self._tail = bytearray()
        self._end = b"\n\n"
        self._open = b""
        self._events = 0

    def feed(self, chunk: bytes) -> None:
        """See Observer."""
        if self._unzip is not None:
            chunk = self._unzip.feed(chunk)
            self.first_token = self.first_token or self._unzip.is_blind
        if not self.first_token:
            self._look_for_token(chunk)
        elif chunk:
            self._count(chunk)
        self._tail += chunk
        if len(self._tail) > 2 * TAIL_BYTES:
            del self._tail[:-TAIL_BYTES]

    def at_boundary(self) -> bool:
        """See Observer. Compressed streams have none: our bytes would be noise inside them."""
        return self._plain and (not self._tail or self._tail.endswith(_ENDS))

    def report(self) -> Report | None:
        """See Observer."""
        tail = bytes(self._tail)
        return read_events(map(data_of, filter(may_report, _blocks(tail)))) if may_report(tail) else None

    def generated(self) -> int:
        """See Observer. Counted without parsing; the end of the stream is looked at once, for its markers."""
        blocks = _blocks(bytes(self._tail))[-_CLOSING_EVENTS_MAX - 1 :]
        markers = 0
        for block in reversed(blocks):
            if block and has_content(data_of(block)):
                break
            markers += bool(block)
        return max(0, self._events - markers)

    def _look_for_token(self, chunk: bytes) -> None:
        """Parse whole events until one has generated content; the rest waits for its end."""
        data = self._pending + chunk
        *blocks, self._pending = _blocks(data)
        for block in blocks:
            if self.first_token:
                self._events += 1
            elif has_content(data_of(block)):
                self.first_token = True
                self._events = 1
                self._end = b"\r\n\r\n" if b"\r\n\r\n" in data else b"\n\n"
        if len(self._pending) > PARSE_BYTES_MAX:
            self.first_token = True
        if self.first_token:
            self._open = self._pending[1 - len(self._end) :]
            self._pending = b""

    def _count(self, chunk: bytes) -> None:
        """Count event ends, also one that two chunks share."""
        end = self._end
        if self._open:
            chunk = self._open + chunk
        self._events += chunk.count(end)
        self._open = b"" if chunk.endswith(end) else chunk[1 - len(end) :]


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


def _blocks(data: bytes) -> list[bytes]:
    """Return the events in `data`; the last one may be open. Carriage returns are rare and cost a pattern."""
    return _BOUNDARY.split(data) if b"\r" in data else data.split(b"\n\n")


def data_of(block: bytes) -> bytes:
    """Return the joined data lines of one event; empty for comments and bare fields."""
    lines = [line[5:].removeprefix(b" ") for line in block.splitlines() if line.startswith(b"data:")]
    return b"\n".join(lines)


def has_content(data: bytes) -> bool:
    """Whether one event's data carries something generated: not a role, a ping, a progress or an end.

    A shape nobody told us about counts: a stream must not be cut for being unknown.
    """
    if not data or data == b"[DONE]":
        return False
    try:
        event = _event.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return True
    if isinstance(event.choices, list):
        return any(_says_something(choice) for choice in event.choices)
    if event.type is not None:
        return event.type not in _PREAMBLES
    return bytes(event.error) in _EMPTY and bytes(event.prompt_progress) in _EMPTY


def _says_something(choice: _Choice) -> bool:
    said = msgspec.structs.astuple(choice.delta) if choice.delta else ()
    return bytes(choice.text) not in _EMPTY or not _EMPTY.issuperset(map(bytes, said))
