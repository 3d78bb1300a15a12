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
        table = Table("live leases", "acquire + release, script us", "whole process us", "tick, us per lease")
        for row in redis_cost.measure():
            figures = (row.pair_script_us, row.pair_process_us, row.tick_per_lease_us)
            table.add_row(str(row.live), *(f"{figure:.1f}" for figure in figures))
        console.print(table)
        handoff = redis_cost.measure_handoff()
        table = Table("waiters", "release us", "release with handoff us")
        table.add_row(str(handoff.waiters), f"{handoff.plain_us:.0f}", f"{handoff.handoff_us:.0f}")
        console.print(table)
    if "gateway" in chosen:
        table = Table("target", "CPU us per request", "CPU us per streamed token")
        for cost in asyncio.run(gateway_cost.measure()):
            table.add_row(cost.target, f"{cost.request_us:.0f}", f"{cost.token_us:.1f}")
        console.print(table)


if __name__ == "__main__":
    main()
