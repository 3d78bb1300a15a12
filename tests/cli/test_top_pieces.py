"""What `tenure top` does with keys and sizes, without a terminal."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from rich.cells import cell_len

from services.cli.top.frame import ALL_ROWS, Page, frame
from services.cli.top.keys import Keys
from services.cli.top.parts import Signs, span
from services.cli.top.snapshot import Snapshot
from services.cli.top.view import Quit, Reread, Revoke, View
from services.permits.model import LeaseRow, WaiterRow


def lease(number: int, tenant: str = "acme") -> LeaseRow:
    return LeaseRow(
        lease=f"g1~0a1b2c3d~{number:032x}",
        request_id=f"{number:032x}",
        tenant=tenant,
        class_="cold",
        engine="e1",
        holder="g1~0a1b2c3d",
        phase="decode",
        acquired_at=1_700_000_000_000,
        age_ms=100_000 - number,
        expires_in_ms=9_000,
    )


def waiter(number: int, tenant: str) -> WaiterRow:
    return WaiterRow(f"g2~x~{number}", str(number), tenant, "warm", "g2~x", 1_000, 4_000)


def pool(limit: int, in_use: int) -> dict[str, int]:
    return {"limit": limit, "in_use": in_use}


def snapshot(leases: int = 3, waiters: int = 2, events: int = 2, engines: int = 2) -> Snapshot:
    state: dict[str, Any] = {
        "fleet": "demo",
        "learning_ms": 4_200,
        "over_commit": 1,
        "gateways": 2,
        "waiting": waiters,
        "shadow": ["cold"],
        "pools": {
            "total": pool(0, leases),
            "cold": pool(2, 2),
            "tenants": {
                "acme": {**pool(4, leases), "waiting": waiters},
                "a-tenant-with-quite-a-long-name-as-they-come": {**pool(9, 0), "waiting": 0},
            },
            "engines": {f"engine-{n}.example:8000": pool(8, n) for n in range(engines)},
        },
    }
    return Snapshot(
        at=datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
        fleets=("demo", "other"),
        state=state,
        leases=tuple(lease(n) for n in range(leases)),
        line=tuple(waiter(n, "acme") for n in range(waiters)),
        recent=tuple(
            {
                "id": f"{n}-0",
                "at": n,
                "fleet": "demo",
                "kind": "reclaimed",
                "lease": "g9~dead~1",
                "tenant": "",
            }
            for n in range(events)
        ),
    )


@pytest.mark.parametrize("signs", [Signs(), Signs.ascii()])
def test_every_size_of_window_is_filled_and_never_exceeded(signs: Signs) -> None:
    """A phone over SSH is no reason to crash."""
    shots = (snapshot(), snapshot(0, 0, 0, 0), snapshot(500, 200, 50, 40))
    for shot in shots:
        for width in (1, 2, 10, 23, 40, 80, 81, 200):
            for height in (1, 2, 3, 5, 8, 12, 24, 60):
                for view in (View(), View(tenant="ac"), View(mode="confirm", selected=lease(1).lease)):
                    lines = frame(shot, view, Page(width, height, signs))
                    assert len(lines) == height
                    assert max(cell_len(line.plain) for line in lines) <= width


def test_at_80_by_24_all_blocks_are_there_whatever_there_is() -> None:
    text = "\n".join(line.plain for line in frame(snapshot(500, 200, 50, 40), View(), Page(80, 24, Signs())))
    for word in ("total ", "TENANTS 2", "and 33 more", "LINE 4 of 200", "LEASES", "RECENT", "q quit"):
        assert word in text


def test_what_is_not_shown_is_counted() -> None:
    text = "\n".join(line.plain for line in frame(snapshot(500), View(), Page(80, 24, Signs())))
    assert "of 500" in text
    whole = frame(snapshot(500), View(), Page(80, ALL_ROWS, Signs()))
    assert "LEASES, oldest first: 500" in "\n".join(line.plain for line in whole)


def test_the_selected_lease_stays_on_the_screen() -> None:
    view = View(selected=lease(333).lease)
    text = [line.plain for line in frame(snapshot(500), view, Page(80, 24, Signs()))]
    assert any(line.startswith("▶") and f"{333:x}" in line for line in text)


@pytest.mark.parametrize(
    ("ms", "text"), [(-5, "0.0s"), (59_940, "59.9s"), (61_000, "1m01s"), (3_600_000, "1h00m")]
)
def test_times_are_short(ms: int, text: str) -> None:
    assert span(ms) == text


@pytest.mark.parametrize(
    ("reads", "keys"),
    [
        ([b"q"], ["q"]),
        ([b"\x1b[A\x1b[B"], ["up", "down"]),
        ([b"\x1b", b"[", b"A"], ["up"]),
        ([b"\x1bOB"], ["down"]),
        ([b"\x1b[15~", b"\x1b[1;5A", b"r"], ["r"]),
        ([b"ab\x7f\r"], ["a", "b", "backspace", "enter"]),
        ([b"\xc3\xa9\x00x"], ["x"]),
        ([b"\x1bx"], ["escape", "x"]),
    ],
)
def test_bytes_become_keys_also_when_they_come_in_pieces(reads: list[bytes], keys: list[str]) -> None:
    reader = Keys()
    assert [key for data in reads for key in reader.feed(data)] == keys
    assert not reader.pending


def test_a_lone_escape_is_one_once_nothing_follows() -> None:
    keys = Keys()
    assert keys.feed(b"\x1b") == []
    assert keys.pending
    assert keys.feed(b"", more=False) == ["escape"]


def press(view: View, keys: list[str], shot: Snapshot) -> Any:
    return [view.press(key, shot) for key in keys][-1]


def test_a_lease_is_revoked_only_after_a_yes() -> None:
    shot, view = snapshot(), View(fleet="demo")
    assert press(view, ["r"], shot) is None
    assert view.mode == "browse"
    assert press(view, ["down", "down", "r", "n"], shot) is None
    assert press(view, ["r", "enter"], shot) is None
    assert press(view, ["r", "y"], shot) == Revoke(lease(1).lease)
    assert view.mode == "browse"


def test_a_late_yes_does_not_hit_the_neighbour() -> None:
    """The lease ended by itself while the person was thinking."""
    shot, view = snapshot(), View(fleet="demo")
    press(view, ["down", "r"], shot)
    view.settle(replace(shot, leases=shot.leases[1:]))
    assert view.mode == "browse"
    assert "has ended by itself" in view.note
    assert press(view, ["y"], shot) is None


def test_a_selection_stays_on_its_lease_and_passes_on_when_that_ends() -> None:
    shot, view = snapshot(), View(fleet="demo")
    press(view, ["down", "down"], shot)
    view.settle(replace(shot, leases=shot.leases[1:]))
    assert view.selected == lease(1).lease
    view.settle(replace(shot, leases=(lease(0), lease(2))))
    assert view.selected == lease(0).lease
    view.settle(replace(shot, leases=()))
    assert view.selected is None


def test_fleets_go_round_and_a_filter_can_be_left() -> None:
    shot, view = snapshot(), View(fleet="demo")
    assert press(view, ["f"], shot) == Reread()
    assert view.fleet == "other"
    press(view, ["f"], shot)
    assert view.fleet == "demo"
    assert press(view, ["t", "x", "q", "backspace", "escape"], shot) is None
    assert view.tenant == ""
    assert press(view, ["t", "q", "enter"], shot) == Reread()
    assert view.tenant == "q"
    assert view.leases(shot) == []
    assert press(view, ["escape"], shot) == Reread()
    assert len(view.leases(shot)) == 3
    assert press(view, ["t", "quit"], shot) == Quit()
    assert press(View(), ["q"], shot) == Quit()
