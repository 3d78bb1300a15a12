"""`python -m bench [gateway] [live] [redis] [scale]`: print tables, and write the page if asked to."""

import argparse
import os
import platform
import resource
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from typing import Final

import uvloop
from rich.console import Console

from bench import aims, gateway_cost, live, redis_cost, report, scale, sheets
from bench.aims import Aim
from bench.cpu import leave_a_core
from bench.report import Sheet
from tests.support.redis_server import server_binary

SUITES: Final = ("gateway", "live", "redis", "scale")
ROUNDS: Final = 5
TABLE_COLUMNS: Final = 130


@dataclass
class Run:
    """What one run has found so far."""

    sheets: list[Sheet] = field(default_factory=list)
    pictures: dict[str, str] = field(default_factory=dict)
    aims: list[Aim] = field(default_factory=list)

    def add(self, sheet: Sheet, console: Console) -> None:
        """Keep a table, and show it at once: a run takes minutes."""
        self.sheets.append(sheet)
        sheet.show(console)


class Options(argparse.Namespace):
    """The words of the command line."""

    suites: list[str]
    rounds: int
    gateways: int
    leases: int
    peers: bool
    write: Path | None


def main() -> None:
    """Run the suites that were named, or all."""
    options = parser().parse_args(namespace=Options())
    suites = options.suites or SUITES
    if options.write and set(suites) != set(SUITES):
        sys.exit("bench: --write needs a run of all suites: the page is one run")
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    leave_a_core()
    # A pipe has no width of its own, and figures that are broken over lines cannot be read.
    console = Console(width=None if sys.stdout.isatty() else TABLE_COLUMNS)
    run, began_s = Run(), monotonic()
    if "gateway" in suites:
        _gateway(run, console, options.rounds, with_peers=options.peers)
    if "live" in suites:
        _live(run, console, options.rounds)
    if "redis" in suites:
        _redis(run, console)
    if "scale" in suites:
        _scale(run, console, options)
    if run.aims:
        run.sheets.insert(0, aims.sheet(run.aims))
        run.sheets[0].show(console)
    took_s = monotonic() - began_s
    console.print(f"{took_s:.0f} s")
    if options.write:
        report.write(options.write, run.sheets, run.pictures, _intro(took_s, with_peers=options.peers))


def parser() -> argparse.ArgumentParser:
    """Return what reads the command line into Options."""
    made = argparse.ArgumentParser(prog="bench", description="measure what admission costs")
    made.add_argument(
        "suites", nargs="*", choices=[*SUITES, []], help=f"{', '.join(SUITES)}; all when left out"
    )
    made.add_argument("--rounds", type=int, default=ROUNDS, help=f"of each target (default {ROUNDS})")
    for name, usual, of in (("gateways", scale.GATEWAYS, "of `scale`"), ("leases", scale.LEASES, "of each")):
        made.add_argument(f"--{name}", type=int, default=usual, help=f"{of} (default {usual})")
    made.add_argument("--peers", action="store_true", help="install and measure other gateways too")
    made.add_argument(
        "--write", type=Path, metavar="PAGE", help="put tables and plots into docs/performance.md"
    )
    return made


def _gateway(run: Run, console: Console, rounds: int, *, with_peers: bool) -> None:
    figures, absent = uvloop.run(gateway_cost.measure(rounds, with_peers=with_peers))
    run.add(sheets.costs(figures, absent), console)
    run.add(sheets.first_tokens(figures), console)
    run.pictures |= sheets.pictures(figures)
    run.aims += aims.of_gateway(figures)


def _live(run: Run, console: Console, rounds: int) -> None:
    cancels, crowd = uvloop.run(live.cancels()), uvloop.run(live.crowd())
    starts_s = uvloop.run(live.start_ups(rounds))
    run.add(sheets.lives(cancels, crowd, starts_s), console)
    run.aims += aims.of_live(cancels, crowd)


def _redis(run: Run, console: Console) -> None:
    costs = redis_cost.measure()
    run.add(sheets.redis_growth(costs), console)
    run.add(sheets.redis_core(costs), console)
    run.add(sheets.redis_line(redis_cost.measure_handoff()), console)
    run.aims += aims.of_redis(costs)


def _scale(run: Run, console: Console, options: Options) -> None:
    found = [
        uvloop.run(scale.one_server(options.gateways, options.leases)),
        uvloop.run(scale.cluster(options.gateways, max(1, options.leases // scale.CLUSTER_PART))),
    ]
    run.add(sheets.scales(found), console)


def _intro(took_s: float, *, with_peers: bool) -> str:
    """Say which machine this was, and how to do it again."""
    versions = [f"Python {platform.python_version()}", _version(server_binary())]
    if haproxy := shutil.which("haproxy"):
        versions.append(_version(haproxy, "-v"))
    cores = len(os.sched_getaffinity(1))
    words = "--peers " if with_peers else ""
    return (
        f"{datetime.now(UTC):%Y-%m-%d}, {took_s / 60:.0f} minutes, {cores} cores of {_processor()}, Linux "
        f"{platform.release()}, {', '.join(versions)}. The target has a core of its own; client, engine and "
        f'Redis share the rest. `make bench ARGS="{words}--write docs/performance.md"` does it again.\n'
    )


def _processor() -> str:
    names = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return names[0].partition(": ")[2] if names else platform.machine()


def _version(binary: str, flag: str = "--version") -> str:
    told = subprocess.run([binary, flag], capture_output=True, text=True, check=True).stdout
    return " ".join(told.split(" - ")[0].splitlines()[0].split()[:3])


if __name__ == "__main__":
    main()
