"""The reaper's figures for Prometheus, in a registry of their own."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from services.permits.events import Silent

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)


class Metrics(Silent):
    """Counts passes and what they did. Labels are fleets alone, so they are bounded by the config."""

    def __init__(self, *, last_pass_age_s: Callable[[], float]) -> None:
        """Register every metric; `last_pass_age_s` is asked at each scrape."""
        self._registry = CollectorRegistry()
        self._reclaimed = Counter(
            "tenure_reclaimed_total",
            "Leases taken back from holders that stopped renewing them.",
            ["fleet"],
            registry=self._registry,
        )
        self._drift = Gauge(
            "tenure_drift",
            "Records and sets that disagreed in the last pass; 0 when healthy.",
            ["fleet"],
            registry=self._registry,
        )
        self._repaired = Counter(
            "tenure_drift_repaired_total",
            "Records and sets that disagreed and were repaired, over all passes.",
            ["fleet"],
            registry=self._registry,
        )
        self._redis_up = Gauge(
            "tenure_redis_up", "1 when the last pass reached Redis.", registry=self._registry
        )
        self._pass_seconds = Histogram(
            "tenure_reaper_pass_seconds",
            "How long one pass over all fleets took.",
            buckets=_SECONDS,
            registry=self._registry,
        )
        self._script_seconds = Histogram(
            "tenure_script_seconds",
            "How long one script call took, the network included.",
            ["verb"],
            buckets=_SECONDS,
            registry=self._registry,
        )
        age = Gauge(
            "tenure_reaper_last_pass_age_seconds",
            "Time since a pass last succeeded.",
            registry=self._registry,
        )
        age.set_function(last_pass_age_s)

    def fleet(self, fleet: str, *, reclaimed: int, drift: int) -> None:
        """Record what one pass found in one fleet."""
        self._reclaimed.labels(fleet).inc(reclaimed)
        self._repaired.labels(fleet).inc(drift)
        self._drift.labels(fleet).set(drift)

    def passed(self, seconds: float) -> None:
        """Record a pass that reached the end."""
        self._pass_seconds.observe(seconds)
        self._redis_up.set(1)

    def failed(self) -> None:
        """Record a pass that could not be finished."""
        self._redis_up.set(0)

    def script(self, verb: str, seconds: float) -> None:
        """Record one script call; the store calls this."""
        self._script_seconds.labels(verb).observe(seconds)

    def text(self) -> bytes:
        """Return the exposition format."""
        return generate_latest(self._registry)
