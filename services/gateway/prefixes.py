"""The prefixes of a prompt, as hashes of a chain, so that equal beginnings have equal names.

A prompt is cut where an engine's cache could end: after a message, or after a block of a plain
prompt. Each boundary knows which share of the prompt lies before it.
"""

import hashlib
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

BLOCK_CHARS: Final = 1024
BOUNDARIES_MAX: Final = 64
# Only a boundary that covers at least half of a prompt can make it warm: a system prompt that
# everybody shares is cached for everybody and saves next to nothing.
WARM_SHARE: Final = 0.5
CANDIDATES_MAX: Final = 16
_HASH_BYTES: Final = 8


class Boundary(msgspec.Struct, frozen=True):
    """One place where a cached prefix may end. `share` is the part of the prompt before it, 0..1."""

    hash: str
    share: float


def framed(pieces: Iterable[bytes]) -> bytes:
    """Return the pieces in one, each with its length in front, so that no two rows of them read alike."""
    return b"".join([b"%d:%b" % (len(piece), piece) for piece in pieces])


def begun(seed: bytes) -> hashlib.blake2b:
    """Return the beginning of a chain; `seed` is what changes the meaning of all that follows."""
    return hashlib.blake2b(seed, digest_size=_HASH_BYTES)


def of_parts(beginning: hashlib.blake2b, parts: Sequence[bytes]) -> tuple[Boundary, ...]:
    """Return the boundaries after each part of a chain; its `beginning` stays as it is.

    The last BOUNDARIES_MAX are kept: a conversation grows at its end.
    """
    chain = beginning.copy()
    ends: list[tuple[str, int]] = []
    read, left = 0, len(parts)
    for part in parts:
        size = len(part)
        chain.update(b"%d:%b" % (size, part))
        read += size
        left -= 1
        if left < BOUNDARIES_MAX:
            ends.append((chain.hexdigest(), read))
    return tuple([Boundary(name, end / read) for name, end in ends if read])


def of_text(beginning: hashlib.blake2b, text: str) -> tuple[Boundary, ...]:
    """Return the boundaries of a plain prompt: block ends, thinned out, and its very end.

    Thinning keeps every 2nd, 4th, 8th ... block, so two long prompts of like length that share a
    beginning still meet at the same boundaries.
    """
    blocks = [text[at : at + BLOCK_CHARS].encode() for at in range(0, len(text), BLOCK_CHARS)]
    step = 1
    while len(blocks) // step >= BOUNDARIES_MAX:
        step *= 2
    parts = [b"".join(blocks[at : at + step]) for at in range(0, len(blocks), step)]
    return of_parts(beginning, parts)


def candidates(boundaries: tuple[Boundary, ...]) -> tuple[str, ...]:
    """Return the hashes that could make the request warm, the longest prefix first."""
    long_enough = [boundary.hash for boundary in reversed(boundaries) if boundary.share >= WARM_SHARE]
    return tuple(long_enough[:CANDIDATES_MAX])
