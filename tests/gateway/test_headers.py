"""What of a head crosses the gateway."""

from typing import Any

import pytest

from services.gateway.headers import for_client, public_query, read_head


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
