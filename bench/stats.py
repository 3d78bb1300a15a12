"""Figures of repeated measurements."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True, slots=True)
class Spread:
    """The median of some rounds, and their lowest and highest figure."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, figures: Sequence[float]) -> Self:
        """Summarise the figures of at least one round."""
        return cls(statistics.median(figures), min(figures), max(figures))

    def text(self, digits: int = 0) -> str:
        """Return `median (low-high)`, or the figure alone where all rounds were alike."""
        median, low, high = (f"{figure:.{digits}f}" for figure in (self.median, self.low, self.high))
        return median if low == high else f"{median} ({low}-{high})"


def quantile(figures: Sequence[float], share: float) -> float:
    """Return the smallest figure that at least `share` (0 to 1) of all do not exceed; ValueError for none."""
    if not figures:
        raise ValueError("no figures, so there is no quantile")
    return sorted(figures)[max(0, math.ceil(share * len(figures)) - 1)]
