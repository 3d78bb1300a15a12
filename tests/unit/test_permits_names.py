"""Names that could reach a Redis key, and replies that no header promises, are refused."""

from __future__ import annotations

from typing import Any

import pytest

from services.permits.connect import connect
from services.permits.errors import BadName, BadReply, Refused, Unusable
from services.permits.model import Full, Granted, Stamp
from services.permits.names import check_name
from services.permits.replies import lease_row, read

BAD = ["", "*", "a}:b", "{a}", "a b", "a\n", "\n", "a\0", "ä", "a/b", "a:b", "a~b", "x" * 65, "x" * 65536]


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("kind", ["tenant", "fleet", "engine", "gateway"])
def test_a_name_that_could_change_a_key_is_refused_with_the_rule(kind: Any, name: str) -> None:
    with pytest.raises(BadName, match="1-64 characters") as refused:
        check_name(kind, name)
    assert len(str(refused.value)) < 400
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", ["total", "cold", "tenant", "engine", "default", "tenant_default"])
def test_a_tenant_is_not_called_like_a_pool(name: str) -> None:
    with pytest.raises(BadName, match="name of a pool"):
        check_name("tenant", name)
    assert check_name("fleet", name) == name


@pytest.mark.parametrize("name", ["a", "acme", "A.b_c-9", "x" * 64])
def test_a_plain_name_is_returned_as_it_is(name: str) -> None:
    assert check_name("tenant", name) == name


@pytest.mark.parametrize("reply", [None, [], "GRANTED", ["NEVER", "e", 1], [b"GRANTED"], 7])
def test_a_reply_that_no_header_promises_is_a_defect(reply: Any) -> None:
    with pytest.raises(BadReply, match="acquire: unexpected reply"):
        read("acquire", reply)


def test_replies_become_values() -> None:
    assert read("acquire", ["GRANTED", "e", 3, "warm", "e1"]) == Granted("warm", "e1", Stamp("e", 3))
    assert read("acquire", ["FULL", "e", 3, "cold", 2, 2]) == Full("cold", 2, 2, Stamp("e", 3))


def test_a_long_reply_is_shown_shortened() -> None:
    with pytest.raises(BadReply) as shown:
        read("tick", ["X" * 10_000])
    assert len(str(shown.value)) < 300


def test_a_line_of_inspect_with_unknown_facts_is_read() -> None:
    unknown = "request_id=? tenant=? class=? engine=? holder=? phase=? acquired_at=?"
    row = lease_row(f"lease=a {unknown} age_ms=0 expires_in_ms=5")
    assert (row.lease, row.acquired_at, row.expires_in_ms) == ("a", 0, 5)


def test_a_refusal_says_its_figures() -> None:
    refused = Refused("cold_pool_full", pool="cold", in_use=2, limit=2)
    assert str(refused) == "cold_pool_full: pool cold is at 2 of 2"


@pytest.mark.parametrize("url", ["http://x", "redis+sentinel://a:1", "", "127.0.0.1:6379"])
def test_an_address_that_is_no_redis_is_refused(url: str) -> None:
    with pytest.raises(Unusable, match=r"^redis\.url: .* write for example redis"):
        _ = connect(url)
