"""The bodies of the admin API. Requests refuse what they do not know; answers have the contract's shapes."""

from typing import Annotated, Any, Final, Literal, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints

from services.permits.admin_checks import LIMIT_MAX, WEIGHT_MAX

_ENGINE_FIELD: Final = r"^engine:[A-Za-z0-9._:-]{1,255}$"


def _whole(least: int, most: int) -> BeforeValidator:
    def check(value: object) -> object:
        # JSON's true is no number, and null and "8" are not either.
        number = not isinstance(value, bool) and isinstance(value, int | float) and value == value // 1
        if not number or not least <= cast("float", value) <= most:
            raise ValueError(f"must be a whole number from {least} to {most}")
        return value

    return BeforeValidator(check)


Limit = Annotated[int, Field(ge=0, le=LIMIT_MAX), _whole(0, LIMIT_MAX)]
Weight = Annotated[int, Field(ge=1, le=WEIGHT_MAX), _whole(1, WEIGHT_MAX)]
PoolKind = Literal["total", "cold", "tenant", "engine"]
Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._-]{1,64}$")]


def _only_what_was_sent(schema: dict[str, Any]) -> None:
    """Fields that may be left out have no default and are not nullable: what is left out stays as it is."""
    for field in schema["properties"].values():
        field.pop("default", None)


def _limits_schema(schema: dict[str, Any]) -> None:
    _only_what_was_sent(schema)
    schema["patternProperties"] = {_ENGINE_FIELD: {"type": "integer", "minimum": 0, "maximum": LIMIT_MAX}}
    schema["additionalProperties"] = False


class LimitChanges(BaseModel):
    """Limits to set at once, on every replica. What is left out stays; `engine:NAME` limits one engine.

    Lowering a limit below its use cuts nobody: nothing new is admitted until it is below. 0 closes a pool.
    `shadow` lists the kinds of pools whose limits are only watched: over them is admitted, counted and shown.
    """

    model_config = ConfigDict(extra="allow", json_schema_extra=_limits_schema)
    __pydantic_extra__: dict[str, Limit]

    total: Limit = Field(default=0, examples=[8])
    cold: Limit = Field(default=0, examples=[2])
    tenant_default: Limit = Field(default=0, examples=[4])
    line_max: Limit = Field(default=0, examples=[200])
    line_max_per_tenant: Limit = Field(default=0, examples=[50])
    shadow: list[PoolKind] = Field(default=[], examples=[["cold"]])


class TenantChanges(BaseModel):
    """What of a tenant to set. What is left out stays; a quota of null goes back to `tenant_default`."""

    model_config = ConfigDict(extra="forbid", json_schema_extra=_only_what_was_sent)

    weight: Weight = Field(default=1, description="Its share of places against that of others in line")
    quotas: dict[Name, Limit | None] = Field(
        default={}, examples=[{"demo": 3}], json_schema_extra={"additionalProperties": False}
    )


class Problem(BaseModel):
    """What went wrong, in one sentence."""

    message: str
    type: str
    param: None = None
    code: str


class ErrorEnvelope(BaseModel):
    """OpenAI's error object."""

    error: Problem


class Pool(BaseModel):
    """One pool: how many places it has and how many are taken."""

    limit: int
    in_use: int


class TenantPool(Pool):
    """The same for a tenant, with those of its requests that stand in line."""

    waiting: int


class Pools(BaseModel):
    """All pools of a fleet."""

    total: Pool
    cold: Pool
    tenants: dict[str, TenantPool]
    engines: dict[str, Pool]


class FleetSettings(BaseModel):
    """Limits that are no pool of their own."""

    tenant_default: int
    line_max: int
    line_max_per_tenant: int


class FleetAnswer(BaseModel):
    """One fleet at one instant."""

    fleet: str
    epoch: str
    learning_ms: int
    pools: Pools
    waiting: int
    over_commit: int
    gateways: int
    settings: FleetSettings
    shadow: list[str]


class FleetsAnswer(BaseModel):
    """The names of all fleets."""

    fleets: list[str]


class Lease(BaseModel):
    """One live lease: who holds what, since when, for how long."""

    lease: str
    request_id: str
    tenant: str
    class_: str = Field(alias="class")
    engine: str
    holder: str
    phase: str
    acquired_at: int = Field(description="Unix ms")
    age_ms: int
    expires_in_ms: int


class LeasesAnswer(BaseModel):
    """A page of leases; `cursor` is "" on the last one."""

    leases: list[Lease]
    cursor: str


class LeaseEnding(BaseModel):
    """Its gateway has been told and cuts the stream within a second."""

    lease: str
    reason: Literal["revoked"] = "revoked"


class Waiter(BaseModel):
    """One who stands in line."""

    lease: str
    request_id: str
    tenant: str
    class_: str = Field(alias="class")
    holder: str
    waited_ms: int
    deadline_in_ms: int


class LineAnswer(BaseModel):
    """Those who stand in line, in its order."""

    line: list[Waiter]


class Key(BaseModel):
    """One key in force. `last4` and `created_at` (Unix ms) are "" and 0 for keys of a config file."""

    key_id: str
    last4: str
    created_at: int


class TenantAnswer(BaseModel):
    """One tenant; `quotas` has the fleets in which it has a limit of its own."""

    tenant: str
    weight: int
    quotas: dict[str, int]
    keys: list[Key]


class TenantsAnswer(BaseModel):
    """The names of all tenants."""

    tenants: list[str]


class KeyAnswer(BaseModel):
    """A new key. It is shown this once: only its SHA-256 is kept."""

    tenant: str
    key: str
    key_id: str


class GatewayProcess(BaseModel):
    """One gateway process that still ticks."""

    gateway: str
    holder: str
    fleets: list[str]
    live: int
    draining: bool
    session_expires_in_ms: int


class GatewaysAnswer(BaseModel):
    """All of them."""

    gateways: list[GatewayProcess]


class DrainAnswer(BaseModel):
    """The processes that were told to finish and stop."""

    gateway: str
    holders: list[str]


class Event(BaseModel):
    """One thing that happened; which further fields there are depends on its kind."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, str]

    id: str
    at: int = Field(description="Unix ms")
    fleet: str = Field(description='"" for tenants and keys')
    kind: str


class EventsAnswer(BaseModel):
    """The oldest events after the one asked for; ask again with `after`."""

    events: list[Event]
    after: str


class StopAnswer(BaseModel):
    """The request's gateway has been told and cuts its stream within a second."""

    request_id: str
    reason: Literal["user_stop"] = "user_stop"
