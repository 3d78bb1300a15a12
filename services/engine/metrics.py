"""The engine's metrics: read from the room when they are asked for, in a registry of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from services.engine.room import End

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client.metrics_core import Metric

    from services.engine.room import Room

_CANCEL_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)


class Meters:
    """What the engine measures. `cancelled` hears the seconds from a hang-up to the guard's close."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._cancel = Histogram(
            "tenure_engine_cancel_seconds",
            "From the client's hang-up to its slot and pages being free again.",
            registry=self.registry,
            buckets=_CANCEL_BUCKETS_S,
        )

    def cancelled(self, seconds: float) -> None:
        self._cancel.observe(seconds)

    def watch(self, room: Room) -> None:
        """Report a room's counts from now on. Called once."""
        self.registry.register(_RoomCollector(room))

    def text(self) -> bytes:
        """Prometheus's text format."""
        return generate_latest(self.registry)


class _RoomCollector(Collector):
    def __init__(self, room: Room) -> None:
        self._room = room

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        room, cache = self._room, self._room.cache
        gauges = {
            "pages": (cache.size, "Size of the cache."),
            "pages_in_use": (cache.pages_in_use, "Pages in the chain of a live request."),
            "pages_cached": (cache.pages_idle, "Pages nobody uses that hold a known prefix."),
            "pages_leaked": (room.leaked_pages, "Pages no live request accounts for; 0 when healthy."),
            "prefix_hit_rate": (hit_rate(room), "Share of the pages looked for that were in the cache."),
            "requests_open": (room.open, "Requests received and not finished."),
            "requests_open_max": (room.max_open, "Most requests open at the same time."),
            "requests_running": (room.running, "Requests that compute."),
            "requests_running_max": (room.max_running, "Most requests computing at the same time."),
            "requests_queued": (room.queued, "Requests that wait for a slot or for pages."),
            "slots": (room.slots, "Requests that may compute at the same time."),
        }
        for name, (value, text) in gauges.items():
            yield GaugeMetricFamily(f"tenure_engine_{name}", text, value)
        counters = {
            "prefix_hits": (cache.hits, "Pages found in the cache."),
            "prefix_lookups": (cache.lookups, "Full prompt pages looked for in the cache."),
            "generated_tokens": (room.generated_tokens, "Tokens generated."),
        }
        for name, (value, text) in counters.items():
            yield CounterMetricFamily(f"tenure_engine_{name}", text, value)
        ends = CounterMetricFamily("tenure_engine_requests", "Requests that ended, by how.", labels=["end"])
        for end in End:
            ends.add_metric([end.value], room.ends[end])
        yield ends


def hit_rate(room: Room) -> float:
    """Share of the prompt pages looked for that were found; 0 before the first."""
    return room.cache.hits / room.cache.lookups if room.cache.lookups else 0.0
