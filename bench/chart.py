"""Bar charts as SVG, written by hand: small files that a diff can show."""

import math
from collections.abc import Sequence
from html import escape
from typing import Final

from bench.stats import Spread

_WIDTH: Final = 720
_LEFT: Final = 210
_RIGHT: Final = 130
_BAR: Final = 18
_ROW: Final = 28
_TOP: Final = 40
_FONT: Final = 'font-family="system-ui, sans-serif" font-size="13"'
# From where the largest is so many times the smallest, lengths are logarithmic.
_LOG_FROM: Final = 60


def bars(title: str, figures: Sequence[tuple[str, Spread]], *, digits: int, ours: str) -> str:
    """Return a chart with one bar each, its median at its end and a whisker from the lowest to the highest.

    Bars begin at 0, or in a logarithmic chart at a power of ten; then the title says so. `ours` stands out.
    """
    highest = max(spread.high for _, spread in figures)
    lowest = min(spread.low for _, spread in figures)
    is_log = lowest > 0 and highest / lowest > _LOG_FROM
    start = 10 ** math.floor(math.log10(lowest)) if is_log else 0.0
    room = _WIDTH - _LEFT - _RIGHT

    def at(value: float) -> float:
        if is_log:
            return _LEFT + room * math.log(value / start) / math.log(highest / start)
        return _LEFT + room * max(0.0, value) / highest if highest > 0 else _LEFT

    height = _TOP + _ROW * len(figures) + 8
    heading = f"{title} (logarithmic from {start:g})" if is_log else title
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" {_FONT}>',
        f'<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<text x="12" y="24" font-weight="bold">{escape(heading)}</text>',
    ]
    for number, (name, spread) in enumerate(figures):
        y = _TOP + _ROW * number
        middle = y + _BAR / 2
        end = at(spread.median)
        told = f"{spread.median:,.{digits}f}"
        colour = "#2563eb" if name == ours else "#94a3b8"
        parts += [
            f'<text x="{_LEFT - 8}" y="{middle + 5:.0f}" text-anchor="end">{escape(name)}</text>',
            f'<rect x="{_LEFT}" y="{y}" width="{end - _LEFT:.1f}" height="{_BAR}" fill="{colour}"/>',
            f'<path d="M{at(spread.low):.1f} {middle}H{at(spread.high):.1f}" stroke="#0f172a"/>',
            f'<text x="{max(end, at(spread.high)) + 6:.1f}" y="{middle + 5:.0f}">{told}</text>',
        ]
    return "\n".join([*parts, "</svg>\n"])
