"""What of a head crosses the gateway."""

from typing import Any

import pytest

from services.gateway import headers
from services.gateway.headers import KEPT_NAMES_MAX, fields_for_client, for_client, public_query, read_head


def head_of(*headers: tuple[str, str], query: str = "", method: str = "POST") -> Any:
    return read_head(
        {
            "method": method,
            "raw_path": b"/v1/chat/completions",
            "query_string": query.encode(),
            "http_version": "1.1",
            "headers": [(name.lower().encode(), value.encode("latin-1")) for name, value in headers],
        }
    )


def forwarded(*headers: tuple[str, str]) -> dict[str, str]:
    return {name.decode(): value.decode() for name, value in head_of(*headers).forward}


@pytest.mark.parametrize(
    "name",
    [
        "Authorization", "X-Api-Key", "Host", "Content-Length", "Expect", "Connection", "Keep-Alive", "TE",
        "Trailer", "Transfer-Encoding", "Upgrade", "Proxy-Authorization", "Proxy-Connection", "X-Request-Id",
        "X-Tenant-Id", "X_Tenant_Id", "x-tenant_id", "Tenure-Class", "Tenure-Lease", "X-Conversation-Id",
    ],
)  # fmt: skip
def test_what_belongs_to_one_hop_or_to_us_does_not_reach_the_engine(name: str) -> None:
    """A key at the engine is a key in somebody else's log."""
    assert name.lower() not in forwarded((name, "1"))


def test_a_header_that_connection_names_stays_here() -> None:
    assert forwarded(("Connection", "X-Secret, close"), ("X-Secret", "1"), ("X-Other", "2")) == {
        "x-other": "2"
    }


def test_end_to_end_headers_pass_in_order_with_repeats() -> None:
    head = head_of(("Accept", "a"), ("Cookie", "b=1"), ("Accept", "c"), ("User-Agent", "curl"))
    assert head.forward == [
        (b"accept", b"a"),
        (b"cookie", b"b=1"),
        (b"accept", b"c"),
        (b"user-agent", b"curl"),
    ]


@pytest.mark.parametrize(
    ("sent", "kept"),
    [("job-7", "job-7"), ("x" * 128, "x" * 128), ("x" * 129, ""), ("a\x7fb", ""), ("a\tb", ""), ("é", "")],
)
def test_a_callers_request_id_is_kept_only_when_it_is_short_and_printable(sent: str, kept: str) -> None:
    assert head_of(("X-Request-Id", sent)).client_request_id == kept


@pytest.mark.parametrize(
    ("query", "passed"),
    [
        ("a=1&api_key=SECRET&b=2", "a=1&b=2"),
        ("key=SECRET", ""),
        ("API_KEY=SECRET&x", "x"),
        ("%6bey=SECRET", ""),
        ("a=%20key&b=key", "a=%20key&b=key"),
        ("a=1", "a=1"),
    ],
)
def test_keys_in_the_query_do_not_reach_the_engine(query: str, passed: str) -> None:
    assert public_query(query) == passed


def test_only_cold_can_be_asked_for() -> None:
    """A client may make itself colder, never warmer."""
    assert head_of(("Tenure-Class", "cold")).colder
    assert not head_of(("Tenure-Class", "warm")).colder


def test_a_reply_keeps_its_headers_except_those_of_the_hop() -> None:
    raw = [
        (b"Content-Type", b"text/plain"),
        (b"Connection", b"X-Hop"),
        (b"X-Hop", b"1"),
        (b"Transfer-Encoding", b"chunked"),
        (b"Set-Cookie", b"a=1"),
        (b"Set-Cookie", b"b=2"),
        (b"Proxy-Authenticate", b"Basic"),
        (b"X-Request-Id", b"theirs"),
        (b"Tenure-Lease", b"forged"),
        (b"X-Bad", b"a\x01b"),
    ]
    assert for_client(raw, keep_length=True) == [
        (b"content-type", b"text/plain"),
        (b"set-cookie", b"a=1"),
        (b"set-cookie", b"b=2"),
    ]


def test_a_length_is_dropped_where_no_body_can_follow() -> None:
    assert for_client([(b"Content-Length", b"5")], keep_length=False) == []


@pytest.mark.parametrize("name", [b"X-A b", b"X:A", b"X-A\r\nX-B", b"X-A\n", b"X\x00"])
def test_a_reply_s_header_with_an_impossible_name_is_dropped(name: bytes) -> None:
    """Each time, not only when the name is new."""
    for _ in range(2):
        assert for_client([(name, b"1"), (b"x-good", b"2")], keep_length=True) == [(b"x-good", b"2")]


@pytest.mark.parametrize("value", [b"a\r\nx-evil: 1", b"a\n", b"\r", b"\x00", b"a\x7f"])
def test_a_reply_s_header_whose_value_ends_a_line_is_dropped_alone(value: bytes) -> None:
    raw = [(b"x-first", b"1"), (b"x-good", value), (b"x-good", b"a\tb \xe9")]
    assert for_client(raw, keep_length=True) == [(b"x-first", b"1"), (b"x-good", b"a\tb \xe9")]


def test_what_connection_names_is_dropped_in_any_spelling_and_order() -> None:
    raw = [(b"x_hop", b"1"), (b"Connection", b"close, X-Hop"), (b"X-HOP", b"2"), (b"x-hop-2", b"3")]
    assert for_client(raw, keep_length=True) == [(b"x-hop-2", b"3")]


def test_names_that_callers_invent_are_not_kept_without_end() -> None:
    """And are treated alike, kept or not."""
    names = [f"x-{number}" for number in range(3 * KEPT_NAMES_MAX)] + ["x-" + "long" * 100]
    for name in (*names, "x_tenant_id", "proxy-x", *names):
        passes = name.startswith("x-")
        assert (name in forwarded((name, "1"))) is passes
        assert bool(for_client([(name.encode(), b"1")], keep_length=True)) is (name != "proxy-x")
    for kept in (headers.OF_REQUESTS, headers.OF_REPLIES):
        assert 0 < len(kept) <= KEPT_NAMES_MAX
        assert max(map(len, kept)) <= headers.KEPT_NAME_BYTES_MAX


@pytest.mark.parametrize("status", [200, 204])
@pytest.mark.parametrize("is_stream", [True, False])
def test_the_client_s_head_is_written_from_the_engine_s_also_when_it_is_known(
    status: int, is_stream: bool
) -> None:
    raw = [(b"content-length", b"5"), (b"x-a", b"1"), (b"x-a", b"2"), (b"connection", b"close")]
    for added in ([], [(b"cache-control", b"max-age=1")]) * 2:
        fields = fields_for_client(status, raw + added, is_stream=is_stream)
        lines = [*([b"content-length: 5"] if status == 200 else []), b"x-a: 1", b"x-a: 2"]
        lines += [b"cache-control: max-age=1"] if added else []
        if is_stream:
            lines += [b"x-accel-buffering: no", *([] if added else [b"cache-control: no-cache"])]
        assert fields.lines == b"".join(line + b"\r\n" for line in lines)
        assert fields.has_length is (status == 200)
        assert not fields.closes


def test_heads_that_engines_invent_are_not_kept_without_end() -> None:
    long = b"long" * headers.KEPT_HEAD_BYTES_MAX
    for value in (*(b"%d" % number for number in range(3 * headers.KEPT_HEADS_MAX)), long):
        fields = fields_for_client(200, [(b"x-request", value)], is_stream=False)
        assert fields.lines == b"x-request: %b\r\n" % value
        assert 0 < len(headers.OF_HEADS) <= headers.KEPT_HEADS_MAX
    kept = [value for _, _, raw in headers.OF_HEADS for _, value in raw]
    assert max(map(len, kept)) <= headers.KEPT_HEAD_BYTES_MAX


def test_of_headers_that_speak_to_us_the_last_one_holds() -> None:
    head = head_of(("Content-Length", "7"), ("Content-Length", "0012"), ("Tenure-Patience-Ms", "5"))
    assert (head.content_length, head.patience_ms) == (12, 5)
    head = head_of(("X-Client-Request-Id", "b"), ("X-Request-Id", "a"), ("X-Request-Id", "a\x7f"))
    assert head.client_request_id == "b"
    assert head.forward == [(b"x-client-request-id", b"b")]


def test_a_bare_head_says_nothing() -> None:
    """Nor shares anything with another one."""
    first, second = head_of(), head_of(("Authorization", "Bearer k"), ("X-Api-Key", "k"), ("Accept", "*"))
    assert (first.forward, first.credentials, first.api_keys) == ([], [], [])
    assert (first.content_length, first.has_body, first.colder) == (None, False, False)
    assert (second.credentials, second.api_keys) == ([b"Bearer k"], [b"k"])
