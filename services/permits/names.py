"""Which names may become part of a Redis key.

Names are checked once, where they are created (config, command line, admin call), so that every
later layer can build keys from them without quoting.
"""

import re
from typing import Final, Literal

from services.permits.errors import BadName

NameKind = Literal["tenant", "fleet", "engine", "gateway"]

NAME_CHARS_MAX: Final = 64
_SHAPE: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")

# A tenant called like a pool would read as that pool in every table, metric and redis-cli session.
_POOL_WORDS: Final = frozenset({"total", "cold", "tenant", "engine", "default", "tenant_default"})


def check_name(kind: NameKind, value: str) -> str:
    """Return `value` when it is a legal name of its kind; raise BadName with the rule otherwise."""
    if not _SHAPE.fullmatch(value):
        shown = ascii(value[:NAME_CHARS_MAX])
        raise BadName(f"{kind} name {shown} must be 1-64 characters of A-Z a-z 0-9 . _ -")
    if kind == "tenant" and value in _POOL_WORDS:
        raise BadName(f"tenant name {value!r} is the name of a pool; choose another")
    return value
