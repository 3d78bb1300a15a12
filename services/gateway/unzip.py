"""Reading along in a compressed reply. The client gets the bytes as they came."""

import zlib
from typing import Final

# Of one chunk; a few bytes that inflate to very many are not worth following.
PLAIN_BYTES_MAX: Final = 64 * 1024


class Unzip:
    """Decompresses a copy of a stream for its observer; blind when it cannot."""

    def __init__(self, encoding: bytes) -> None:
        """Gzip and deflate are read, also raw deflate; anything else is left alone."""
        self.is_blind = encoding not in (b"gzip", b"x-gzip", b"deflate")
        self._inflate = zlib.decompressobj(wbits=47)
        self._fed = False

    def feed(self, chunk: bytes) -> bytes:
        """Return what `chunk` adds in plain bytes, at most PLAIN_BYTES_MAX of it."""
        if self.is_blind or not chunk:
            return b""
        try:
            plain = self._inflate.decompress(chunk, PLAIN_BYTES_MAX)
        except zlib.error:
            plain = self._feed_raw(chunk)
        self._fed = True
        # A few bytes that inflate to very many are not worth following, and what comes after the end would be
        # put by and copied with each chunk: the reply passes, unobserved.
        if self._inflate.unconsumed_tail or self._inflate.eof:
            self.is_blind = True
            self._inflate = zlib.decompressobj()
        return plain

    def _feed_raw(self, chunk: bytes) -> bytes:
        """Some servers send raw deflate under that name, without zlib's header."""
        self.is_blind = self._fed
        self._inflate = zlib.decompressobj(wbits=-15)
        try:
            return b"" if self._fed else self._inflate.decompress(chunk, PLAIN_BYTES_MAX)
        except zlib.error:
            self.is_blind = True
            return b""
