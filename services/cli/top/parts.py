"""The pieces of a frame: lines of an exact width, made from rich's text. Nothing here knows Redis."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Literal

from rich.text import Text

from services.cli.plain import plain

# From this share on a pool is nearly full.
_NEARLY: Final = 0.8
_MS_PER_S: Final = 1000
_S_PER_MIN: Final = 60
_MIN_PER_H: Final = 60


@dataclass(frozen=True, slots=True)
class Signs:
    """What a terminal can draw."""

    full: str = "█"
    free: str = "░"
    cut: str = "…"
    mark: str = "▶"

    @classmethod
    def ascii(cls) -> "Signs":
        """Return signs that every terminal has."""
        return cls(full="#", free=".", cut="~", mark=">")


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table, `width` cells wide."""

    title: str
    width: int
    side: Literal["left", "right"] = "left"


def cell(text: str, width: int, signs: Signs, side: Literal["left", "right"] = "left") -> str:
    """Return `text` in exactly `width` cells; what is too long shows its cut."""
    text = plain(text)
    if len(text) > width:
        text = text[: max(0, width - 1)] + signs.cut[:width]
    return text.rjust(width) if side == "right" else text.ljust(width)


def middle(text: str, width: int, signs: Signs) -> str:
    """Return both ends of a long id: the front says whose it is, the back tells it from the others."""
    text = plain(text)
    if len(text) <= width:
        return text.ljust(width)
    front = (width - 1) // 2
    return text[:front] + signs.cut + text[len(text) - (width - front - 1) :]


def table(
    columns: Sequence[Column], rows: Sequence[tuple[Sequence[str], str]], width: int, signs: Signs
) -> list[Text]:
    """Return a head and one line per row; a row is its cells and its style."""
    lines = [_line([column.title for column in columns], columns, width, signs, "dim")]
    return lines + [_line(cells, columns, width, signs, style) for cells, style in rows]


def _line(cells: Sequence[str], columns: Sequence[Column], width: int, signs: Signs, style: str) -> Text:
    pairs = zip(cells, columns, strict=True)
    text = " ".join(cell(value, column.width, signs, column.side) for value, column in pairs)
    return Text(cell(text, width, signs), style=style)


def gauge(name: str, in_use: int, limit: int | None, width: int, signs: Signs) -> Text:
    """Return `name [bar] in_use/limit`, the bar in the colour of how full it is."""
    figures = f"{in_use}/{'-' if limit is None else limit}"
    name_width = min(12, max(5, width // 4))
    room = max(0, width - name_width - max(len(figures), 7) - 2)
    share = _share(in_use, limit)
    filled = min(room, round(share * room)) or (1 if in_use and room else 0)
    return Text.assemble(
        cell(name, name_width, signs),
        " ",
        (signs.full * filled, _colour(in_use, limit)),
        (signs.free * (room - filled), "dim"),
        " ",
        (figures.rjust(width - name_width - room - 2), _colour(in_use, limit) if share >= 1 else ""),
    )


def _share(in_use: int, limit: int | None) -> float:
    if limit is None:
        return 0.0
    return in_use / limit if limit else float(in_use > 0)


def _colour(in_use: int, limit: int | None) -> str:
    share = _share(in_use, limit)
    return "red" if share >= 1 else "yellow" if share >= _NEARLY else "green"


def beside(left: Sequence[Text], right: Sequence[Text], width: int) -> list[Text]:
    """Return two blocks side by side with one blank column between them; `width` is that of the left one."""
    lines = []
    for number in range(max(len(left), len(right))):
        line = left[number].copy() if number < len(left) else Text()
        line.truncate(width, pad=True)
        if number < len(right):
            line = Text.assemble(line, " ", right[number])
        lines.append(line)
    return lines


def titled(title: str, shown: int, all_: int) -> str:
    """Return a block's title with how many there are, and how many of them are shown when not all are."""
    return f"{title} {all_}" if shown >= all_ else f"{title} {shown} of {all_}"


def span(ms: int) -> str:
    """Return a time in at most six characters."""
    seconds = max(0, ms) / _MS_PER_S
    if seconds < _S_PER_MIN:
        return f"{seconds:.1f}s"
    minutes = int(seconds) // _S_PER_MIN
    if minutes < _MIN_PER_H:
        return f"{minutes}m{int(seconds) % _S_PER_MIN:02d}s"
    return f"{minutes // _MIN_PER_H}h{minutes % _MIN_PER_H:02d}m"


def clock_of(at_ms: str | int) -> str:
    """Return the local time of day of a Unix time."""
    return f"{datetime.fromtimestamp(int(at_ms) / _MS_PER_S, UTC).astimezone():%H:%M:%S}"
