"""What the figures should be, held against what they were."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from bench.gateway_cost import Figures
from bench.live import Cancels, Crowd
from bench.redis_cost import Cost
from bench.report import Sheet
from bench.stats import quantile
from bench.targets import FLOOR, HAPROXY, TENURE

# How long a request holds its place, for its share of the ticks: with the default tick that is four of them.
HOLD_S: Final = 10.0
TICK_S: Final = 2.5
SGLANG: Final = "sglang-router"


@dataclass(frozen=True, slots=True)
class Aim:
    """One figure, and what it should stay within, in the same unit."""

    what: str
    found: float
    limit: float
    digits: int = 0

    def row(self) -> list[str]:
        """Return the cells of its row."""
        found, limit = (f"{figure:,.{self.digits}f}" for figure in (self.found, self.limit))
        verdict = "yes" if self.found <= self.limit else f"no, by {self.found / self.limit - 1:.0%}"
        return [self.what, limit, found, verdict]


def sheet(aims: Sequence[Aim]) -> Sheet:
    """Show the aims of what was measured."""
    return Sheet("Aims", ("figure", "at most", "found", "met"), [aim.row() for aim in aims])


def of_gateway(figures: Sequence[Figures]) -> list[Aim]:
    """Hold Tenure against fixed limits, and against the others of the same run."""
    by_name = {found.target: found for found in figures}
    ours = by_name[TENURE]
    request_us, token_us = median(ours.request_us), median(ours.token_us)
    aims = [Aim("CPU per request, us", request_us, 300)]
    if SGLANG in by_name:
        aims.append(
            Aim(
                "CPU per request, us: that of sglang-router as it comes",
                request_us,
                median(by_name[SGLANG].request_us),
            )
        )
    for name, times in ((FLOOR, 1.4), (HAPROXY, 2.4)):
        if name in by_name:
            ratio = token_us / median(by_name[name].token_us)
            aims.append(Aim(f"CPU per token, times that of the {name}", ratio, times, 2))
    return aims


def of_redis(rows: Sequence[Cost]) -> list[Aim]:
    """Hold the scripts against their limits, and the rows against each other."""
    ticks = HOLD_S / TICK_S
    admitted = {
        (row.live, row.tenants): row.acquire_us + row.release_us + ticks * row.tick_per_lease_us
        for row in rows
    }
    plain: Callable[[Cost], float] = lambda row: row.acquire_us + row.release_us  # noqa: E731
    by_leases = [plain(row) for row in rows if row.tenants == _usual(rows)]
    by_tenants = [plain(row) for row in rows if row.live == 1_000]
    return [
        Aim(f"Redis CPU per admitted request held for {HOLD_S:g} s, us", max(admitted.values()), 80),
        Aim("Redis CPU of acquire and release, us", max(map(plain, rows)), 80),
        Aim("the same, 100 to 10,000 leases: highest over lowest", max(by_leases) / min(by_leases), 1.2, 2),
        Aim("the same, 1 to 1,000 tenants: highest over lowest", max(by_tenants) / min(by_tenants), 1.2, 2),
        Aim("Redis CPU of a tick per lease, us", max(row.tick_per_lease_us for row in rows), 8, 1),
    ]


def _usual(rows: Sequence[Cost]) -> int:
    counts: Mapping[int, int] = {row.tenants: sum(row.tenants == one.tenants for one in rows) for row in rows}
    return max(counts, key=lambda tenants: counts[tenants])


def of_live(cancels: Cancels, crowd: Crowd) -> list[Aim]:
    """Hold a worker with many streams against its limits."""
    return [
        Aim("RST to place free in Redis, p99, ms", quantile(cancels.redis_ms, 0.99), 5, 1),
        Aim("RST to the engine's connection closed, p99, ms", quantile(cancels.engine_ms, 0.99), 5, 1),
        Aim(f"resident memory per stream at {crowd.live:,}, KiB", crowd.per_stream_bytes / 1024, 60, 1),
        Aim(f"lateness of ticks at {crowd.live:,} streams, p99, ms", crowd.late_p99_ms, crowd.tick_ms / 2),
    ]
