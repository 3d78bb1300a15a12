"""From a model's name to the fleet that serves it, and which of its engines may be tried."""

import fnmatch
import re
from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from services.gateway.budgets import Seconds
from services.gateway.refusals import NotServed, Pace
from services.permits.clock import monotonic
from services.settings import schema

# An engine that cannot be reached is left alone for 1, 2, 4 ... s, then tried again.
COOL_FIRST_S: Final = 1.0
COOL_MAX_S: Final = 30.0
_STRIKES_MAX: Final = 10
_SHOWN_CHARS: Final = 64
_GLOB: Final = re.compile(r"[*?\[]")


class Engine(msgspec.Struct, frozen=True):
    """What requests need to know of an engine. `authorization` is that header's value, b"" without a key."""

    url: str
    authorization: bytes


class Fleet:
    """One fleet as this gateway serves it: the configuration, and of it what each request reads."""

    def __init__(self, name: str, config: schema.Fleet) -> None:
        """Hold the configuration, how fast places free up, and who is cooling down."""
        self.name = name
        self.config = config
        self.budgets = Seconds.of(config.budgets)
        self.queue_ms = config.budgets.queue_ms
        self.is_cold_until_first_token = config.cold_until == "first_token"
        self.pace = Pace()
        self.engines = {
            engine.name: Engine(engine.url, f"Bearer {engine.api_key}".encode() if engine.api_key else b"")
            for engine in config.engines
        }
        self._names = tuple(self.engines)
        self._cooling: dict[str, tuple[int, float]] = {}

    def usable_engines(self) -> tuple[str, ...]:
        """Return the engines to ask a permit for: all that are not cooling down, or all when all are."""
        if not self._cooling:
            return self._names
        now_s = monotonic()
        usable = tuple(name for name in self._names if self._cooling.get(name, (0, 0.0))[1] <= now_s)
        return usable or self._names

    def engine_failed(self, name: str) -> None:
        """Leave the engine out for a while, longer each time in a row."""
        strikes = min(_STRIKES_MAX, self._cooling.get(name, (0, 0.0))[0] + 1)
        self._cooling[name] = (strikes, monotonic() + min(COOL_MAX_S, COOL_FIRST_S * 2 ** (strikes - 1)))

    def engine_answered(self, name: str) -> None:
        """Take the engine back in."""
        if self._cooling:
            self._cooling.pop(name, None)


class Fleets:
    """All fleets of this gateway."""

    def __init__(self, configs: Mapping[str, schema.Fleet]) -> None:
        """Index literal names and globs; the settings have made sure that names do not clash."""
        self._fleets = {name: Fleet(name, config) for name, config in configs.items()}
        self._literal: dict[str, Fleet] = {}
        self._globs: list[tuple[re.Pattern[str], Fleet]] = []
        for fleet in self._fleets.values():
            for model in fleet.config.models:
                self._literal.setdefault(model, fleet)
                if _GLOB.search(model):
                    self._globs.append((re.compile(fnmatch.translate(model)), fleet))

    def __iter__(self) -> Iterator[Fleet]:
        return iter(self._fleets.values())

    def serving(self, model: str) -> Fleet:
        """Return the fleet of `model`: by its very name, else by the first glob that fits.

        "" stands for a request that names none: then there must be only one fleet.
        Raises NotServed.
        """
        if not model:
            if len(self._fleets) == 1:
                return next(iter(self._fleets.values()))
            raise NotServed("bad_request", "the request names no model, and there is more than one fleet")
        found = self._literal.get(model)
        if found is not None:
            return found
        for pattern, fleet in self._globs:
            if pattern.match(model):
                return fleet
        raise NotServed("unknown_model", f"no fleet serves the model {model[:_SHOWN_CHARS]!a}")
