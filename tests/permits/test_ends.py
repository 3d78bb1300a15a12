"""Why requests ended: told with the next tick, kept while Redis is away, and bounded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from services.permits import lane
from services.permits.admin import Admin
from services.permits.keys import FleetKeys
from tests.permits.scene import a_gate, a_store, begin, demand
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    import pytest

    from services.permits import Gate
    from tests.permits.scene import Seen
    from tests.support.redis_shim import RedisShim

ENDS = FleetKeys("tenure", "f").ends


def told(seen: Seen) -> list[tuple[str, str]]:
    return [(fields["lease"], fields["reason"]) for _, fields in seen.client.xrange(ENDS)]


async def end(gate: Gate, reason: str) -> tuple[str, str]:
    async with gate.hold(demand()) as permit:
        pass
    gate.ended(permit, reason)
    return permit.id, reason


async def test_an_end_is_seen_with_the_next_tick_or_when_the_process_stops(
    redis_url: str, seen: Seen
) -> None:
    await begin(redis_url)
    async with a_gate(redis_url) as gate:
        ends = [await end(gate, "completed"), await end(gate, "revoked")]
        await wait_until(lambda: told(seen) == ends, "both ends are told")
        ends.append(await end(gate, "shutdown"))
    assert told(seen) == ends


async def test_ends_of_an_outage_are_told_when_it_is_over(shim: RedisShim, seen: Seen) -> None:
    await begin(shim.url)
    async with a_gate(shim.url) as gate:
        shim.refuse()
        ends = [await end(gate, "completed") for _ in range(5)]
        shim.healthy()
        await wait_until(lambda: told(seen) == ends, "the ends of the outage are told")


async def test_of_too_many_the_oldest_are_forgotten(
    shim: RedisShim, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lane, "ENDS_MAX", 20)
    monkeypatch.setattr(lane, "ENDS_PER_CALL_MAX", 7)
    await begin(shim.url)
    async with a_gate(shim.url) as gate:
        shim.refuse()
        ends = [await end(gate, f"end {number}") for number in range(45)]
        shim.healthy()
        await wait_until(lambda: told(seen)[-1:] == ends[-1:], "the newest is told")
    assert told(seen) == ends[-20:]


async def test_people_may_look_at_changes_alone(redis_url: str) -> None:
    await begin(redis_url)
    async with a_gate(redis_url) as gate, a_store(redis_url) as store:
        admin = Admin(store, who="ann")
        lease, _ = await end(gate, "completed")
        await admin.set_limits("f", {"total": 3})

        async def both() -> bool:
            return {event["kind"] for event in await admin.newest_events("f")} == {"ended", "limit_set"}

        await wait_until(both, "an end and a change")
        page = (await admin.events("f")).items
        assert [event["lease"] for event in page if event["kind"] == "ended"] == [lease]
        assert [event["kind"] for event in (await admin.events("f", ends=False)).items] == ["limit_set"]
        assert [event["kind"] for event in await admin.newest_events(ends=False)] == ["limit_set"]
