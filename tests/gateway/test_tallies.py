"""Counting cheaply, shown as Prometheus's own client would show it."""

import random

import prometheus_client
import pytest
from prometheus_client import CollectorRegistry, Counter, generate_latest
from prometheus_client.registry import DuplicateTimeseries

from services.gateway.metrics import Metrics
from services.gateway.tallies import Counts, Histogram

BOUNDS = (0.001, 0.05, 1, 2.5, 600)
ODD = 'a"b\\c\nd'


def test_the_text_is_that_of_prometheus_s_own_metrics() -> None:
    """Names, labels, buckets, order, HELP and TYPE; also on a bound, past the last one, and before any."""
    Metrics()  # which shows no time of creation
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    counter = Counter("x_total", "Xs, \\ all", ["fleet", "why"], registry=theirs)
    histogram = prometheus_client.Histogram("y_seconds", "Ys", ["fleet"], buckets=BOUNDS, registry=theirs)
    counts = Counts("x_total", "Xs, \\ all", ["fleet", "why"], ours)
    spans = Histogram("y_seconds", "Ys", "fleet", ours, buckets=BOUNDS)
    assert generate_latest(ours) == generate_latest(theirs)
    counts.labels("b", ODD)
    counter.labels("b", ODD)
    spans.labels(ODD)
    histogram.labels(ODD)
    assert generate_latest(ours) == generate_latest(theirs)
    figures = random.Random(7)
    for _ in range(500):
        fleet, why = figures.choice("ab"), figures.choice(("full", ODD))
        span_s = figures.choice((*BOUNDS, 0, 600.1, figures.expovariate(1)))
        counts.labels(fleet, why).inc()
        counter.labels(fleet, why).inc()
        spans.labels(fleet).observe(span_s)
        histogram.labels(fleet).observe(span_s)
    assert generate_latest(ours) == generate_latest(theirs)


def test_a_name_is_taken_once() -> None:
    registry = CollectorRegistry()
    Histogram("y", "Ys", "fleet", registry, buckets=BOUNDS)
    with pytest.raises(DuplicateTimeseries):
        Counts("y_count", "Xs", ["fleet"], registry)
