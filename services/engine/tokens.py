"""Text to tokens and back: a deterministic split, and the words the engine says.

A token is a run of at most eight letters or digits with the blank before it, or one other character: about
what a trained tokenizer makes of English. Generated words are tokens of this split too, so a client that
sends an answer back in its next turn finds the pages of that answer in the cache.
"""

from __future__ import annotations

import re
from hashlib import blake2b
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_PIECE = re.compile(r" ?\w{1,8}| ?[^\w\s]|\s")

# 61 of them, a prime, so every step through them visits all.
_WORDS = (  # noqa: SIM905 - five lines of words instead of sixty
    "amber anchor april arrow autumn basin beacon birch bridge canal cedar chalk cliff cloud copper coral "
    "crane delta dune ember fern field fjord flint forest garnet glade grain harbor hazel heron indigo "
    "island ivory jade juniper kelp lagoon lantern larch ledge lichen maple marsh meadow mist moss north "
    "oak ochre orchard otter pebble pine plum quartz rain reed ridge river saffron"
).split()

# The token that begins each text; the split never makes one of text.
START = "<s>"

Digest = bytes


def split(text: str) -> list[str]:
    """Cut text into tokens; joined again they are the text."""
    return _PIECE.findall(text)


def page_digest(before: Digest, page: Sequence[str]) -> Digest:
    """Name a full page by its tokens and everything before it."""
    return blake2b("\0".join(page).encode("utf-8", "surrogatepass"), digest_size=12, key=before).digest()


class Speech:
    """An endless text, the same for the same prompt. Words need no escape in JSON."""

    __slots__ = ("_at", "_step")

    def __init__(self, prompt: Sequence[str]) -> None:
        seed = int.from_bytes(page_digest(b"speech", prompt)[:4], "big")
        self._at = seed % len(_WORDS)
        self._step = 1 + seed // len(_WORDS) % (len(_WORDS) - 1)

    def word(self, first: bool) -> str:  # noqa: FBT001 - reads as said: word(first=True)
        """Say the next token; all but the first begin with a blank."""
        self._at = (self._at + self._step) % len(_WORDS)
        return _WORDS[self._at] if first else " " + _WORDS[self._at]
