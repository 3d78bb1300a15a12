"""Counters and histograms that every request touches: cheap to count in, written out by Prometheus's client.

Its own take a lock for each number and look for the bucket step by step, which costs a request more than its
log line. Here nothing is locked: one thread counts, or others who count hold a lock of theirs.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily


class Count:
    """One series of a counter."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        """Begin at 0."""
        self.value = 0

    def inc(self) -> None:
        """Count one more."""
        self.value += 1


class Counts:
    """A counter with labels, as a collector of Prometheus's client."""

    def __init__(self, name: str, text: str, labels: Sequence[str], registry: CollectorRegistry) -> None:
        """Appear in the registry's output from now on."""
        self._about = name, text, tuple(labels)
        self._series: dict[tuple[str, ...], Count] = {}
        registry.register(self)

    def labels(self, *values: str) -> Count:
        """Return the series with these labels' values, which is shown from now on."""
        return self._series.setdefault(values, Count())

    def describe(self) -> Iterator[CounterMetricFamily]:
        """Return what is collected, without its series."""
        name, text, labels = self._about
        yield CounterMetricFamily(name, text, labels=labels)

    def collect(self) -> Iterator[CounterMetricFamily]:
        """Return all series as they are now. May be called in any thread: none of it can be half written."""
        for family in self.describe():
            for values, count in tuple(self._series.items()):
                family.add_metric(values, count.value)
            yield family


class Spans:
    """One series of a histogram of durations."""

    __slots__ = ("_bounds", "_counts", "_sum_s")

    def __init__(self, bounds: Sequence[float]) -> None:
        """`bounds` are the buckets' upper ones, ascending, without the infinite one."""
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum_s = 0.0

    def observe(self, seconds: float) -> None:
        """Take in one duration."""
        self._counts[bisect_left(self._bounds, seconds)] += 1
        self._sum_s += seconds

    def read(self) -> tuple[list[tuple[str, float]], float]:
        """Return each bucket's bound and how many durations are within it, and the sum of all."""
        within, buckets = 0, []
        for bound, count in zip((*map(float, self._bounds), "+Inf"), tuple(self._counts), strict=True):
            within += count
            buckets.append((str(bound), float(within)))
        return buckets, self._sum_s


class Histogram:
    """A histogram of durations with one label, as a collector of Prometheus's client."""

    def __init__(
        self, name: str, text: str, label: str, registry: CollectorRegistry, *, buckets: Sequence[float]
    ) -> None:
        """Appear in the registry's output from now on."""
        self._about = name, text, (label,)
        self._bounds = tuple(buckets)
        self._series: dict[str, Spans] = {}
        registry.register(self)

    def labels(self, value: str) -> Spans:
        """Return the series with this label's value, which is shown from now on."""
        return self._series.setdefault(value, Spans(self._bounds))

    def describe(self) -> Iterator[HistogramMetricFamily]:
        """Return what is collected, without its series."""
        name, text, labels = self._about
        yield HistogramMetricFamily(name, text, labels=labels)

    def collect(self) -> Iterator[HistogramMetricFamily]:
        """Return all series as they are now; as with Prometheus's own, a sum may be one duration ahead."""
        for family in self.describe():
            for value, spans in tuple(self._series.items()):
                family.add_metric((value,), *spans.read())
            yield family
