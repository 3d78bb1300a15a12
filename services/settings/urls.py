"""Which addresses of Redis and of engines are understood; each refusal says what to write instead."""

from urllib.parse import urlsplit

from services.permits.address import read_address


def redis_url(url: str) -> str:
    """Return `url` when it is an address of a Redis; ValueError with the cure otherwise."""
    read_address(url)
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
