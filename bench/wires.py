"""What the benchmarks' own engine and relay know of HTTP/1.1: where a message ends, and no more.

They belong to us and talk to clients and engines of ours; nothing here is safe against a hostile peer.
"""

import re
from typing import Final

_LENGTH: Final = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_CHUNKED: Final = re.compile(rb"\r\ntransfer-encoding: *chunked", re.IGNORECASE)


def message_bytes(data: bytes | bytearray) -> int | None:
    """Return how long the request at the front of `data` is, with its body; None before its head is whole.

    A request has a Content-Length or no body. The answer may be more than there is yet.
    """
    end = data.find(b"\r\n\r\n")
    if end < 0:
        return None
    length = _LENGTH.search(data, 0, end + 2)
    return end + 4 + (int(length[1]) if length else 0)


class ReplyEnd:
    """Finds the end of one reply in the pieces in which it comes: by its length or by its last chunk."""

    __slots__ = ("_chunked", "_head", "_in_head", "_is_last", "_left", "_line")

    def __init__(self) -> None:
        """Wait for a head."""
        self._head = b""
        self._in_head = True
        self._chunked = self._is_last = False
        self._left = 0  # bytes of the body, or of the chunk with its line's end, that are still to come
        self._line = b""  # a chunk's size of which the end is still to come

    def feed(self, data: bytes) -> bool:
        """Take in the next piece; return whether it ends the reply."""
        if self._in_head:
            data = self._head + data
            end = data.find(b"\r\n\r\n")
            if end < 0:
                self._head = data
                return False
            self._in_head = False
            self._chunked = _CHUNKED.search(data, 0, end + 2) is not None
            length = _LENGTH.search(data, 0, end + 2)
            self._left = int(length[1]) if length else 0
            data = data[end + 4 :]
        if self._chunked:
            return self._feed_chunks(data)
        self._left -= len(data)
        return self._left <= 0

    def _feed_chunks(self, data: bytes) -> bool:
        if self._line:
            data, self._line = self._line + data, b""
        at = self._left
        while at < len(data) and not self._is_last:
            end = data.find(b"\r\n", at)
            if end < 0:
                self._line, self._left = data[at:], 0
                return False
            size = int(data[at:end], 16)
            # After the last one, which is empty, comes an empty line: nobody here sends trailers.
            self._is_last = size == 0
            at = end + 2 + size + 2
        self._left = max(0, at - len(data))
        return self._is_last and not self._left
