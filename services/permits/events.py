"""What happened, told to whoever counts it. The library itself knows no metrics system."""

from typing import Literal, Protocol

Cause = Literal["lost_write", "lost_epoch", "reaped_late"]


class Listener(Protocol):
    """Told of everything worth a metric.

    Calls come from the event loop and from the ticker's thread: they must be thread-safe, quick
    and must not raise.
    """

    def admission(self, fleet: str, outcome: str) -> None:
        """One acquire was answered: "granted" or a refusal code."""

    def script(self, verb: str, seconds: float) -> None:
        """One script call took this long, the network included."""

    def tick(self, fleet: str, lateness_s: float) -> None:
        """One tick was acknowledged, this much later than it was due."""

    def outbox(self, age_s: float) -> None:
        """The oldest entry of the outbox is this old; 0 when it is empty."""

    def reasserted(self, fleet: str, cause: Cause, count: int) -> None:
        """Leases were missing in Redis and have been added again."""

    def redis_up(self, *, up: bool) -> None:
        """Redis answered, or did not."""


class Silent:
    """A Listener for those who do not count."""

    def admission(self, fleet: str, outcome: str) -> None:
        """Ignore."""

    def script(self, verb: str, seconds: float) -> None:
        """Ignore."""

    def tick(self, fleet: str, lateness_s: float) -> None:
        """Ignore."""

    def outbox(self, age_s: float) -> None:
        """Ignore."""

    def reasserted(self, fleet: str, cause: Cause, count: int) -> None:
        """Ignore."""

    def redis_up(self, *, up: bool) -> None:
        """Ignore."""
