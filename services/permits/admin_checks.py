"""What an administrator may write, checked before anything is written. No I/O."""

import re
from collections.abc import Collection, Mapping
from typing import Final

from services.permits.admin_model import POOL_KINDS
from services.permits.errors import BadLimits, NotFound

LIMIT_MAX: Final = 1_000_000
WEIGHT_MAX: Final = 1_000
PAGE_MAX: Final = 1_000

LIMIT_FIELDS: Final = ("total", "cold", "tenant_default", "line_max", "line_max_per_tenant")
_DIGITS: Final = re.compile(r"[0-9]{1,9}")
_EVENT_ID: Final = re.compile(r"[0-9]{1,15}(-[0-9]{1,15})?")
_LEASE: Final = re.compile(r"[A-Za-z0-9._~-]{1,255}")
_REQUEST: Final = re.compile(r"[0-9a-f]{32}")
_KEY_ID: Final = re.compile(r"[0-9a-f]{12}")


def check_limits(changes: Mapping[str, object], engines: Collection[str]) -> dict[str, int | str]:
    """Return the fields to write; raise BadLimits or NotFound for the first that is wrong."""
    return {field: _limit(field, value, engines) for field, value in changes.items()}


def check_number(field: str, value: object, least: int, most: int) -> int:
    """Return a whole number between the two; also one that was typed, as a command line has it."""
    if isinstance(value, str) and _DIGITS.fullmatch(value):
        value = int(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise BadLimits(field, f"must be a whole number from {least} to {most}, not {str(value)[:40]!a}")
    return value


def check_after(after: str) -> str:
    """Return the id of an event."""
    if not _EVENT_ID.fullmatch(after):
        raise BadLimits("after", "must be the id of an event, like 1700000000000-0, or 0 for the oldest")
    return after


def is_lease(lease: str) -> bool:
    """Whether this could be the id of a lease at all."""
    return _LEASE.fullmatch(lease) is not None


def is_request(request_id: str) -> bool:
    """Whether this could be the id of a request at all."""
    return _REQUEST.fullmatch(request_id) is not None


def is_key_id(key_id: str) -> bool:
    """Whether this could be the id of a key at all."""
    return _KEY_ID.fullmatch(key_id) is not None


def _limit(field: str, value: object, engines: Collection[str]) -> int | str:
    if field == "shadow":
        return _shadow(value)
    kind, _, name = field.partition(":")
    if kind == "engine" and name not in engines:
        known = ", ".join(sorted(engines)) or "none"
        raise NotFound(f"there is no engine {name[:80]!a} in this fleet; its engines are {known}")
    if kind != "engine" and field not in LIMIT_FIELDS:
        raise BadLimits(
            f"{field[:80]!a}", f"is no limit; those are {', '.join(LIMIT_FIELDS)}, shadow, engine:NAME"
        )
    return check_number(field, value, 0, LIMIT_MAX)


def _shadow(value: object) -> str:
    words = re.split(r"[\s,]+", value.strip()) if isinstance(value, str) else value
    if not isinstance(words, list | tuple) or not all(word in {*POOL_KINDS, ""} for word in words):
        raise BadLimits("shadow", f"must be some of {' '.join(POOL_KINDS)}, or empty")
    return " ".join(kind for kind in POOL_KINDS if kind in words)
