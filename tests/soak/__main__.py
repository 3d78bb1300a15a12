"""`python -m tests.soak [--minutes M] [--seed N]`: break everything for a while, account for all of it."""

from __future__ import annotations

import argparse
import asyncio
import random
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rich.console import Console

from tests.soak.book import Book
from tests.soak.canary import Canary
from tests.soak.faults import WEIGHTS, Injector
from tests.soak.ledger import Ledger
from tests.soak.load import Load
from tests.soak.officer import Officer
from tests.soak.rest import Inspector
from tests.soak.watch import Logs, Watch
from tests.soak.world import TAIL_S, World, world
from tests.support.processes import ROOT

if TYPE_CHECKING:
    from collections.abc import Sequence

REST_EVERY_S: Final = 60.0
# Around a fault that is tried alone: the load gets under way, and what the fault left behind shows.
BEFORE_S: Final = 4.0
SHOWN_FINDINGS: Final = 40
SHOWN_LAST: Final = 10


def main(arguments: Sequence[str] | None = None) -> int:
    """Soak; 0 when every line is explained, 1 when one is not."""
    options = _parser().parse_args(arguments)
    folder = Path(tempfile.mkdtemp(prefix="tenure-soak-"))
    console = Console()
    console.print(f"soak: seed {options.seed}, {options.minutes:g} minutes, logs in {folder}")
    book, ledger = Book(), Ledger(options.seed)
    try:
        asyncio.run(_soak(options, folder, book, ledger, console))
    except asyncio.CancelledError:
        console.print("stopped early; what follows was seen up to the last rest")
    for grown in ledger.grown():
        book.find("memory", grown)
    ledger.show(console, book)
    ledger.write(_report(options.seed), book)
    for finding in book.findings[-SHOWN_LAST:]:
        console.print(f"unexplained {finding.check}: {finding.what}", markup=False, soft_wrap=True)
    if book.findings:
        console.print(f"{len(book.findings)} lines are unexplained; the logs are in {folder}")
        return 1
    console.print("every line is explained")
    shutil.rmtree(folder)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="soak", description="mixed load under random faults, and a ledger")
    parser.add_argument("--minutes", type=float, default=3, help="how long (default 3)")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6), help="the faults and the load")
    parser.add_argument("--clients", type=int, default=16, help="requests under way at once, at the most")
    parser.add_argument(
        "--think-s", type=float, default=0.5, help="mean pause of a client between two requests"
    )
    parser.add_argument("--each", type=int, default=0, help="instead: try each fault alone, so many times")
    parser.add_argument("--gap-s", type=float, default=6, help="mean pause between two faults; 0: no faults")
    return parser


def _report(seed: int) -> Path:
    return ROOT / ".cache" / "soak" / f"{seed}.json"


def _gap_s(mean_s: float) -> tuple[float, float]:
    return (mean_s / 3, mean_s * 5 / 3) if mean_s else (1e9, 1e9)


async def _soak(
    options: argparse.Namespace, folder: Path, book: Book, ledger: Ledger, console: Console
) -> None:
    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGINT, signal.SIGTERM):
        # Whoever stops it early leaves no process behind.
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    async with world(folder) as made:
        load = Load(made, book, options.seed, options.clients, options.think_s)
        injector = Injector(made, book, random.Random(f"{options.seed} faults"), _gap_s(options.gap_s))
        watch, logs = Watch(made, book), Logs(folder, book)
        officer = Officer(made, book, random.Random(f"{options.seed} officer"), watch)
        await watch.look()
        inspector = Inspector(made, book, load, injector, officer, watch, logs)
        parts = [asyncio.create_task(part.run()) for part in (load, officer, watch, logs, Canary(made, book))]
        if not options.each:
            parts.append(asyncio.create_task(injector.run()))
        try:
            if options.each:
                await _tour(options.each, inspector, ledger, console)
            else:
                await _rests(options, inspector, parts, ledger, console)
        finally:
            for part in parts:
                part.cancel()
            await asyncio.gather(*parts, return_exceptions=True)
        await _end(made, book, logs)


async def _rests(
    options: argparse.Namespace,
    inspector: Inspector,
    parts: list[asyncio.Task[None]],
    ledger: Ledger,
    console: Console,
) -> None:
    started_s = time.monotonic()
    end_s = started_s + options.minutes * 60
    while time.monotonic() < end_s:
        stretch_s = min(REST_EVERY_S, end_s - time.monotonic())
        done, _ = await asyncio.wait(parts, timeout=stretch_s, return_when=asyncio.FIRST_COMPLETED)
        for part in done:
            part.result()
        await _rest(inspector, ledger, console, started_s)


async def _tour(times: int, inspector: Inspector, ledger: Ledger, console: Console) -> None:
    """Try each fault alone, and none at all to compare with, so many times."""
    started_s = time.monotonic()
    for kind in ("none", *WEIGHTS) * times:
        await asyncio.sleep(BEFORE_S)
        if kind != "none":
            await inspector.injector.inject(kind)
        await asyncio.sleep(TAIL_S)
        await _rest(inspector, ledger, console, started_s, kind)


async def _rest(
    inspector: Inspector, ledger: Ledger, console: Console, started_s: float, alone: str | None = None
) -> None:
    """Rest, and say what was found; `alone` is the one fault of the chapter."""
    book = inspector.book
    known = len(book.findings)
    rest = await inspector.rest(started_s)
    ledger.add(rest, alone)
    ledger.write(_report(ledger.seed), book)
    console.print(
        f"{rest.at_s:6.0f} s: {alone or ''} {ledger.asked.total()} requests, {len(book.faults)} faults,"
        f" quiet after {rest.took_s:.1f} s, {len(book.findings)} unexplained"
    )
    for finding in book.findings[known : known + SHOWN_FINDINGS]:
        console.print(f"unexplained {finding.check}: {finding.what}", markup=False, soft_wrap=True)


async def _end(made: World, book: Book, logs: Logs) -> None:
    for wrong in await made.end():
        book.find("end", wrong)
    logs.read()
    left = [key for key in made.redis.cli("KEYS", "*") if ":lease:" in key or ":pool:" in key]
    if left:
        book.find("end", f"left in Redis: {left}")


if __name__ == "__main__":
    sys.exit(main())
