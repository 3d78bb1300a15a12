"""drain: one gateway is told, by a message and by each of its ticks, until it is gone."""

from __future__ import annotations

from tests.lua.fleet import HOLDER, RawFleet

CUT_COUNT, CUT = 7, slice(9, 11)  # where the reply of a tick has them


def drain(fleet: RawFleet, holder: str = HOLDER) -> list[object]:
    return fleet.run("drain", args={"holder": holder, "who": "ann"})


def test_the_next_tick_says_so_to_that_gateway_alone_and_says_it_again(fleet: RawFleet) -> None:
    fleet.tick()
    fleet.tick(holder="g2~b1")
    assert drain(fleet)[0] == "DRAINING"
    for _ in range(2):
        reply = fleet.tick()
        assert (reply[CUT_COUNT], reply[CUT]) == (1, ["*", "drain"])
    assert fleet.tick(holder="g2~b1")[CUT_COUNT] == 0


def test_it_is_told_by_a_message_each_time_and_recorded_once(fleet: RawFleet) -> None:
    fleet.tick()
    with fleet.client.pubsub() as hears:
        hears.ssubscribe(fleet.keys.wake(HOLDER))
        assert [drain(fleet)[3], drain(fleet)[3]] == [1, 0]
        heard = [hears.get_message(timeout=1) for _ in range(3)]
    assert [message["data"] for message in heard[1:]] == [f"{fleet.meta('epoch')}\n* 0 cut drain"] * 2
    assert fleet.events("drain") == [
        {
            "kind": "drain",
            "who": "ann",
            "holder": HOLDER,
            "field": "state",
            "old": "serving",
            "new": "draining",
        }
    ]


def test_a_gateway_without_a_session_cannot_be_told(fleet: RawFleet) -> None:
    assert drain(fleet)[0] == "UNKNOWN"
    fleet.tick()
    fleet.advance(3 * fleet.times.tick_ms + 1)
    assert drain(fleet)[0] == "UNKNOWN"
    assert fleet.events("drain") == []
    assert not fleet.client.exists(fleet.keys.draining)


def test_a_gateway_that_is_gone_is_forgotten_by_the_tick_of_another(fleet: RawFleet) -> None:
    fleet.tick()
    drain(fleet)
    fleet.advance(3 * fleet.times.tick_ms + 1)
    fleet.tick(holder="g2~b1")
    assert not fleet.client.exists(fleet.keys.draining)
