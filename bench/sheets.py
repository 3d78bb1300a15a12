"""Turns what was measured into tables and charts."""

from collections.abc import Sequence
from statistics import median
from typing import Final

from bench import chart, gateway_cost, live, redis_cost
from bench import scale as scale_run
from bench.gateway_cost import Figures
from bench.live import Cancels, Crowd
from bench.peers import Absent
from bench.redis_cost import Cost, HandoffCost
from bench.report import Sheet
from bench.scale import Scale
from bench.stats import Spread, quantile
from bench.targets import FLOOR, LEASE, TENURE

# A server that is busier answers late whenever something else comes in between.
CORE_SHARE: Final = 0.6
# A gateway ticks after 0.8 to 1.0 of `tick_ms`.
MEAN_TICK_S: Final = 0.9 * LEASE["tick_ms"] / 1000


def costs(figures: Sequence[Figures], absent: Sequence[Absent]) -> Sheet:
    """Show CPU per request and per token, and Redis's beside."""
    floor = median(next(found.token_us for found in figures if found.target == FLOOR))
    rows = [
        [
            found.target,
            Spread.of(found.request_us).text(),
            Spread.of(found.token_us).text(1),
            f"{median(found.token_us) / floor:.2f}",
            Spread.of(found.redis_us).text() if found.redis_us else "",
        ]
        for found in figures
    ]
    rows += [[gone.name, "not measured", gone.why, "", ""] for gone in absent]
    streams = gateway_cost.TURNS * gateway_cost.STREAMS
    return Sheet(
        "What a request and a token cost",
        ("target", "CPU us per request", "CPU us per token", "times the floor", "Redis CPU us per request"),
        rows,
        f"Median (lowest-highest) of {len(figures[0].request_us)} rounds in which the targets took "
        f"turns. A request is one of {gateway_cost.REQUESTS:,} for one token, {gateway_cost.CALLERS} at a "
        f"time; a token is one of {gateway_cost.TOKENS} in each of {streams} streams, "
        f"{gateway_cost.STREAMS} at a time, 10 ms apart, less what the requests cost. The process tree "
        "of the target alone is charged.",
    )


def first_tokens(figures: Sequence[Figures]) -> Sheet:
    """Show what each target adds to the time to the first token."""
    rows = [
        [
            found.target,
            f"{found.rate_per_s:.0f}",
            Spread.of(found.added_p50_ms).text(2),
            Spread.of(found.added_p99_ms).text(2),
        ]
        for found in figures
    ]
    return Sheet(
        "What is added to the first token",
        ("target", "requests a second", "p50, ms", "p99, ms"),
        rows,
        f"Against asking the engine directly in the same round. Requests for {gateway_cost.SHORT_TOKENS} "
        "tokens come at random moments at the rate that keeps Tenure's core half busy; a target that bears "
        "less gets half of what it bears.",
    )


def pictures(figures: Sequence[Figures]) -> dict[str, str]:
    """Draw the costs."""
    requests = [(found.target, Spread.of(found.request_us)) for found in figures]
    tokens = [(found.target, Spread.of(found.token_us)) for found in figures]
    return {
        "cpu-per-request.svg": chart.bars("CPU per request, us", requests, digits=0, ours=TENURE),
        "cpu-per-token.svg": chart.bars("CPU per streamed token, us", tokens, digits=1, ours=TENURE),
    }


def lives(cancels: Cancels, crowd: Crowd, starts_s: Sequence[float]) -> Sheet:
    """Show what one worker does with many streams."""
    p50, p99 = (
        [quantile(ms, share) for ms in (cancels.redis_ms, cancels.engine_ms)] for share in (0.5, 0.99)
    )
    few = f"{live.CANCEL_LIVE} streams, {live.PER_MINUTE} more a minute"
    many = f"{crowd.live:,} streams"
    return Sheet(
        "One worker with many streams",
        ("figure", "with", "p50", "p99"),
        [
            [
                "from a client's RST until its place is free in Redis, ms",
                few,
                f"{p50[0]:.1f}",
                f"{p99[0]:.1f}",
            ],
            [
                "from a client's RST until the engine's connection closes, ms",
                few,
                f"{p50[1]:.1f}",
                f"{p99[1]:.1f}",
            ],
            ["resident memory per live stream, KiB", many, f"{crowd.per_stream_bytes / 1024:.1f}", ""],
            [
                f"lateness of ticks, every {crowd.tick_ms} ms, ms",
                many,
                "",
                f"at most {crowd.late_p99_ms:g} ({crowd.ticks} ticks)",
            ],
            [
                f"CPU, share of a core, at {crowd.tokens_per_s:,.0f} tokens a second",
                many,
                f"{crowd.cpu_share:.0%}",
                "",
            ],
            [
                "start of a gateway until it is ready, s",
                "",
                f"{median(starts_s):.2f}",
                f"{max(starts_s):.2f} (highest)",
            ],
        ],
        f"{len(cancels.redis_ms)} clients left. Redis is asked without a pause until the lease is gone, so "
        "these figures include the question that finds out.",
    )


def redis_growth(rows: Sequence[Cost]) -> Sheet:
    """Show what scripts cost Redis with more leases and tenants."""
    return Sheet(
        "Redis CPU in us, by leases and tenants",
        ("live leases", "tenants", "acquire", "release", "release, ten in a call", "tick, per lease"),
        [
            [
                f"{row.live:,}",
                f"{row.tenants:,}",
                f"{row.acquire_us:.1f}",
                f"{row.release_us:.1f}",
                f"{row.gathered_us:.1f}",
                f"{row.tick_per_lease_us:.1f}",
            ]
            for row in rows
        ],
        f"The server's main thread, reading and answering included, in bursts of {redis_cost.BURST} calls, "
        "before which so many leases are live. Each lease has a place in four pools, and goes after a tick, "
        f"those of ten in a call before one. Medians of {redis_cost.ROUNDS} turns on each of "
        f"{redis_cost.SERVERS} servers, one after the other.",
    )


def redis_core(rows: Sequence[Cost]) -> Sheet:
    """Show what one Redis core carries, by the largest fleet that was measured."""
    most = max(rows, key=lambda row: row.live)
    admission_us = most.acquire_us + most.release_us
    lines = []
    for leases in (1_000, 10_000, 50_000):
        ticks = leases / MEAN_TICK_S * most.tick_per_lease_us / 1e6
        left = max(0.0, CORE_SHARE - ticks) * 1e6 / admission_us
        lines.append([f"{leases:,}", f"{ticks:.1%}", f"{left:,.0f}", f"{leases / left:,.1f}" if left else ""])
    return Sheet(
        "What one Redis core carries",
        (
            "live leases",
            "ticks, of a core",
            "admissions/s beside them",
            "when a request holds its place for, s",
        ),
        lines,
        f"Up to {CORE_SHARE:.0%} of a core: leases / {MEAN_TICK_S} s x {most.tick_per_lease_us:.1f} us for "
        "the ticks (the default tick with its jitter), and "
        f"{admission_us:.0f} us for each admission with its release, at {most.live:,} leases. Where requests "
        "hold their places for longer than the last column says, leases fill the core; where for less, "
        "admissions.",
    )


def redis_line(rows: Sequence[HandoffCost]) -> Sheet:
    """Show what the line costs Redis."""
    return Sheet(
        "Redis CPU in us, by waiters",
        ("waiters", "tenants", "release, no line", "release that hands on", "ratio", "joining the line"),
        [
            [
                f"{row.waiters:,}",
                f"{row.tenants:,}",
                f"{row.plain_us:.1f}",
                f"{row.handoff_us:.1f}",
                f"{row.handoff_us / row.plain_us:.2f}",
                f"{row.joining_us:.1f}",
            ]
            for row in rows
        ],
    )


def scales(found: Sequence[Scale]) -> Sheet:
    """Show how far one Redis, and a Cluster, can be driven from here."""
    rows = [
        [
            f"{scale.name}, {scale.fleets} fleets" if scale.fleets > 1 else scale.name,
            f"{scale.gateways * scale.leases:,}",
            f"{step.offered_per_s:,.0f}",
            f"{step.admitted_per_s:,.0f}",
            f"{step.redis_share:.0%}",
            f"{step.gateway_share:.0%}",
            f"{step.acquire_p99_ms:.1f}",
            f"{step.late_p99_ms:.0f}",
        ]
        for scale in found
        for step in scale.steps
    ]
    told = "; ".join(f"{scale.name}: {_summary(scale)}" for scale in found)
    return Sheet(
        "A fleet of gateways",
        (
            "Redis",
            "live leases",
            "offered/s",
            "admitted/s",
            "CPU of the busiest Redis",
            "CPU of the gateways",
            "acquire p99, ms",
            "tick late p99, ms",
        ),
        rows,
        f"{found[0].gateways} gateways of the real library in {scale_run.PROCESSES} processes, all leases "
        "renewed with the default tick; requests come at random moments, faster from step to step until "
        f"fewer than {scale_run.REACHED:.0%} are admitted or ticks are half a tick late. {told}.",
    )


def _summary(scale: Scale) -> str:
    ticks = f"ticks alone take {scale.steps[0].redis_share:.1%} of a core"
    if not scale.admission_us:
        return f"{ticks}; no step was reached"
    return f"{ticks}, each admission {scale.admission_us:.0f} us of the busiest server"
