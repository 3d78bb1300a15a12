"""seed_keys: hashes of callers' keys from a file or from a gateway's memory; a revoked key stays revoked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.lua.fleet import RawFleet

KEYS = "tenure:keys"


@pytest.fixture
def book(new_fleet: RawFleet) -> Book:
    return Book(new_fleet)


class Book:
    """The key hashes of one Redis."""

    def __init__(self, fleet: RawFleet) -> None:
        self.fleet = fleet
        self.client = fleet.client

    def seed(self, hashes: Mapping[str, str], revision: int = 0) -> list[Any]:
        words = [word for pair in hashes.items() for word in pair]
        return self.fleet.run("seed_keys", *words, keys={"keys": KEYS}, args={"revision": revision})

    def tenants(self) -> dict[str, str]:
        found = self.client.hgetall(KEYS)
        return {key: tenant for key, tenant in found.items() if not key.startswith("#")}

    def revoke(self, key: str) -> None:
        """Do what an admin call does."""
        self.client.hset(KEYS, key, "")
        self.client.hincrby(KEYS, "#revision", 1)


def test_a_file_adds_what_is_not_there(book: Book) -> None:
    assert book.seed({"aa": "acme", "bb": "other"}) == ["KEYED", "epoch1", 0, 2]
    assert book.seed({"aa": "stolen", "cc": "acme"}) == ["KEYED", "epoch1", 0, 1]
    assert book.tenants() == {"aa": "acme", "bb": "other", "cc": "acme"}


def test_an_older_file_does_not_bring_a_revoked_key_back(book: Book) -> None:
    book.seed({"aa": "acme"})
    book.revoke("aa")
    book.seed({"aa": "acme"})
    assert book.tenants() == {"aa": ""}


@pytest.mark.parametrize("file_first", [True, False])
def test_after_a_loss_a_memory_beats_the_file_whichever_comes_first(book: Book, file_first: bool) -> None:
    memory, file = {"aa": "", "bb": "other"}, {"aa": "acme", "cc": "acme"}
    steps = [lambda: book.seed(file), lambda: book.seed(memory, revision=3)]
    for step in steps if file_first else reversed(steps):
        step()
    assert book.tenants() == {"aa": "", "bb": "other", "cc": "acme"}
    assert book.client.hget(KEYS, "#revision") == "3"


def test_of_two_memories_the_newer_one_holds(book: Book) -> None:
    book.seed({"aa": "", "bb": "new"}, revision=4)
    assert book.seed({"aa": "acme", "bb": "old", "cc": "acme"}, revision=3)[2:] == [4, 1]
    assert book.tenants() == {"aa": "", "bb": "new", "cc": "acme"}


@pytest.mark.parametrize("file_first", [True, False])
def test_a_key_revoked_by_hand_stays_revoked_after_a_loss(book: Book, file_first: bool) -> None:
    """`HSET tenure:keys HASH ''` at 3 a.m., no revision counted."""
    steps = [lambda: book.seed({"aa": "acme"}), lambda: book.seed({"aa": ""}, revision=0)]
    for step in steps if file_first else reversed(steps):
        step()
    assert book.tenants() == {"aa": ""}


def test_an_older_memory_does_not_revoke_what_a_newer_one_gave(book: Book) -> None:
    book.seed({"aa": "acme"}, revision=4)
    book.seed({"aa": ""}, revision=3)
    assert book.tenants() == {"aa": "acme"}


def test_nothing_to_seed_still_names_the_epoch(book: Book) -> None:
    assert book.seed({}) == ["KEYED", "epoch1", 0, 0]
    assert book.seed({})[1] == "epoch1"
