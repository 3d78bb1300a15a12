"""What is counted, for Prometheus, in a registry of its own.

Labels are bounded: fleets come from the file, tenants are capped, and nothing a caller writes is a label.
"""

import threading
from functools import cache, partial
from typing import Final, get_args

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, disable_created_metrics, generate_latest

from services.gateway.refusals import Reason
from services.gateway.tallies import Count, Counts, Histogram
from services.permits import model
from services.permits.events import Cause
from services.permits.scripts import load

TENANTS_MAX: Final = 100
OTHER: Final = "other"
_SHORT_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
_LONG_S: Final = (0.005, 0.025, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300, 600)
_SCRIPT_S: Final = (0.0002, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 1)


class FleetFigures:
    """One fleet's children of the metrics that every request touches: a look-up costs more than a count."""

    def __init__(self, metrics: "Metrics", fleet: str) -> None:
        """Show every end reason from the start, at 0, so that a rate can be taken of the first one."""
        self.queue_s = metrics.queue_s.labels(fleet)
        self.prefill_s = metrics.prefill_s.labels(fleet)
        self.decode_s = metrics.decode_s.labels(fleet)
        self.release_s = metrics.release_s.labels(fleet)
        self.ends: dict[Reason, Count] = {
            reason: metrics.ends.labels(fleet, reason) for reason in get_args(Reason)
        }
        self.admission = cache(partial(metrics.admissions.labels, fleet))


class Metrics:
    """All figures of one gateway; also the permit library's Listener."""

    def __init__(self) -> None:
        """Make every metric once, with its labels."""
        disable_created_metrics()  # type: ignore[no-untyped-call]  # a second series beside each counter, which nobody reads
        # For what both the event loop and the ticker's thread count; all else belongs to the loop.
        self._lock = threading.Lock()
        self.registry = registry = CollectorRegistry()
        self.pool_in_use = Gauge(
            "tenure_pool_in_use", "Live leases in a pool", ["fleet", "pool"], registry=registry
        )
        self.pool_limit = Gauge("tenure_pool_limit", "Limit of a pool", ["fleet", "pool"], registry=registry)
        self.tenant_in_use = Gauge(
            "tenure_tenant_in_use", "Live leases of a tenant", ["fleet", "tenant"], registry=registry
        )
        self.line_length = Gauge("tenure_line_length", "Waiters in line", ["fleet"], registry=registry)
        self.over_commit = Gauge(
            "tenure_over_commit", "Live leases above the total limit", ["fleet"], registry=registry
        )
        self.admissions = Counts(
            "tenure_admissions_total", "Answers to acquires", ["fleet", "outcome"], registry
        )
        self.ends = Counts("tenure_ends_total", "Ends of admitted requests", ["fleet", "reason"], registry)
        self.reassertions = Counter(
            "tenure_reasserted_total", "Leases added again", ["fleet", "cause"], registry=registry
        )
        self.queue_s = Histogram(
            "tenure_queue_seconds", "From request to permit", "fleet", registry, buckets=_LONG_S
        )
        self.prefill_s = Histogram(
            "tenure_prefill_seconds", "From permit to first token", "fleet", registry, buckets=_LONG_S
        )
        self.decode_s = Histogram(
            "tenure_decode_seconds", "From first to last token", "fleet", registry, buckets=_LONG_S
        )
        self.release_s = Histogram(
            "tenure_release_seconds",
            "From the end of a request to its place being free in Redis",
            "fleet",
            registry,
            buckets=_SHORT_S,
        )
        self.script_s = Histogram(
            "tenure_script_seconds", "Script calls", "verb", registry, buckets=_SCRIPT_S
        )
        self.tick_lateness_s = prometheus_client.Histogram(
            "tenure_tick_lateness_seconds", "How late ticks are", buckets=_SHORT_S, registry=registry
        )
        self.outbox_age_s = Gauge(
            "tenure_outbox_age_seconds", "Age of the oldest unflushed release", registry=registry
        )
        self.up = Gauge("tenure_redis_up", "Whether Redis answers", registry=registry)
        self._fleets: dict[str, FleetFigures] = {}
        # Every verb from the start, at 0: a scrape grows by nothing that a caller does.
        self._verbs = {verb: self.script_s.labels(verb) for verb in load()}

    def of(self, fleet: str) -> FleetFigures:
        """Return the figures of one fleet."""
        try:
            return self._fleets[fleet]
        except KeyError:
            return self._fleets.setdefault(fleet, FleetFigures(self, fleet))

    # The library's Listener.

    def admission(self, fleet: str, outcome: str) -> None:
        """See Listener."""
        count = self.of(fleet).admission(outcome)
        with self._lock:
            count.inc()

    def script(self, verb: str, seconds: float) -> None:
        """See Listener."""
        spans = self._verbs[verb]
        with self._lock:
            spans.observe(seconds)

    def tick(self, fleet: str, lateness_s: float) -> None:
        """See Listener."""
        del fleet
        self.tick_lateness_s.observe(max(0.0, lateness_s))

    def outbox(self, age_s: float) -> None:
        """See Listener."""
        self.outbox_age_s.set(age_s)

    def reasserted(self, fleet: str, cause: Cause, count: int) -> None:
        """See Listener."""
        self.reassertions.labels(fleet, cause).inc(count)

    def redis_up(self, up: bool) -> None:  # noqa: FBT001  (the Listener's signature)
        """See Listener."""
        self.up.set(1 if up else 0)

    # Pools, read when somebody scrapes.

    def pools(self, fleet: str, counts: model.Counts) -> None:
        """Show the counts of one fleet as Redis has them now."""
        limits = counts.limits
        in_use = {"total": counts.total, "cold": counts.cold}
        in_use |= {f"engine:{name}": count for name, count in counts.engines.items()}
        for pool, count in in_use.items():
            self.pool_in_use.labels(fleet, pool).set(count)
            if pool in limits:
                self.pool_limit.labels(fleet, pool).set(limits[pool])
        self.over_commit.labels(fleet).set(counts.over_commit)
        self.line_length.labels(fleet).set(counts.waiting)
        others = 0
        for position, (tenant, count) in enumerate(sorted(counts.tenants.items())):
            if position < TENANTS_MAX:
                self.tenant_in_use.labels(fleet, tenant).set(count)
            else:
                others += count
        if len(counts.tenants) > TENANTS_MAX:
            self.tenant_in_use.labels(fleet, OTHER).set(others)

    def no_pools(self) -> None:
        """Forget what pools held: with Redis away an old figure would be a lie."""
        gauges = (self.pool_in_use, self.pool_limit, self.tenant_in_use, self.over_commit, self.line_length)
        for gauge in gauges:
            gauge.clear()

    def text(self) -> bytes:
        """Everything in Prometheus's text format."""
        return generate_latest(self.registry)
