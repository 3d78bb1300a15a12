"""The parts of the reaper that need no process: what it looks at, how long it waits, what it says."""

import fnmatch

import pytest

from services.permits.errors import Unavailable
from services.permits.model import Reaped, Reclaim
from services.reaper.loop import PAUSE_AT_MOST_S, in_one_line, pause_s
from services.reaper.pulse import Pulse
from services.reaper.survey import CALLS_PER_LOOK, Survey
from services.reaper.sweep import NAMES_PER_CALL, FleetPass, Sweep


class Keyspace:
    """Pages of keys, as SCAN gives them."""

    def __init__(self, *pages: list[str]) -> None:
        self.pages = pages
        self.calls = 0

    async def scan(self, cursor: int, pattern: str, _count: int) -> tuple[int, list[str]]:
        self.calls += 1
        following = (cursor + 1) % len(self.pages)
        return following, [key for key in self.pages[cursor] if fnmatch.fnmatchcase(key, pattern)]


async def test_a_look_sorts_pools_and_records_by_fleet() -> None:
    keyspace = Keyspace(
        [
            "tenure:{a}:pool:tenant:acme",
            "tenure:{a}:pool:engine:127.0.0.1:8710",
            "tenure:{a}:pool:total",
            "tenure:{a}:meta",
            "tenure:{b}:lease:L1",
            "tenure:keys",
            "other:{a}:lease:L2",
            "xtenure:{a}:lease:L3",
        ]
    )
    seen = await Survey(keyspace.scan, prefix="tenure").look()
    assert seen["a"].pools == {"tenant:acme", "engine:127.0.0.1:8710"}
    assert seen["a"].records == set()
    assert seen["b"].records == {"L1"}


async def test_looks_go_on_where_the_last_one_stopped_and_begin_again() -> None:
    """However many keys there are, a pass costs the same."""
    keyspace = Keyspace(*([f"tenure:{{a}}:lease:L{page}"] for page in range(CALLS_PER_LOOK + 2)))
    survey = Survey(keyspace.scan, prefix="tenure")
    first = await survey.look()
    assert keyspace.calls == CALLS_PER_LOOK
    second = await survey.look()
    assert len(first["a"].records | second["a"].records) == CALLS_PER_LOOK + 2
    assert await survey.look() == first


async def test_a_whole_look_sees_everything() -> None:
    keyspace = Keyspace(*([f"tenure:{{a}}:lease:L{page}"] for page in range(5 * CALLS_PER_LOOK)))
    seen = await Survey(keyspace.scan, prefix="tenure").look(whole=True)
    assert len(seen["a"].records) == 5 * CALLS_PER_LOOK


class Leases:
    """A store whose fleets answer as told: with work left, or not at all."""

    def __init__(self, **answers: list[Reaped | Exception]) -> None:
        self.answers = answers
        self.calls: list[tuple[str, int, int]] = []

    async def fleets(self) -> list[str]:
        return list(self.answers)

    async def reap(self, fleet: str, pools: object, records: object) -> Reaped:
        assert isinstance(pools, list | tuple)
        assert isinstance(records, list | tuple)
        self.calls.append((fleet, len(pools), len(records)))
        answer = self.answers[fleet].pop(0) if self.answers[fleet] else NOTHING
        if isinstance(answer, Exception):
            raise answer
        return answer


NOTHING = Reaped((), 0, 0, more=False)
LEASE = Reclaim("L1", "acme", "dead~n", "cold", "e1", 5000)


class Heard:
    def __init__(self) -> None:
        self.leases: list[tuple[str, Reclaim]] = []
        self.done: list[FleetPass] = []

    def reclaimed(self, fleet: str, lease: Reclaim) -> None:
        self.leases.append((fleet, lease))

    def fleet_done(self, done: FleetPass) -> None:
        self.done.append(done)


def sweep(leases: Leases, heard: Heard, *keys: str) -> Sweep:
    return Sweep(leases, Survey(Keyspace(list(keys)).scan, prefix="tenure"), fleets=["a"], reporter=heard)


async def test_a_pass_goes_on_while_the_script_finds_work() -> None:
    leases = Leases(a=[Reaped((LEASE,), 128, 1, more=True), Reaped((LEASE,), 2, 0, more=False)])
    heard = Heard()
    assert await sweep(leases, heard).once() == [FleetPass("a", (LEASE, LEASE), 130, 1)]
    assert heard.leases == [("a", LEASE), ("a", LEASE)]


async def test_a_pass_ends_although_the_script_always_finds_work() -> None:
    """A fleet in trouble must not keep the others waiting."""
    leases = Leases(a=[Reaped((), 128, 0, more=True)] * 1000)
    await sweep(leases, Heard()).once()
    assert len(leases.calls) < 1000


async def test_many_names_are_handed_over_in_portions() -> None:
    count = 2 * NAMES_PER_CALL + 1
    leases = Leases(a=[])
    await sweep(leases, Heard(), *(f"tenure:{{a}}:lease:L{number}" for number in range(count))).once()
    assert all(pools + records <= NAMES_PER_CALL for _, pools, records in leases.calls)
    assert sum(records for _, _, records in leases.calls) == count


async def test_a_fleet_that_cannot_be_reached_does_not_keep_the_others_from_being_swept() -> None:
    leases = Leases(a=[Unavailable("no route")], b=[Reaped((LEASE,), 1, 0, more=False)])
    heard = Heard()
    with pytest.raises(ExceptionGroup) as caught:
        await sweep(leases, heard).once()
    assert heard.leases == [("b", LEASE)]
    assert in_one_line(caught.value) == "fleet a: no route"


@pytest.mark.parametrize("failures", [0, 1, 5, 1000])
def test_the_pause_is_jittered_and_bounded(failures: int) -> None:
    pauses = {pause_s(1000, failures) for _ in range(200)}
    assert len(pauses) > 1
    assert max(pauses) <= PAUSE_AT_MOST_S * 1.2
    assert min(pauses) >= min(1.0 * 2 ** min(failures, 10), PAUSE_AT_MOST_S) * 0.8


def test_readiness_needs_a_recent_success_and_names_the_failure() -> None:
    now_s = 100.0
    pulse = Pulse(every_ms=1000, now=lambda: now_s)
    assert pulse.ready() == (False, "no pass has finished yet")
    pulse.succeeded()
    assert pulse.ready()[0]
    pulse.failed("Redis is away")
    now_s += 60
    assert pulse.ready() == (False, "Redis is away")
    assert not pulse.alive()[0]
    pulse.beat()
    assert pulse.alive()[0]
