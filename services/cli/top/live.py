"""The loop of `tenure top`: read, draw, listen to the keyboard, until it is enough."""

import asyncio
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from services.cli.failure import Failure
from services.cli.reach import administer, unreachable
from services.cli.shown import print_json
from services.cli.top.frame import ALL_ROWS, Page, frame
from services.cli.top.keys import keyboard
from services.cli.top.parts import Signs
from services.cli.top.snapshot import Snapshot, read_snapshot
from services.cli.top.view import Quit, Reread, Revoke, View
from services.permits.admin import Admin
from services.permits.errors import NotFound, Unavailable
from services.settings.schema import Settings

_PIPE_COLUMNS: Final = 80


async def top(
    settings: Settings, *, fleet: str | None, tenant: str, once: bool, interval_s: float, as_json: bool
) -> None:
    """Show one fleet live; one frame when asked for, or when this is no terminal.

    Raises Failure when the first look fails; later ones are tried again, and say so on the screen.
    """
    console = Console(highlight=False, markup=False)
    async with administer(settings) as admin:
        snapshot = await read_snapshot(admin, fleet, tenant)
        if fleet not in (None, snapshot.fleet):
            raise Failure(f"no fleet {fleet!r}; the fleets are: {', '.join(snapshot.fleets)}")
        view = View(fleet=snapshot.fleet, tenant=tenant)
        if as_json:
            print_json(snapshot.as_json())
        elif once or not _interactive(console):
            _print_once(console, snapshot, view)
        else:
            await _Top(
                settings=settings,
                admin=admin,
                view=view,
                snapshot=snapshot,
                console=console,
                interval_s=interval_s,
            ).run()


def _interactive(console: Console) -> bool:
    return console.is_terminal and not console.is_dumb_terminal and sys.stdin.isatty()


def _print_once(console: Console, snapshot: Snapshot, view: View) -> None:
    width = console.width if console.is_terminal else _PIPE_COLUMNS
    for line in frame(snapshot, view, Page(width, ALL_ROWS, _signs(console))):
        line.rstrip()
        console.print(line, soft_wrap=True)


def _signs(console: Console) -> Signs:
    return Signs.ascii() if console.options.ascii_only else Signs()


class _Top:
    """One live view. It owns the terminal for as long as `run` runs."""

    def __init__(
        self,
        *,
        settings: Settings,
        admin: Admin,
        view: View,
        snapshot: Snapshot,
        console: Console,
        interval_s: float,
    ) -> None:
        self._settings = settings
        self._admin = admin
        self._view = view
        self._snapshot = snapshot
        self._console = console
        self._interval_s = interval_s
        self._changed = asyncio.Event()
        self._hurry = asyncio.Event()
        self._ended = False
        self._group = asyncio.TaskGroup()

    async def run(self) -> None:
        """Draw until the person quits, a signal comes or the terminal is gone; then put everything back."""
        # An OSError is a terminal that was closed: there is nobody to tell.
        with suppress(OSError), self._signals(), keyboard(sys.stdin.fileno(), self._press, self._end):
            live = Live(console=self._console, screen=True, auto_refresh=False)
            with live:
                async with self._group:
                    reading = self._group.create_task(self._read())
                    while not self._ended:
                        self._changed.clear()
                        try:
                            live.update(Group(*self._lines()), refresh=True)
                        except OSError:
                            break
                        await self._changed.wait()
                    reading.cancel()

    def _lines(self) -> list[Text]:
        width, height = self._console.size
        return frame(self._snapshot, self._view, Page(width, height, _signs(self._console)))

    def _end(self) -> None:
        self._ended = True
        self._changed.set()

    def _press(self, key: str) -> None:
        match self._view.press(key, self._snapshot):
            case Quit():
                self._ended = True
            case Reread():
                self._hurry.set()
            case Revoke(lease):
                self._group.create_task(self._revoke(lease))
        self._changed.set()

    async def _read(self) -> None:
        """Read a snapshot every interval, or at once when something else is to be shown."""
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._hurry.wait(), self._interval_s)
            self._hurry.clear()
            view = self._view
            try:
                snapshot = await read_snapshot(self._admin, view.fleet, view.tenant)
            except Unavailable as error:
                view.trouble = unreachable(self._settings, error)
            except (Failure, NotFound) as error:
                view.trouble = str(error)
            else:
                if self._hurry.is_set():
                    continue  # of another fleet by now
                self._snapshot, view.trouble = snapshot, ""
                view.settle(snapshot)
            self._changed.set()

    async def _revoke(self, lease: str) -> None:
        try:
            await self._admin.revoke(lease)
            self._view.note = f"revoked {lease}"
        except NotFound:
            self._view.note = f"{lease} has ended by itself"
        except Unavailable as error:
            self._view.note = unreachable(self._settings, error)
        self._hurry.set()
        self._changed.set()

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """End on the signals that mean the end; draw anew when the window has another size."""
        loop = asyncio.get_running_loop()
        ends = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        for number in ends:
            loop.add_signal_handler(number, self._end)
        loop.add_signal_handler(signal.SIGWINCH, self._changed.set)
        try:
            yield
        finally:
            for number in (*ends, signal.SIGWINCH):
                loop.remove_signal_handler(number)
