"""HTTP/1.1 as the strictest reader takes it: whatever could be read in two ways is an error.

Both directions are judged by it: what a gateway sent to an engine, and what it sent to a client.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

_REQUEST: Final = re.compile(rb"([A-Z]+) (/[!-~]*) HTTP/1\.1")
_STATUS: Final = re.compile(rb"HTTP/1\.1 ([1-5][0-9][0-9]) [\t -~]*")
_FIELD: Final = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([\t -~\x80-\xff]*?)[ \t]*")
_SIZE: Final = re.compile(rb"[0-9a-fA-F]{1,8}")


@dataclass(frozen=True)
class Message:
    """One request (`start` is "METHOD path") or reply (`start` is its status). Names are in lower case."""

    start: str
    headers: tuple[tuple[str, str], ...]
    body: bytes

    def values(self, name: str) -> list[str]:
        """Return all values of a header."""
        return [value for key, value in self.headers if key == name]


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def left(self) -> int:
        return len(self._data) - self._at

    def line(self) -> bytes:
        end = self._data.find(b"\r\n", self._at)
        assert end >= 0, f"a line without an end: {self._data[self._at : self._at + 200]!r}"
        line, self._at = self._data[self._at : end], end + 2
        assert not set(line) & {0, 10, 13}, f"a control character in {line[:200]!r}"
        return line

    def take(self, count: int) -> bytes:
        assert self.left >= count, f"{count} bytes were promised, {self.left} came"
        taken, self._at = self._data[self._at : self._at + count], self._at + count
        return taken

    def headers(self) -> tuple[tuple[str, str], ...]:
        found = []
        while line := self.line():
            field = _FIELD.fullmatch(line)
            assert field, f"no header: {line[:200]!r}"
            found.append((field[1].decode().lower(), field[2].decode("latin-1")))
        return tuple(found)

    def chunks(self) -> bytes:
        body = bytearray()
        while True:
            size = self.line()
            assert _SIZE.fullmatch(size), f"no size of a chunk: {size[:200]!r}"
            if not int(size, 16):
                assert self.line() == b"", "a trailer"
                return bytes(body)
            body += self.take(int(size, 16))
            assert self.take(2) == b"\r\n", "a chunk that is longer than it says"

    def body(self, headers: tuple[tuple[str, str], ...], *, to_the_end: bool) -> bytes:
        lengths = [value for name, value in headers if name == "content-length"]
        codings = [value for name, value in headers if name == "transfer-encoding"]
        assert len(lengths) + len(codings) <= 1, f"two framings: {lengths} {codings}"
        if codings:
            assert codings == ["chunked"], codings
            return self.chunks()
        if lengths:
            assert re.fullmatch("[0-9]{1,15}", lengths[0]), lengths
            return self.take(int(lengths[0]))
        return self.take(self.left) if to_the_end else b""


def requests_in(data: bytes) -> list[Message]:
    """Return the requests that `data` is made of; AssertionError when it is not whole requests alone."""
    reader = _Reader(data)
    found = []
    while reader.left:
        line = reader.line()
        start = _REQUEST.fullmatch(line)
        assert start, f"no request: {line[:200]!r}"
        headers = reader.headers()
        assert [name for name, _ in headers].count("host") == 1, headers
        body = reader.body(headers, to_the_end=False)
        found.append(Message(f"{start[1].decode()} {start[2].decode()}", headers, body))
    return found


def replies_in(data: bytes, methods: Sequence[str] = ()) -> list[Message]:
    """Return the replies that `data` is made of, without those of 1xx; `methods` are what was asked.

    AssertionError when it is not whole replies alone.
    """
    reader = _Reader(data)
    found: list[Message] = []
    while reader.left:
        line = reader.line()
        start = _STATUS.fullmatch(line)
        assert start, f"no reply: {line[:200]!r}"
        status, headers = int(start[1]), reader.headers()
        if status < 200:
            continue
        is_head = len(methods) > len(found) and methods[len(found)] == "HEAD"
        bodiless = is_head or status in (204, 304)
        body = b"" if bodiless else reader.body(headers, to_the_end=True)
        found.append(Message(str(status), headers, body))
    return found
