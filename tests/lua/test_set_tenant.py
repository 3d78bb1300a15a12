"""set_tenant: who exists, and what of a removed tenant stays so that nothing brings it back."""

from __future__ import annotations

import pytest

from tests.lua.fleet import RawFleet
from tests.lua.people import RawPeople

A, B = "a" * 64, "b" * 64


@pytest.fixture
def people(fleet: RawFleet) -> RawPeople:
    return RawPeople(fleet)


def test_a_tenant_is_added_once_and_the_revision_tells(people: RawPeople) -> None:
    epoch = people.set_tenant("acme")[1]
    assert people.set_tenant("acme") == ["KEYED", epoch, 1, 0]
    assert people.tenants() == {"acme"}
    assert people.changes() == [("tenant_added", "acme", "tenant", "", "acme")]


def test_a_removed_tenant_leaves_its_keys_as_empty_values(people: RawPeople) -> None:
    for tenant, digest in (("acme", A), ("zeta", B)):
        people.set_tenant(tenant)
        people.set_key(tenant, digest, "wxyz")
    reply = people.set_tenant("acme", "remove")
    assert (reply[0], reply[2:]) == ("KEYED", [5, 2])
    facts = people.facts()
    assert (facts[A], facts[B], facts["#tenant:acme"]) == ("", "zeta", "")
    assert people.tenants() == {"zeta"}
    assert people.changes()[-2:] == [
        ("key_revoked", "acme", f"key:{A[:12]}", "acme", ""),
        ("tenant_removed", "acme", "tenant", "acme", ""),
    ]


def test_removing_one_that_is_not_there_changes_nothing(people: RawPeople) -> None:
    people.set_tenant("acme")
    people.set_tenant("acme", "remove")
    before = people.facts()
    reply = people.set_tenant("acme", "remove")
    assert (reply[0], reply[2:]) == ("UNKNOWN", [2])
    assert people.facts() == before
    assert len(people.changes()) == 2


def test_a_removed_tenant_may_come_back_without_its_keys(people: RawPeople) -> None:
    people.set_tenant("acme")
    people.set_key("acme", A, "wxyz")
    people.set_tenant("acme", "remove")
    people.set_tenant("acme")
    assert people.tenants() == {"acme"}
    assert people.facts()["#tenant:acme"] != ""
    assert people.facts()[A] == ""
