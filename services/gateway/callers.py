"""Who is calling: the key decides, and nothing else that the caller can write."""

from collections.abc import Callable
from typing import Final

from services.gateway.headers import Head
from services.gateway.refusals import NotServed

_KEY_CHARS_MAX: Final = 512


def tenant_of(head: Head, lookup: Callable[[str], str | None]) -> str:
    """Return the tenant of the request's key; raise NotServed("invalid_api_key") when there is none.

    The key comes from `Authorization: Bearer` or from `x-api-key`; it is never quoted in an answer.
    """
    key = _key_of(head)
    tenant = lookup(key) if key else None
    if tenant is None:
        what = "unknown" if key else "missing"
        raise NotServed("invalid_api_key", f"the API key is {what}; send `Authorization: Bearer KEY`")
    return tenant


def _key_of(head: Head) -> str:
    """Return the one key sent, or "": two different ones are as good as none."""
    keys = [*map(_bearer, head.credentials), *map(bytes.strip, head.api_keys)]
    if not keys or keys.count(keys[0]) != len(keys):
        return ""
    key = keys[0]
    return key.decode("latin-1") if len(key) <= _KEY_CHARS_MAX else ""


def _bearer(value: bytes) -> bytes:
    scheme, _, key = value.partition(b" ")
    return key.strip() if scheme.lower() == b"bearer" else b""
