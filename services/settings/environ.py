"""Values from the environment: TENURE_SECTION__NAME, laid over the file.

TENURE_LEASE__TICK_MS sets lease.tick_ms; TENURE_FLEETS__DEMO__TOTAL sets fleets.demo.total, whatever the
case of the fleet's name in the file; lists and tables are JSON. A variable without `__` is none of ours.
"""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource

from services.settings.problems import SettingsError

_PREFIX: Final = "TENURE_"
# Tables whose second level is a name that somebody chose.
_NAMED: Final = ("fleets", "tenants")
_JSON: Final = frozenset({"models", "engines", "keys_sha256", "quotas"})


class EnvironSource(PydanticBaseSettingsSource):
    """The TENURE_ variables of `environ` as one nested table.

    `names` lists the names in the file per table ("fleets", "tenants"), to which a variable's part is
    matched. After the call `origins` maps each path that was set to its variable. Raises SettingsError.
    """

    def __init__(
        self,
        settings_cls: type[BaseSettings],
        environ: Mapping[str, str],
        names: Mapping[str, Iterable[str]],
    ) -> None:
        super().__init__(settings_cls)
        self.origins: dict[str, str] = {}
        self._environ = environ
        self._names = {table: {_as_variable(name): name for name in names.get(table, ())} for table in _NAMED}

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:  # noqa: ARG002
        """Is asked for nothing: `__call__` gives all values at once."""
        return None, field_name, False

    def __call__(self) -> dict[str, Any]:
        """Return the nested table of all values that the environment sets."""
        table: dict[str, Any] = {}
        for variable, text in sorted(self._environ.items()):
            if not variable.startswith(_PREFIX) or "__" not in variable:
                continue
            path = self._path(variable)
            self.origins[".".join(path)] = variable
            at = table
            for part in path[:-1]:
                at = at.setdefault(part, {})
                if not isinstance(at, dict):
                    raise SettingsError(
                        f"{variable}: a variable for the whole of {part} is set too; keep one"
                    )
            at[path[-1]] = _value(variable, path[-1], text)
        return table

    def _path(self, variable: str) -> list[str]:
        parts = variable.removeprefix(_PREFIX).split("__")
        if not all(parts):
            raise SettingsError(f"{variable}: an empty part; write TENURE_SECTION__NAME")
        path = [part.lower() for part in parts]
        if path[0] in _NAMED and len(path) > 1:
            path[1] = self._names[path[0]].get(_as_variable(parts[1]), path[1])
        if path[0] == "tenants" and path[-2:-1] == ["quotas"]:
            path[-1] = self._names["fleets"].get(_as_variable(parts[-1]), path[-1])
        return path


def _as_variable(name: str) -> str:
    # A fleet called qwen-2.5 is QWEN_2_5 in a variable.
    return re.sub(r"[^A-Z0-9]", "_", name.upper())


def _value(variable: str, name: str, text: str) -> Any:  # noqa: ANN401  (the schema checks what it is)
    if name not in _JSON:
        return text
    try:
        return json.loads(text)
    except ValueError:
        raise SettingsError(f'{variable}: {name} must be JSON, for example ["a", "b"]') from None
