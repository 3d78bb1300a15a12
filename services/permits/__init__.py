"""Leased permits in Redis: the library that every Tenure process shares.

No web framework, no environment, no globals. `open_gate` is the way in for those who hold permits,
`Store` for those who look at them.
"""

from services.permits.errors import PermitError, Refused, Unavailable, Unusable
from services.permits.gate import Gate, open_gate
from services.permits.model import Demand, FleetPolicy, LeaseTimes
from services.permits.permit import Permit
from services.permits.store import Store

__all__ = [
    "Demand",
    "FleetPolicy",
    "Gate",
    "LeaseTimes",
    "Permit",
    "PermitError",
    "Refused",
    "Store",
    "Unavailable",
    "Unusable",
    "open_gate",
]
