"""The outbox: what waits for Redis, in batches, bounded, nothing lost while there is room."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from services.permits import outbox
from services.permits.clock import monotonic
from services.permits.outbox import Downgrade, Evidence, Outbox, Release
from tests.permits.keeper import Keeps, permit

if TYPE_CHECKING:
    from services.permits.outbox import Entry


def release(number: int) -> Release:
    return Release(permit(number), monotonic())


def downgrade(number: int) -> Downgrade:
    return Downgrade(permit(number), monotonic())


def evidence(engine: str, **prefixes: bool) -> Evidence:
    return Evidence(engine, prefixes, monotonic())


def filled(*entries: Entry) -> Outbox:
    box = Outbox("f", lambda: None)
    for entry in entries:
        box.append(entry)
    return box


def all_runs(box: Outbox, most: int = 200) -> list[list[Entry]]:
    runs = []
    while run := box.take_run(most):
        runs.append(run)
    return runs


def test_what_is_of_one_kind_goes_in_one_call_oldest_first() -> None:
    entries: list[Entry] = []
    for n in range(5):
        entries += [downgrade(n), evidence("e1", **{f"p{n}": True}), release(n)]
    runs = all_runs(filled(*entries))
    assert [type(run[0]) for run in runs] == [Release, Downgrade, Evidence]
    assert [len(run) for run in runs] == [5, 5, 5]
    assert runs[0] == [entry for entry in entries if isinstance(entry, Release)]


def test_a_call_carries_so_many_at_most() -> None:
    runs = all_runs(filled(*(release(n) for n in range(5))), most=2)
    assert [len(run) for run in runs] == [2, 2, 1]


def test_evidence_is_for_one_engine_and_bounded_in_prefixes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "PREFIXES_MAX", 3)
    box = filled(
        evidence("e1", a=True, b=True),
        evidence("e1", c=True),
        evidence("e1", d=True),
        evidence("e2", a=False),
        evidence("e2", **{f"p{n}": True for n in range(9)}),
    )
    assert [
        [len(entry.prefixes) for entry in run if isinstance(entry, Evidence)] for run in all_runs(box)
    ] == [
        [2, 1],
        [1],
        [1],
        [9],
    ]


def test_what_was_not_acknowledged_comes_first_the_next_time() -> None:
    box = filled(release(1), release(2), release(3))
    run = box.take_run(2)
    box.append(release(4))
    box.put_back(run)
    ids = [entry.permit.id for entry in box.take_run(9) if isinstance(entry, Release)]
    assert ids == [f"g1~a1~{n}" for n in (1, 2, 3, 4)]


def test_the_reader_is_woken_by_the_first_entry_only() -> None:
    woken: list[int] = []
    box = Outbox("f", lambda: woken.append(1))
    box.append(release(1))
    box.append(release(2))
    assert len(woken) == 1
    box.take_run(9)
    box.append(release(3))
    assert len(woken) == 2


def test_evidence_can_be_forgotten_and_the_rest_stays() -> None:
    box = filled(evidence("e1", a=True), release(1), evidence("e2", a=True), downgrade(1))
    box.drop_evidence()
    assert len(box) == 2
    assert [type(run[0]) for run in all_runs(box)] == [Release, Downgrade]
    assert (len(box), box.age_s()) == (0, 0.0)


def test_an_overflow_forgets_the_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "ENTRIES_MAX", 3)
    box = filled(downgrade(1), release(2), release(3), release(4))
    assert len(box) == 3
    run = box.take_run(2)
    for n in (5, 6):
        box.append(release(n))
    box.put_back(run)
    assert len(box) == 3
    left = [entry.permit.id for each in all_runs(box) for entry in each if isinstance(entry, Release)]
    assert left == ["g1~a1~4", "g1~a1~5", "g1~a1~6"]


def test_the_age_is_that_of_the_oldest_entry() -> None:
    box = Outbox("f", lambda: None)
    assert box.age_s() == 0
    box.append(Release(permit(1), monotonic() - 5))
    box.append(Evidence("e1", {}, monotonic() - 9))
    box.append(release(2))
    assert 9 <= box.age_s() < 20


def test_a_permit_closes_and_downgrades_once_whatever_is_called() -> None:
    keeper = Keeps()
    made = permit(1, keeper=keeper)
    made.downgrade()
    made.downgrade()
    made.close()
    made.close()
    made.downgrade()
    assert keeper.seen == ["downgraded g1~a1~1", "freed g1~a1~1"]


def test_a_permit_that_moved_is_released_from_every_engine_it_was_on() -> None:
    made = permit(1)
    made.moved("e2")
    made.moved("e2")
    assert made.engine == "e2"
    assert [gone.engine for gone in made.gone()] == ["e2", "e1"]
