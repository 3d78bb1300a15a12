"""Which addresses of Redis and of engines are understood; each refusal says what to write instead."""

from typing import Final
from urllib.parse import urlsplit

_REDIS_SCHEMES: Final = ("redis", "rediss", "unix")
_REDIS_LATER: Final = ("redis+sentinel", "redis+cluster")


def redis_url(url: str) -> str:
    """Return `url` when it is an address of a single Redis; ValueError with the cure otherwise."""
    scheme = url.partition("://")[0].lower() if "://" in url else ""
    if scheme in _REDIS_LATER:
        raise ValueError(
            f"{scheme}:// is not supported in this release; name one server with redis://host:port/0"
        )
    if scheme not in _REDIS_SCHEMES:
        raise ValueError(
            "no redis:// rediss:// or unix:// address; write for example redis://127.0.0.1:6379/0"
        )
    host, port, path = _parts(url)
    if scheme == "unix":
        if host or not path.startswith("/"):
            raise ValueError("the socket's path must be absolute; write for example unix:///run/redis.sock")
        return url
    if not host:
        raise ValueError("the host is missing; write for example redis://127.0.0.1:6379/0")
    if port == 0:
        raise ValueError("port 0 cannot be connected to; write for example redis://127.0.0.1:6379/0")
    database = path.strip("/")
    if database and not (database.isascii() and database.isdigit()):
        raise ValueError(f"the database after the port must be a number, not {database[:32]!r}")
    return url


def engine_url(url: str) -> str:
    """Return the engine's base address without a slash at its end; ValueError with the cure otherwise."""
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise ValueError(f"no address: {error}") from None
    if parts.scheme not in ("http", "https"):
        raise ValueError("no http:// or https:// address; write for example http://127.0.0.1:8080")
    host, port, path = _parts(url)
    if not host or any(not ("!" <= char <= "~") for char in url):
        raise ValueError("no usable host name; write for example http://127.0.0.1:8080")
    if port == 0:
        raise ValueError("port 0 cannot be connected to; write for example http://127.0.0.1:8080")
    if "@" in parts.netloc:
        raise ValueError("user and password do not belong here; put the engine's key into api_key")
    if parts.query or parts.fragment or url.endswith(("?", "#")):
        raise ValueError("? and # do not belong here; only the engine's base address does")
    if path.rstrip("/").endswith("/v1"):
        raise ValueError("leave off /v1; the path of each request is added to this address")
    return url.rstrip("/")


def _parts(url: str) -> tuple[str, int | None, str]:
    try:
        parts = urlsplit(url)
        return parts.hostname or "", parts.port, parts.path
    except ValueError as error:
        raise ValueError(f"no address: {str(error)[:100]}") from None
