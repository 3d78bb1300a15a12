"""When a lease runs out, to the millisecond: at whatever instant within a second it was taken."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, Final

from services.permits.model import LeaseTimes
from tests.lua.fleet import RawFleet

if TYPE_CHECKING:
    import redis

LEASES: Final = 400
TTL_S: Final = 0.6
# Many ticks long, so that a pause of this process is not cut short by the lease clock.
TIMES: Final = LeaseTimes(ttl_ms=600, tick_ms=20_000, provisional_ms=600, learning_ms=1)
# Both ends of a lease are cut to whole milliseconds.
ROUNDING_S: Final = 0.003


def test_each_lease_lasts_its_time_and_they_end_in_the_order_in_which_they_began(
    client: redis.Redis,
) -> None:
    """Digits that are lost or glued on wrongly, or whole seconds, would show at some phase of a second."""
    fleet = RawFleet(client, times=TIMES).open(total=LEASES, cold=LEASES, tenant_default=LEASES)
    dice = random.Random(3)
    taken: dict[str, tuple[float, float]] = {}
    ended: dict[str, tuple[float, float]] = {}
    seen_s = next_s = time.monotonic()
    while len(ended) < LEASES:
        asked_s = time.monotonic()
        if len(taken) < LEASES and asked_s >= next_s:
            lease = f"g1~a1~{len(taken)}"
            assert fleet.acquire(lease)[0] == "GRANTED"
            taken[lease] = asked_s, time.monotonic()
            next_s = asked_s + dice.uniform(0, 0.015)
        before_s, seen_s = seen_s, time.monotonic()
        # Any script moves the clock on; this one changes nothing else.
        fleet.release("g9~a9~nobody")
        live, after_s = fleet.live(), time.monotonic()
        for lease in taken.keys() - ended.keys() - live:
            # Alive at the look before, gone at this one.
            ended[lease] = before_s, after_s
    for lease, (asked_s, granted_s) in taken.items():
        alive_s, gone_s = ended[lease]
        assert gone_s - asked_s > TTL_S - ROUNDING_S
        assert alive_s - granted_s < TTL_S + ROUNDING_S
    begun_s = [asked_s for asked_s, _ in taken.values()]
    # All phases of a second came up, and a second's turn several times.
    assert begun_s[-1] - begun_s[0] > 2
    gone = [ended[lease][1] for lease in taken]
    assert gone == sorted(gone)
