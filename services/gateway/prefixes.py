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


def of_parts(seed: Iterable[bytes], parts: Sequence[bytes]) -> tuple[Boundary, ...]:
    """Return the boundaries after each part; `seed` is what changes the meaning of all of them.

    The last BOUNDARIES_MAX are kept: a conversation grows at its end.
    """
    chain = hashlib.blake2b(digest_size=_HASH_BYTES)
    chain.update(b"".join([b"%d:%b" % (len(piece), piece) for piece in seed]))
    ends: list[tuple[str, int]] = []
    read = 0
    for number, part in enumerate(parts, start=1):
        chain.update(b"%d:%b" % (len(part), part))
        read += len(part)
        if number > len(parts) - BOUNDARIES_MAX:
            ends.append((chain.hexdigest(), read))
    return tuple(Boundary(name, end / read) for name, end in ends if read)


def of_text(seed: Iterable[bytes], text: str) -> tuple[Boundary, ...]:
    """Return the boundaries of a plain prompt: block ends, thinned out, and its very end.

    Thinning keeps every 2nd, 4th, 8th ... block, so two long prompts of like length that share a
    beginning still meet at the same boundaries.
    """
    blocks = [text[at : at + BLOCK_CHARS].encode() for at in range(0, len(text), BLOCK_CHARS)]
    step = 1
    while len(blocks) // step >= BOUNDARIES_MAX:
        step *= 2
    parts = [b"".join(blocks[at : at + step]) for at in range(0, len(blocks), step)]
    return of_parts(seed, parts)


def candidates(boundaries: tuple[Boundary, ...]) -> tuple[str, ...]:
    """Return the hashes that could make the request warm, the longest prefix first."""
    long_enough = [boundary.hash for boundary in boundaries if boundary.share >= WARM_SHARE]
    return tuple(reversed(long_enough))[:CANDIDATES_MAX]
