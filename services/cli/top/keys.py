"""The keyboard: bytes of a terminal become names of keys, and the terminal gets its old mode back."""

import asyncio
import os
import termios
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

# What termios gives and takes: numbers, and as the last one a list.
Mode = list[Any]
_LOCAL: Final = 3
_CHARACTERS: Final = 6

# A lone Escape and the start of an arrow key look alike; over a slow line the rest comes this late.
ESCAPE_S: Final = 0.1
_READ_BYTES: Final = 1024

_PRINTABLE: Final = range(0x20, 0x7F)
_FINAL_LEAST: Final = 0x40

_NAMES: Final = {
    b"\x1b[A": "up",
    b"\x1bOA": "up",
    b"\x1b[B": "down",
    b"\x1bOB": "down",
    b"\r": "enter",
    b"\n": "enter",
    b"\x7f": "backspace",
    b"\x08": "backspace",
    b"\x1b": "escape",
    # Where the terminal does not make a signal of it.
    b"\x03": "quit",
    b"\x04": "quit",
}


class Keys:
    """Cuts a stream of bytes into keys; what may be the beginning of one waits for the rest."""

    def __init__(self) -> None:
        self._rest = b""

    @property
    def pending(self) -> bool:
        """Whether the last bytes may be the beginning of a longer key."""
        return bool(self._rest)

    def feed(self, data: bytes, *, more: bool = True) -> list[str]:
        """Return the keys that are complete; without `more` to come a beginning is a key of its own."""
        data, self._rest = self._rest + data, b""
        keys = []
        while data:
            size = _size(data)
            if size > len(data):
                if more:
                    self._rest = data
                    break
                size = 1
            key, data = data[:size], data[size:]
            keys.append(_NAMES.get(key) or (chr(key[0]) if size == 1 and key[0] in _PRINTABLE else ""))
        return [key for key in keys if key]


def _size(data: bytes) -> int:
    """Return how long the first key is; more than there is when its end has not come yet."""
    if data[:1] != b"\x1b":
        return 1
    if data[1:2] == b"O":
        return 3
    if data[1:2] != b"[":
        return 2 if len(data) == 1 else 1
    # Parameters, then one byte from @ to ~ ends a sequence; unknown ones are thus left out whole.
    return next((n for n, byte in enumerate(data[2:], start=3) if byte >= _FINAL_LEAST), len(data) + 1)


@contextmanager
def keyboard(terminal: int, press: Callable[[str], None], hang_up: Callable[[], None]) -> Iterator[None]:
    """Call `press` with each key of the file descriptor `terminal`, unbuffered and unechoed, in this loop.

    `hang_up` is called once when the terminal is gone. The old mode is back when the block ends, however.
    """
    loop, keys = asyncio.get_running_loop(), Keys()
    before = termios.tcgetattr(terminal)

    def read() -> None:
        try:
            data = os.read(terminal, _READ_BYTES)
        except OSError:
            data = b""
        if not data:
            loop.remove_reader(terminal)
            hang_up()
        tell(keys.feed(data))
        if keys.pending:
            loop.call_later(ESCAPE_S, lambda: tell(keys.feed(b"", more=False)))

    def tell(pressed: list[str]) -> None:
        for key in pressed:
            press(key)

    try:
        termios.tcsetattr(terminal, termios.TCSADRAIN, _unbuffered(before))
        loop.add_reader(terminal, read)
        yield
    finally:
        loop.remove_reader(terminal)
        with suppress(termios.error):
            termios.tcsetattr(terminal, termios.TCSADRAIN, before)


def _unbuffered(mode: Mode) -> Mode:
    """Return the terminal mode `mode` with each key delivered at once, silently.

    Ctrl-C stays a signal, so a loop that hangs can be ended; Ctrl-Z would leave the shell with our screen.
    """
    changed, characters = [*mode], [*mode[_CHARACTERS]]
    changed[_LOCAL] &= ~(termios.ICANON | termios.ECHO)
    characters[termios.VMIN], characters[termios.VTIME], characters[termios.VSUSP] = 1, 0, b"\0"
    changed[_CHARACTERS] = characters
    return changed
