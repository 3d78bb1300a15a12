"""What of a request's and a reply's head crosses the gateway, decided in one pass each.

Names are compared with `_` read as `-`, because many servers read `X_Tenant_Id` as `X-Tenant-Id`.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from starlette.types import Scope

RawHeaders = list[tuple[bytes, bytes]]

# RFC 9110, 7.6.1: these speak about one connection only. `proxy-*` is matched by its prefix.
HOP_BY_HOP: Final = frozenset(
    {b"connection", b"keep-alive", b"te", b"trailer", b"transfer-encoding", b"upgrade"}
)
# Ours, the caller's secret, or made anew for the engine. A conversation id makes llama.cpp compute on
# after the client has left, so it stays here. `tenure-*` is matched by its prefix.
NOT_FOR_ENGINES: Final = HOP_BY_HOP | {
    b"host", b"authorization", b"x-api-key", b"content-length", b"expect",
    b"x-conversation-id", b"x-request-id", b"x-client-request-id", b"x-tenant-id",
}  # fmt: skip
NOT_FOR_CLIENTS: Final = HOP_BY_HOP | {b"x-request-id", b"x-client-request-id"}
SECRET_PARAMETERS: Final = ("api_key", "api-key", "key")

# More than any budget may be: without a wish of the caller the fleet's own patience holds.
PATIENCE_MS_MAX: Final = 86_400_000
_PATIENCE_DIGITS_MAX: Final = 9


def _in_any_spelling(word: str) -> str:
    return "".join(f"(?:{re.escape(char)}|%{ord(char):x}|%{ord(char.upper()):x})" for char in word)


# One search instead of decoding each parameter: it is done for callers whom nobody knows yet.
_SECRET: Final = re.compile(
    rf"(?:^|&)(?:{'|'.join(map(_in_any_spelling, SECRET_PARAMETERS))})(?:=[^&]*)?(?=&|$)",
    re.IGNORECASE | re.ASCII,
)
_CLIENT_ID: Final = re.compile(rb"[\x20-\x7e]{1,128}")
# What uvicorn refuses to write; an engine that sends it loses the header, not the reply.
_BAD_NAME: Final = re.compile(rb'[\x00-\x1f\x7f()<>@,;:\[\]={} \t\\"]')
_BAD_VALUE: Final = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")


@dataclass(slots=True)
class Head:
    """One request's head as the gateway needs it. `forward` is what the engine will get."""

    method: str
    path: str
    query: str
    http10: bool
    forward: RawHeaders
    credentials: list[bytes]
    api_keys: list[bytes]
    content_type: bytes
    content_encoding: bytes
    content_length: int | None
    chunked: bool
    expects_continue: bool
    client_request_id: str
    colder: bool
    patience_ms: int

    @property
    def has_body(self) -> bool:
        """Whether bytes of a body follow the head."""
        return self.chunked or bool(self.content_length)


def read_head(scope: Scope) -> Head:
    """Take a request's head apart; `scope` is one HTTP request as uvicorn hands it over."""
    picked: dict[bytes, list[bytes]] = {}
    forward: RawHeaders = []
    for header in scope["headers"]:
        name = header[0]
        if name in _PICKED:
            picked.setdefault(name, []).append(header[1])
        if name in _KNOWN or _may_pass(name):
            forward.append(header)
    if b"connection" in picked:
        named = _named_by_connection(picked[b"connection"])
        forward = [header for header in forward if _plain(header[0]) not in named]
    head = Head(
        method=scope["method"],
        path=scope["raw_path"].decode("latin-1"),
        query=public_query(scope["query_string"].decode("latin-1")),
        http10=scope["http_version"] == "1.0",
        forward=forward,
        credentials=picked.get(b"authorization", []),
        api_keys=picked.get(b"x-api-key", []),
        content_type=_last(picked, b"content-type").lower(),
        content_encoding=_last(picked, b"content-encoding").lower(),
        content_length=_number(_last(picked, b"content-length")),
        chunked=b"transfer-encoding" in picked,
        expects_continue=_last(picked, b"expect").lower() == b"100-continue",
        client_request_id=_client_id(picked),
        colder=_last(picked, b"tenure-class").lower() == b"cold",
        patience_ms=_patience_ms(_last(picked, b"tenure-patience-ms")),
    )
    if head.client_request_id:
        forward.append((b"x-client-request-id", head.client_request_id.encode()))
    return head


# Read by the gateway itself, by their exact names only, never in their `_` forms.
_PICKED: Final = frozenset({
    b"authorization", b"x-api-key", b"connection", b"content-type", b"content-encoding", b"content-length",
    b"transfer-encoding", b"expect", b"x-request-id", b"x-client-request-id", b"tenure-class",
    b"tenure-patience-ms",
})  # fmt: skip


# Most of what comes: that these pass need not be found out for every request.
_KNOWN: Final = frozenset({
    b"accept", b"accept-encoding", b"accept-language", b"content-type", b"user-agent", b"traceparent",
})  # fmt: skip


def _plain(name: bytes) -> bytes:
    return name.replace(b"_", b"-") if b"_" in name else name


def _may_pass(name: bytes) -> bool:
    plain = _plain(name)
    return plain not in NOT_FOR_ENGINES and not plain.startswith((b"tenure-", b"proxy-"))


def _last(picked: dict[bytes, list[bytes]], name: bytes) -> bytes:
    return picked[name][-1].strip() if name in picked else b""


def _number(value: bytes) -> int | None:
    """Read a length that the parser has checked; it may have more zeros in front than Python reads."""
    return int(value.lstrip(b"0") or b"0") if value.isdigit() else None


def _patience_ms(value: bytes) -> int:
    """Return how long the caller would wait in line; anything but a number leaves it to the fleet."""
    return int(value) if value.isdigit() and len(value) <= _PATIENCE_DIGITS_MAX else PATIENCE_MS_MAX


def _client_id(picked: dict[bytes, list[bytes]]) -> str:
    """Return the caller's own id when it is fit to be logged and echoed, else ""."""
    for name in (b"x-request-id", b"x-client-request-id"):
        value = _last(picked, name)
        if _CLIENT_ID.fullmatch(value):
            return value.decode("ascii")
    return ""


def for_client(raw: Iterable[tuple[bytes, bytes]], *, keep_length: bool) -> RawHeaders:
    """Return the engine's headers that the client gets, in order, repeats kept.

    `keep_length` is False where uvicorn would wait for that many bytes of a body that cannot come.
    """
    pairs: Sequence[tuple[bytes, bytes]] = [(name.lower(), value) for name, value in raw]
    named = _named_by_connection(value for name, value in pairs if name == b"connection")
    return [
        (name, value)
        for name, value in pairs
        if name not in NOT_FOR_CLIENTS
        and _plain(name) not in named
        and not name.startswith((b"tenure-", b"proxy-"))
        and (keep_length or name != b"content-length")
        and not _BAD_NAME.search(name)
        and not _BAD_VALUE.search(value)
    ]


def public_query(query: str) -> str:
    """Return the query string without parameters that carry a key; untouched when there are none."""
    if not _SECRET.search(query):
        return query
    left = _SECRET.sub("", query)
    return left if query.startswith("&") else left.removeprefix("&")


def _named_by_connection(values: Iterable[bytes]) -> frozenset[bytes]:
    """Return the header names that `Connection` headers declare to be hop-by-hop."""
    return frozenset(
        token for value in values for part in value.split(b",") if (token := _plain(part.strip().lower()))
    )
