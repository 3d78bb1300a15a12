"""`python -m bench [redis] [gateway]`: run the benchmarks and print tables."""

import argparse
import asyncio
from typing import Final

from rich.console import Console
from rich.table import Table

from bench import gateway_cost, redis_cost

SUITES: Final = ("redis", "gateway")


def main() -> None:
    """Run the suites that were named, or all."""
    parser = argparse.ArgumentParser(prog="bench", description="measure what admission costs")
    parser.add_argument("suites", nargs="*", choices=[*SUITES, []], help="redis, gateway; both when left out")
    chosen = parser.parse_args().suites or SUITES
    console = Console()
    if "redis" in chosen:
        _print_redis(console)
    if "gateway" in chosen:
        table = Table("target", "CPU us per request", "CPU us per streamed token")
        for cost in asyncio.run(gateway_cost.measure()):
            table.add_row(cost.target, f"{cost.request_us:.0f}", f"{cost.token_us:.1f}")
        console.print(table)


def _print_redis(console: Console) -> None:
    table = Table(
        "live leases", "tenants", "acquire us", "release us", "release, ten a call", "tick, per lease"
    )
    for row in redis_cost.measure():
        costs = (row.acquire_us, row.release_us, row.gathered_us, row.tick_per_lease_us)
        table.add_row(str(row.live), str(row.tenants), *(f"{cost:.1f}" for cost in costs))
    console.print(table)
    table = Table("waiters", "tenants", "release us", "with handoff us", "ratio", "joining us")
    for line in redis_cost.measure_handoff():
        figures = (f"{line.plain_us:.1f}", f"{line.handoff_us:.1f}", f"{line.handoff_us / line.plain_us:.2f}")
        table.add_row(str(line.waiters), str(line.tenants), *figures, f"{line.joining_us:.1f}")
    console.print(table)


if __name__ == "__main__":
    main()
