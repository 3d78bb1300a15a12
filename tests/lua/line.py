"""The line as tests use it: gateways with a session, those who join, and who is told what."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from services.permits.replies import wake_ups
from tests.lua.fleet import TIMES, RawFleet

if TYPE_CHECKING:
    from collections.abc import Mapping

    import redis

    from services.permits.model import LeaseTimes

G1: Final = "g1~a1"
G2: Final = "g2~b2"
PATIENT_MS: Final = 900_000
WIDE: Final = {"total": 1, "cold": 100, "tenant_default": 100, "line_max": 5000, "line_max_per_tenant": 5000}


class Line(RawFleet):
    """A fleet with two gateways that live. A lease is named after its gateway, as everywhere."""

    def __init__(self, client: redis.Redis, *, times: LeaseTimes = TIMES, **limits: int) -> None:
        super().__init__(client, times=times)
        self.tenant_of: dict[str, str] = {}
        self.numbers = 0
        self.ears = self.client.pubsub()
        self.ears.ssubscribe(self.keys.wake(G1), self.keys.wake(G2))
        for _ in range(2):
            self.ears.get_message(timeout=5)
        self.open(**{**WIDE, **limits})
        for holder in (G1, G2):
            self.tick(holder=holder)

    def ask(
        self,
        tenant: str = "acme",
        *,
        at: str = G1,
        patience_ms: int = PATIENT_MS,
        lease: str = "",
        **more: Any,
    ) -> tuple[str, list[Any]]:
        """Ask for a permit under a new id, and return the id and the reply."""
        self.numbers += 1
        lease = lease or f"{at}~{self.numbers}"
        self.tenant_of[lease] = tenant
        return lease, self.acquire(lease, tenant, holder=at, patience_ms=patience_ms, **more)

    def run_one(self, tenant: str = "acme", **more: Any) -> str:
        """Take a permit that must be granted."""
        lease, reply = self.ask(tenant, **more)
        assert reply[0] == "GRANTED", reply
        return lease

    def join(self, tenant: str = "acme", **more: Any) -> str:
        """Join the line; nothing may be free."""
        lease, reply = self.ask(tenant, **more)
        assert reply[0] == "QUEUED", reply
        return lease

    def end(self, lease: str, engine: str = "") -> list[Any]:
        """Release, or leave the line."""
        return self.release(lease, tenant=self.tenant_of[lease], engine=engine)

    @property
    def waiting(self) -> Mapping[str, str]:
        """Lease -> record of all who stand in line."""
        found: dict[str, str] = self.client.hgetall(self.keys.waiting)
        return found

    def heard(self) -> list[str]:
        """Return `gateway lease` of each grant that was published since the last look."""
        told = []
        for gateway, text in self.messages():
            told += [f"{gateway} {lease}" for lease, _ in wake_ups(text)]
        return told

    def messages(self) -> list[tuple[str, str]]:
        """Return (gateway, text) of all that was published since the last look."""
        found = []
        while (message := self.ears.get_message(timeout=0.05)) is not None:
            found.append((message["channel"].rpartition(":")[2], message["data"]))
        return found

    def no_line(self) -> bool:
        """Say whether nothing of a line is left, under any key."""
        return not list(self.client.scan_iter("*:line:*"))
