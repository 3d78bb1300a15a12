"""set_key: a key given and revoked, known by its hash and by nothing else."""

from __future__ import annotations

import pytest

from tests.lua.fleet import RawFleet
from tests.lua.people import SHARED, RawPeople

A, B = "a" * 64, "ab" * 32


@pytest.fixture
def people(fleet: RawFleet) -> RawPeople:
    people = RawPeople(fleet)
    people.set_tenant("acme")
    return people


def test_a_key_is_given_once_and_what_people_see_of_it_is_noted(people: RawPeople) -> None:
    assert people.set_key("acme", A, "wxyz")[2:] == [2, 1]
    assert people.set_key("acme", A, "wxyz")[2:] == [2, 0]
    facts = people.facts()
    assert facts[A] == "acme"
    created_at, last4 = facts[f"#key:{A[:12]}"].split(" ")
    assert (len(created_at), last4) == (13, "wxyz")
    assert people.changes()[1:] == [("key_added", "acme", f"key:{A[:12]}", "", "acme")]


def test_a_tenant_that_does_not_exist_gets_no_key(people: RawPeople) -> None:
    before = people.facts()
    assert people.set_key("nobody", A, "wxyz")[0] == "UNKNOWN"
    assert people.facts() == before


def test_a_revoked_key_stays_as_an_empty_value(people: RawPeople) -> None:
    people.set_key("acme", A, "wxyz")
    assert people.set_key("acme", A[:12])[2:] == [3, 1]
    assert people.facts()[A] == ""
    assert people.set_key("acme", A[:12])[0] == "UNKNOWN"
    assert people.changes()[-1] == ("key_revoked", "acme", f"key:{A[:12]}", "acme", "")


def test_a_key_that_a_file_brought_is_revoked_like_any_other(people: RawPeople) -> None:
    people.client.hset(SHARED.keys, A, "acme")
    assert people.set_key("acme", A[:12])[0] == "KEYED"
    assert people.facts()[A] == ""


def test_only_the_whole_id_of_an_own_key_revokes_it(people: RawPeople) -> None:
    people.set_tenant("zeta")
    people.set_key("acme", A, "wxyz")
    people.set_key("acme", B, "wxyz")
    for tenant, digest in (("zeta", A[:12]), ("acme", A[:11]), ("acme", "a"), ("acme", "#tenant:acme")):
        assert people.set_key(tenant, digest)[0] == "UNKNOWN"
    assert (people.facts()[A], people.facts()[B]) == ("acme", "acme")
