"""What of a request's and a reply's head crosses the gateway, decided in one pass each.

Names are compared with `_` read as `-`, because many servers read `X_Tenant_Id` as `X-Tenant-Id`.
"""

import re
from collections.abc import Callable, Iterable
from typing import Final, Self, TypeVar

import msgspec
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
_OURS_OR_HOPS: Final = (b"tenure-", b"proxy-")
SECRET_PARAMETERS: Final = ("api_key", "api-key", "key")

# More than any budget may be: without a wish of the caller the fleet's own patience holds.
PATIENCE_MS_MAX: Final = 86_400_000
_PATIENCE_DIGITS_MAX: Final = 9
# Names of headers of which it is remembered what is done with them, for requests and for replies.
KEPT_NAMES_MAX: Final = 256
KEPT_NAME_BYTES_MAX: Final = 64
# Whole heads of replies that are kept as they are written: an engine's differ by little, as by the second.
KEPT_HEADS_MAX: Final = 64
KEPT_HEAD_BYTES_MAX: Final = 4 * 1024
# Their Content-Length speaks of a body that is not sent.
BODILESS: Final = frozenset({204, 304})

K = TypeVar("K")
T = TypeVar("T")


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


class Head(msgspec.Struct):
    """One request's head as the gateway needs it. `forward` is what the engine will get."""

    method: str
    path: str
    query: str
    forward: RawHeaders
    credentials: list[bytes] = []
    api_keys: list[bytes] = []
    content_type: bytes = b""
    content_encoding: bytes = b""
    content_length: int | None = None
    chunked: bool = False
    client_request_id: str = ""
    colder: bool = False
    patience_ms: int = PATIENCE_MS_MAX

    @property
    def has_body(self) -> bool:
        """Whether bytes of a body follow the head."""
        return self.chunked or bool(self.content_length)


def read_head(scope: Scope) -> Head:
    """Take a request's head apart; `scope` is one HTTP request as uvicorn hands it over."""
    forward: RawHeaders = []
    query = scope["query_string"]
    head = Head(
        scope["method"],
        scope["raw_path"].decode("latin-1"),
        public_query(query.decode("latin-1")) if query else "",
        forward,
    )
    headers: RawHeaders = scope["headers"]
    is_rare = False
    for header in headers:
        name, value = header
        read, passes = OF_REQUESTS[name]
        if passes:
            forward.append(header)
        if read is _read_later:
            is_rare = True
        elif read is not None:
            read(head, value)
    if is_rare:
        _read_rest(head, headers)
    return head


# What the gateway reads itself, by exact names only, never in their `_` forms. Of repeats the last one holds.


def _read_content_type(head: Head, value: bytes) -> None:
    head.content_type = value.strip().lower()


def _read_content_encoding(head: Head, value: bytes) -> None:
    head.content_encoding = value.strip().lower()


def _read_content_length(head: Head, value: bytes) -> None:
    """Read a length that the parser has checked; it may have more zeros in front than Python reads."""
    value = value.strip()
    head.content_length = int(value.lstrip(b"0") or b"0") if value.isdigit() else None


def _read_transfer_encoding(head: Head, value: bytes) -> None:
    del value
    head.chunked = True


def _read_class(head: Head, value: bytes) -> None:
    head.colder = value.strip().lower() == b"cold"


def _read_patience(head: Head, value: bytes) -> None:
    """Read how long the caller would wait in line; anything but a number leaves it to the fleet."""
    value = value.strip()
    is_fit = value.isdigit() and len(value) <= _PATIENCE_DIGITS_MAX
    head.patience_ms = int(value) if is_fit else PATIENCE_MS_MAX


def _read_later(head: Head, value: bytes) -> None:
    """Stand for what says something about other headers, or is one of two that say the same."""


_Read = Callable[[Head, bytes], None]
_READ: Final[dict[bytes, _Read]] = {
    b"authorization": lambda head, value: head.credentials.append(value),
    b"x-api-key": lambda head, value: head.api_keys.append(value),
    b"content-type": _read_content_type,
    b"content-encoding": _read_content_encoding,
    b"content-length": _read_content_length,
    b"transfer-encoding": _read_transfer_encoding,
    b"tenure-class": _read_class,
    b"tenure-patience-ms": _read_patience,
    b"connection": _read_later,
    b"x-request-id": _read_later,
    b"x-client-request-id": _read_later,
}


def _read_rest(head: Head, headers: RawHeaders) -> None:
    named = _named_by_connection(value for name, value in headers if name == b"connection")
    if named:
        head.forward = [header for header in head.forward if _plain(header[0]) not in named]
    head.client_request_id = _client_id(dict(headers))
    if head.client_request_id:
        head.forward.append((b"x-client-request-id", head.client_request_id.encode()))


def _client_id(last: dict[bytes, bytes]) -> str:
    """Return the caller's own id when it is fit to be logged and echoed, else ""."""
    for name in (b"x-request-id", b"x-client-request-id"):
        value = last.get(name, b"").strip()
        if _CLIENT_ID.fullmatch(value):
            return value.decode("ascii")
    return ""


class _Decisions(dict[K, T]):
    """What is done with a header or a head, decided once for each and not for each request: they repeat.

    Whoever invents some makes no more than `most` of them be kept, and none of a size above `size_max`.
    """

    def __init__(
        self, decide: Callable[[K], T], *, size: Callable[[K], int], size_max: int, most: int
    ) -> None:
        """`decide` is a function of what is decided about alone."""
        super().__init__()
        self._decide = decide
        self._size = size
        self._size_max = size_max
        self._most = most

    def __missing__(self, about: K) -> T:
        """Decide."""
        decision = self._decide(about)
        if self._size(about) <= self._size_max:
            if len(self) >= self._most:
                self.clear()
            self[about] = decision
        return decision


def _plain(name: bytes) -> bytes:
    return name.replace(b"_", b"-")


def _of_request(name: bytes) -> tuple[_Read | None, bool]:
    """Return how a header of a request is read, and whether it passes to the engine."""
    plain = _plain(name)
    return _READ.get(name), plain not in NOT_FOR_ENGINES and not plain.startswith(_OURS_OR_HOPS)


def _of_reply(name: bytes) -> tuple[bytes, bool]:
    """Return the name of an engine's header as we write it, and whether it may pass to the client."""
    name = name.lower()
    is_kept = name not in NOT_FOR_CLIENTS and not name.startswith(_OURS_OR_HOPS)
    return name, is_kept and not _BAD_NAME.search(name)


OF_REQUESTS: Final = _Decisions(_of_request, size=len, size_max=KEPT_NAME_BYTES_MAX, most=KEPT_NAMES_MAX)
OF_REPLIES: Final = _Decisions(_of_reply, size=len, size_max=KEPT_NAME_BYTES_MAX, most=KEPT_NAMES_MAX)


def for_client(raw: Iterable[tuple[bytes, bytes]], *, keep_length: bool) -> RawHeaders:
    """Return the engine's headers that the client gets, in order, repeats kept.

    All of them are fit to be written: nothing in them ends a line. `keep_length` is False where a server
    would wait for that many bytes of a body that cannot come.
    """
    headers: RawHeaders = []
    hops: list[bytes] = []
    for sent_name, value in raw:
        name, passes = OF_REPLIES[sent_name]
        if passes:
            headers.append((name, value))
        elif name == b"connection":
            hops.append(value)
    if hops:
        named = _named_by_connection(hops)
        headers = [header for header in headers if _plain(header[0]) not in named]
    if not keep_length:
        headers = [header for header in headers if header[0] != b"content-length"]
    # One search for all: hardly any engine sends such a value.
    if _BAD_VALUE.search(b"".join([value for _, value in headers])):
        headers = [header for header in headers if not _BAD_VALUE.search(header[1])]
    return headers


class Fields(msgspec.Struct, frozen=True):
    """Headers of a reply as they are written, and what of them decides how its body is framed.

    lines       each with its line's end
    has_length  whether there is a Content-Length
    closes      whether they say that the connection ends with the reply
    """

    lines: bytes
    has_length: bool = False
    closes: bool = False

    @classmethod
    def of(cls, headers: RawHeaders) -> Self:
        """Write headers. Names are in lower case, and both names and values fit: nothing is checked here."""
        last = dict(headers)
        lines = b"".join([b"%b: %b\r\n" % header for header in headers])
        return cls(lines, b"content-length" in last, last.get(b"connection") == b"close")


def fields_for_client(status: int, raw: RawHeaders, *, is_stream: bool) -> Fields:
    """Return what the client gets of an engine's head, and what a stream of events needs besides."""
    return OF_HEADS[status, is_stream, tuple(raw)]


_ReplyHead = tuple[int, bool, tuple[tuple[bytes, bytes], ...]]


def _of_head(head: _ReplyHead) -> Fields:
    status, is_stream, raw = head
    headers = for_client(raw, keep_length=status not in BODILESS)
    if is_stream:
        # Whoever stands between us and the client must not gather a stream.
        names = {name for name, _ in headers}
        headers += [header for header in _OF_STREAMS if header[0] not in names]
    return Fields.of(headers)


def _bytes_of(head: _ReplyHead) -> int:
    return sum([len(name) + len(value) for name, value in head[2]])


_OF_STREAMS: Final = ((b"x-accel-buffering", b"no"), (b"cache-control", b"no-cache"))
OF_HEADS: Final = _Decisions(_of_head, size=_bytes_of, size_max=KEPT_HEAD_BYTES_MAX, most=KEPT_HEADS_MAX)


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
