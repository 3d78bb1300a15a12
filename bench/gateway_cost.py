"""CPU per request and per token, and what is added to the first token, target by target in one run."""

import tempfile
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Final

from bench import load, peers
from bench.cpu import cpu_s, keep_apart
from bench.peers import Absent
from bench.stats import quantile
from bench.targets import TENURE, Target, engine, floor_and_tenure

REQUESTS: Final = 1_000
CALLERS: Final = 16
STREAMS: Final = 100
TOKENS: Final = 100
# So many streams one after the other on each connection: a tenth of a second of CPU is too little to measure.
TURNS: Final = 3
# A target that needs more than SLOW_US for a request is given SLOW_SHARE of the work.
SLOW_US: Final = 5_000
SLOW_SHARE: Final = 0.1
# Requests for so many tokens come at random moments, for so long.
SHORT_TOKENS: Final = 20
AT_RATE_S: Final = 4.0
LINES: Final = 300
FIRST_TOKEN_ROUNDS: Final = 3


@dataclass(slots=True)
class Figures:
    """Of one target, one figure a round: microseconds of CPU, of Redis beside, and milliseconds added.

    rate_per_s   at which the first tokens were measured
    """

    target: str
    request_us: list[float] = field(default_factory=list)
    token_us: list[float] = field(default_factory=list)
    redis_us: list[float] = field(default_factory=list)
    rate_per_s: float = 0.0
    added_p50_ms: list[float] = field(default_factory=list)
    added_p99_ms: list[float] = field(default_factory=list)

    @property
    def half_load_per_s(self) -> float:
        """Return how many short requests a second take half of a core."""
        return 0.5e6 / (median(self.request_us) + (SHORT_TOKENS - 1) * median(self.token_us))


async def measure(rounds: int, *, with_peers: bool = False) -> tuple[list[Figures], list[Absent]]:
    """Measure all targets on one engine, in turn: the machine's speed drifts for all alike."""
    absent: list[Absent] = []
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        at = await stack.enter_async_context(engine(folder))
        targets = await stack.enter_async_context(floor_and_tenure(folder, at.url))
        if with_peers:
            others, absent = await peers.start(stack, folder, at.url)
            for other in others:
                keep_apart(other.pid)
            targets += others
        figures = [Figures(target.name) for target in targets]
        for _ in range(rounds):
            for target, found in zip(targets, figures, strict=True):
                await _round(target, found)
        ours = next(found.half_load_per_s for found in figures if found.target == TENURE)
        for _ in range(min(rounds, FIRST_TOKEN_ROUNDS)):
            await _first_tokens(at.url, targets, figures, ours)
    return figures, absent


async def _round(target: Target, found: Figures) -> None:
    async with load.lines(target.url, CALLERS) as few:
        one = load.request_bytes(target.url, 1)
        began_s = cpu_s(target.pid)
        await load.each_in_turn(few, one, 4 * CALLERS, 1)
        slow = (cpu_s(target.pid) - began_s) / (4 * CALLERS) * 1e6 > SLOW_US
        share = SLOW_SHARE if slow else 1.0
        count = int(REQUESTS * share)
        cpu, redis = _charged(target)
        await load.each_in_turn(few, one, count, 1)
        now = _charged(target)
    request_s = (now[0] - cpu) / count
    found.request_us.append(request_s * 1e6)
    if target.redis_pid is not None:
        found.redis_us.append((now[1] - redis) / count * 1e6)
    streams = int(STREAMS * share)
    async with load.lines(target.url, streams) as many:
        # As many connections to the engine as these need at once: opening them is no token's cost.
        await load.each_in_turn(many, load.request_bytes(target.url, SHORT_TOKENS), streams, SHORT_TOKENS)
        cpu, _ = _charged(target)
        await load.each_in_turn(many, load.request_bytes(target.url, TOKENS), TURNS * streams, TOKENS)
        streams_s = (_charged(target)[0] - cpu) / (TURNS * streams)
    found.token_us.append((streams_s - request_s) / (TOKENS - 1) * 1e6)


def _charged(target: Target) -> tuple[float, float]:
    return cpu_s(target.pid), cpu_s(target.redis_pid) if target.redis_pid else 0.0


async def _first_tokens(
    engine_url: str, targets: list[Target], figures: list[Figures], rate_per_s: float
) -> None:
    """Measure one round of first tokens, at half of what Tenure bears, or of what a slower one does."""
    direct = await _at_rate(engine_url, rate_per_s)
    for target, found in zip(targets, figures, strict=True):
        found.rate_per_s = min(rate_per_s, found.half_load_per_s)
        through = await _at_rate(target.url, found.rate_per_s)
        found.added_p50_ms.append((quantile(through, 0.5) - quantile(direct, 0.5)) * 1e3)
        found.added_p99_ms.append((quantile(through, 0.99) - quantile(direct, 0.99)) * 1e3)


async def _at_rate(url: str, rate_per_s: float) -> list[float]:
    async with load.lines(url, LINES) as lines:
        return await load.at_a_rate(lines, load.request_bytes(url, SHORT_TOKENS), rate_per_s, AT_RATE_S)
