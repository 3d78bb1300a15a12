"""Permits without a gate, for tests that need no Redis."""

from __future__ import annotations

from services.permits.model import Demand, Granted, Stamp
from services.permits.permit import Permit


class Keeps:
    """A permit's keeper that keeps."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def freed(self, permit: Permit) -> None:
        self.seen.append(f"freed {permit.id}")

    def downgraded(self, permit: Permit) -> None:
        self.seen.append(f"downgraded {permit.id}")


def permit(number: int, fleet: str = "f", keeper: Keeps | None = None) -> Permit:
    demand = Demand(fleet=fleet, tenant="acme", request_id=f"r{number}", engines=("e1",))
    made = Permit(f"g1~a1~{number}", demand, keeper or Keeps())
    made.granted(Granted(class_="cold", engine="e1", stamp=Stamp("e", number)), deadline_s=0)
    return made
