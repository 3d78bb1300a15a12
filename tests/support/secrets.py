"""Looking for secrets where none may be, in every form in which one could turn up."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, quote_plus

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.support.redis_server import RedisServer


def forms_of(secret: str) -> list[bytes]:
    """Return the secret plain, quoted, in hex, and in base64 at any offset and in either alphabet."""
    plain = secret.encode()
    found = {plain, quote(secret, safe="").encode(), quote_plus(secret).encode()}
    found |= {plain.hex().encode(), plain.hex().upper().encode(), plain.hex(":").encode()}
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        for shift in range(3):
            # Without the ends, which depend on the neighbours.
            found.add(encode(b"\0" * shift + plain)[4:-4])
    return sorted(found)


def assert_no_secret(where: str, content: bytes, secrets: Iterable[str]) -> None:
    """Fail when a form of one of the secrets is in `content`; `where` says what that is."""
    for secret in secrets:
        for form in forms_of(secret):
            assert form not in content, f"{form!r} in {where}"


def redis_content(server: RedisServer) -> bytes:
    """Return every key of Redis with its whole value, and what the server tells of its clients."""
    parts: list[Any] = [server.cli("CLIENT", "LIST"), server.cli("SLOWLOG", "GET", 128)]
    for key in server.cli("KEYS", "*"):
        read = {
            "string": ("GET", key),
            "hash": ("HGETALL", key),
            "set": ("SMEMBERS", key),
            "zset": ("ZRANGE", key, 0, -1),
            "list": ("LRANGE", key, 0, -1),
            "stream": ("XRANGE", key, "-", "+"),
        }[server.cli("TYPE", key)]
        parts += [key, server.cli(*read)]
    return repr(parts).encode()
