"""What the reaper says: one JSON line per reclaimed lease, per repair and per change of fortune."""

from typing import TextIO

import structlog

from services.permits.model import Reclaim
from services.reaper.metrics import Metrics
from services.reaper.sweep import FleetPass


def json_log(stream: TextIO) -> structlog.typing.FilteringBoundLogger:
    """Return a logger that writes one JSON object per line to `stream`."""
    log: structlog.typing.FilteringBoundLogger = structlog.wrap_logger(
        structlog.PrintLogger(stream),
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(0),
    )
    return log


class Report:
    """The reporter of a sweep: tells the log and the metrics as things happen."""

    def __init__(self, log: structlog.typing.FilteringBoundLogger, metrics: Metrics) -> None:
        """Report to these two."""
        self._log = log
        self._metrics = metrics

    def reclaimed(self, fleet: str, lease: Reclaim) -> None:
        """Name what was taken from whom, and how old it was."""
        self._log.warning(
            "reclaimed",
            fleet=fleet,
            lease=lease.lease,
            tenant=lease.tenant,
            holder=lease.holder,
            **{"class": lease.class_},
            engine=lease.engine,
            age_ms=lease.age_ms,
        )

    def fleet_done(self, done: FleetPass) -> None:
        """Count; say a word only when something disagreed."""
        self._metrics.fleet(done.fleet, reclaimed=len(done.reclaimed), drift=done.drift)
        if done.drift:
            self._log.warning("repaired", fleet=done.fleet, drift=done.drift)
