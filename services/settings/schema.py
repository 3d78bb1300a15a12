"""The one schema of the configuration: every section, its defaults, its bounds, and how they relate.

Values are milliseconds where the name ends in `_ms`. All models are frozen and refuse unknown keys.
Nothing here reads a file or the environment: load.py does. Building `Settings` in code is fine for tests.
"""

from typing import Annotated, Any, Final, Literal, Self
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    field_validator,
    model_validator,
)
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from services.permits.names import check_name
from services.settings.urls import engine_url, redis_url

# A lease or a budget beyond these is a slip of the keyboard, and the scripts' arithmetic stays exact.
LEASE_MS_MAX: Final = 3_600_000
BUDGET_MS_MAX: Final = 86_400_000
LIMIT_MAX: Final = 1_000_000

# A gateway may miss this many ticks in a row before a lease of its own can end.
TICKS_PER_TTL: Final = 6
# The first lease must outlive two ticks and the start of a request.
TICKS_PER_PROVISIONAL: Final = 2
PROVISIONAL_SLACK_MS: Final = 1_000
# A request that begins just after a loss is told of by the tick after next.
TICKS_PER_LEARNING: Final = 2


def _no_bool(value: object) -> object:
    # TOML's `true` would pass as the number 1.
    if isinstance(value, bool):
        raise ValueError("a number is needed")  # noqa: TRY004  (pydantic turns only ValueError into a finding)
    return value


def _word(value: str) -> str:
    if any(not ("!" <= char <= "~") for char in value):
        raise ValueError("printable ASCII without spaces is needed; it travels in a header")
    return value


Whole = Annotated[int, BeforeValidator(_no_bool)]
LeaseMs = Annotated[Whole, Field(ge=1, le=LEASE_MS_MAX)]
BudgetMs = Annotated[Whole, Field(ge=1, le=BUDGET_MS_MAX)]
BudgetOrNoneMs = Annotated[Whole, Field(ge=0, le=BUDGET_MS_MAX)]  # 0: no waiting at all
Limit = Annotated[Whole, Field(ge=0, le=LIMIT_MAX)]  # 0 closes the pool and touches nothing live
Port = Annotated[Whole, Field(ge=0, le=65_535)]  # 0: any free port
Secret = Annotated[str, AfterValidator(_word), Field(max_length=4_096, repr=False)]
FleetName = Annotated[str, AfterValidator(lambda name: check_name("fleet", name))]
TenantName = Annotated[str, AfterValidator(lambda name: check_name("tenant", name))]
ModelName = Annotated[str, StringConstraints(min_length=1, max_length=256, pattern=r"^[^\x00-\x1f\x7f]+$")]
KeyHash = Annotated[str, StringConstraints(to_lower=True, pattern=r"^[0-9a-fA-F]{64}$")]


class Section(BaseModel):
    """What all sections share."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)


class Redis(Section):
    """Where the state of all fleets lives; `prefix` starts every key."""

    url: Annotated[str, AfterValidator(redis_url), Field(repr=False)] = "redis://127.0.0.1:6379/0"
    prefix: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._-]{1,64}$")] = "tenure"


class Lease(Section):
    """How long leases live and how often they are renewed."""

    ttl_ms: LeaseMs = 15_000
    tick_ms: LeaseMs = 2_500
    provisional_ms: LeaseMs = 6_000
    learning_ms: LeaseMs = 6_000

    @model_validator(mode="after")
    def _relations(self) -> Self:
        ttl_least_ms = TICKS_PER_TTL * self.tick_ms
        if self.ttl_ms < ttl_least_ms:
            raise ValueError(
                f"ttl_ms is {self.ttl_ms}, less than {TICKS_PER_TTL} ticks of {self.tick_ms} ms; "
                f"set ttl_ms to {ttl_least_ms} or more, or tick_ms to {self.ttl_ms // TICKS_PER_TTL} or less"
            )
        provisional_least_ms = TICKS_PER_PROVISIONAL * self.tick_ms + PROVISIONAL_SLACK_MS
        if self.provisional_ms < provisional_least_ms:
            raise ValueError(
                f"provisional_ms is {self.provisional_ms}, less than {TICKS_PER_PROVISIONAL} ticks of "
                f"{self.tick_ms} ms and {PROVISIONAL_SLACK_MS} ms; set it to {provisional_least_ms} or more"
            )
        learning_least_ms = TICKS_PER_LEARNING * self.tick_ms
        if self.learning_ms < learning_least_ms:
            raise ValueError(
                f"learning_ms is {self.learning_ms}, less than {TICKS_PER_LEARNING} ticks of {self.tick_ms} "
                f"ms: holders could not re-assert in time; set it to {learning_least_ms} or more"
            )
        return self


class Budgets(Section):
    """How long each part of a request may take; a fleet may lay its own over these."""

    queue_ms: BudgetOrNoneMs = 20_000
    connect_ms: BudgetMs = 5_000
    first_token_ms: BudgetMs = 60_000
    idle_ms: BudgetMs = 60_000
    stall_ms: BudgetMs = 30_000
    total_ms: BudgetMs = 600_000
    drain_ms: BudgetOrNoneMs = 30_000


class Gateway(Section):
    """One replica. An empty `name` lets the process choose its own."""

    host: Annotated[str, StringConstraints(min_length=1, max_length=255, pattern=r"^\S+$")] = "127.0.0.1"
    port: Port = 8700
    max_body_bytes: Annotated[Whole, Field(ge=1, le=2**31)] = 10_485_760
    workers: Annotated[Whole, Field(ge=1, le=256)] = 1
    name: Annotated[str, AfterValidator(lambda name: check_name("gateway", name) if name else name)] = ""


class Reaper(Section):
    """The reaper's period and its health port."""

    every_ms: Annotated[Whole, Field(ge=10, le=LEASE_MS_MAX)] = 1_000
    port: Port = 8790


class Admin(Section):
    """The admin API's token; empty: every admin call is refused."""

    token: Secret = ""


class Engine(Section):
    """One engine. `name` defaults to host:port, `slots` is what it computes at the same time."""

    name: str = ""
    url: Annotated[str, AfterValidator(engine_url)]
    kind: Literal["openai", "llama.cpp", "vllm", "sglang"] = "openai"
    slots: Annotated[Whole, Field(ge=1, le=LIMIT_MAX)] = 8
    api_key: Secret = ""

    @model_validator(mode="before")
    @classmethod
    def _name_from_url(cls, values: Any) -> Any:  # noqa: ANN401  (pydantic passes whatever was written)
        if not isinstance(values, dict) or values.get("name"):
            return values
        return {**values, "name": _host_and_port(str(values.get("url", "")))}

    @model_validator(mode="after")
    def _legal_name(self) -> Self:
        # host:port comes from a checked URL; a name that somebody chose keeps to the rule for names.
        if self.name != _host_and_port(self.url):
            check_name("engine", self.name)
        return self


def _host_and_port(url: str) -> str:
    try:
        parts = urlsplit(url)
        return f"{parts.hostname}:{parts.port or (443 if parts.scheme == 'https' else 80)}"
    except ValueError:
        return ""  # the url's own check says what is wrong


class Fleet(Section):
    """Engines that serve the same models behind one set of limits.

    `total` defaults to the sum of the engines' slots, `cold` to a quarter of it but at least one.
    """

    models: Annotated[tuple[ModelName, ...], Field(min_length=1)]
    engines: Annotated[tuple[Engine, ...], Field(min_length=1)]
    total: Limit = Field(default_factory=lambda done: sum(e.slots for e in done.get("engines", ())))
    cold: Limit = Field(
        default_factory=lambda done: min(done.get("total", 1), max(1, done.get("total", 1) // 4))
    )
    tenant_default: Limit = 4
    line_max: Limit = 200
    line_max_per_tenant: Limit = 50
    cold_until: Literal["end", "first_token"] = "end"
    redis_loss: Literal["share", "closed"] = "share"
    lost_lease: Literal["run_on", "stop"] = "run_on"
    release_when: Literal["closed", "engine_idle"] = "closed"
    budgets: Budgets = Budgets()

    @field_validator("release_when")
    @classmethod
    def _only_what_is_done(cls, value: str) -> str:
        if value != "closed":
            raise ValueError(f'"{value}" is not supported in this release; leave it out, or set "closed"')
        return value

    @model_validator(mode="after")
    def _relations(self) -> Self:
        if self.cold > self.total:
            raise ValueError(
                f"cold is {self.cold}, more than total ({self.total}); set cold to {self.total} or less"
            )
        names = [engine.name for engine in self.engines]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"engines has two named {name}; give each engine a name of its own")
        return self


class Tenant(Section):
    """One tenant: SHA-256 of its keys in hex, its weight in the line, its quota per fleet."""

    keys_sha256: tuple[KeyHash, ...] = ()
    weight: Annotated[Whole, Field(ge=1, le=1_000)] = 1
    quotas: dict[str, Limit] = {}


class Settings(BaseSettings):
    """The whole configuration of one process, checked. Construct it with `services.settings.load`."""

    model_config = SettingsConfigDict(frozen=True, extra="forbid", validate_default=True)

    redis: Redis = Redis()
    lease: Lease = Lease()
    budgets: Budgets = Budgets()
    gateway: Gateway = Gateway()
    reaper: Reaper = Reaper()
    admin: Admin = Admin()
    fleets: dict[FleetName, Fleet] = {}
    tenants: dict[TenantName, Tenant] = {}

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003  (this signature is pydantic's)
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Read nothing from the environment behind the caller's back; load.py adds its sources."""
        return (init_settings,)

    @model_validator(mode="before")
    @classmethod
    def _lay_budgets_over(cls, values: Any) -> Any:  # noqa: ANN401  (pydantic passes whatever was written)
        """Give each fleet the global budgets with its own laid over them."""
        fleets, common = values.get("fleets"), values.get("budgets", {})
        if isinstance(common, Budgets):
            common = common.model_dump()
        if not isinstance(fleets, dict) or not isinstance(common, dict):
            return values
        return {**values, "fleets": {name: _with_budgets(fleet, common) for name, fleet in fleets.items()}}

    @model_validator(mode="after")
    def _relations(self) -> Self:
        self._one_fleet_per_model()
        self._one_tenant_per_key()
        for tenant_name, tenant in self.tenants.items():
            for fleet_name in tenant.quotas:
                if fleet_name not in self.fleets:
                    known = ", ".join(sorted(self.fleets)) or "none"
                    raise ValueError(
                        f"tenants.{tenant_name}.quotas: there is no fleet {fleet_name[:64]!r}; "
                        f"the fleets are: {known}"
                    )
        return self

    def _one_fleet_per_model(self) -> None:
        owner: dict[str, str] = {}
        for fleet_name, fleet in self.fleets.items():
            for model in fleet.models:
                first = owner.setdefault(model, fleet_name)
                if first != fleet_name:
                    raise ValueError(
                        f"fleets.{fleet_name}.models names {model!r}, which fleets.{first}.models has; "
                        "a model belongs to one fleet"
                    )

    def _one_tenant_per_key(self) -> None:
        owner: dict[str, str] = {}
        for tenant_name, tenant in self.tenants.items():
            for digest in tenant.keys_sha256:
                first = owner.setdefault(digest, tenant_name)
                if first != tenant_name:
                    raise ValueError(
                        f"tenants.{tenant_name}.keys_sha256 has {digest[:12]}..., which "
                        f"tenants.{first}.keys_sha256 has; a key belongs to one tenant"
                    )


def _with_budgets(fleet: object, common: dict[str, Any]) -> object:
    if not isinstance(fleet, dict) or not isinstance(fleet.get("budgets", {}), dict):
        return fleet  # a Fleet made in code, or something that its own check refuses
    return {**fleet, "budgets": {**common, **fleet.get("budgets", {})}}
