"""Finding and reading the configuration: the command line over the environment over the file.

The only module of the project that reads the environment.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from tomllib import TOMLDecodeError
from typing import Any, Final

from pydantic import ValidationError
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, TomlConfigSettingsSource

from services.settings.environ import EnvironSource
from services.settings.problems import SettingsError, all_problems
from services.settings.schema import Settings

__all__ = ["SettingsError", "find_config", "load"]

# Looked for in the current folder when nobody names a file; the second is what `tenure up` writes.
DEFAULT_FILES: Final = (Path("tenure.toml"), Path(".tenure/tenure.toml"))


def find_config(explicit: Path | None = None, environ: Mapping[str, str] = os.environ) -> Path | None:
    """Return the file to read: the one named, $TENURE_CONFIG, or a default one that exists; else None."""
    if explicit is not None:
        return explicit
    if named := environ.get("TENURE_CONFIG"):
        return Path(named)
    return next((path for path in DEFAULT_FILES if path.is_file()), None)


def load(path: Path | None, environ: Mapping[str, str] = os.environ, **overrides: Any) -> Settings:  # noqa: ANN401
    """Read the file (None: only defaults), lay the environment and `overrides` over it, and check all of it.

    `overrides` are whole or partial sections: `load(path, gateway={"port": 0})`. Raises SettingsError with
    one line that names the field and the fix.
    """
    file = _read(path)
    names = {table: list(value) for table, value in file().items() if isinstance(value, dict)}
    variables = EnvironSource(Settings, environ, names)

    class Layered(Settings):
        """Settings with this call's sources, the strongest first."""

        @classmethod
        def settings_customise_sources(
            cls,
            settings_cls: type[BaseSettings],  # noqa: ARG003  (this signature is pydantic's)
            init_settings: PydanticBaseSettingsSource,
            env_settings: PydanticBaseSettingsSource,  # noqa: ARG003
            dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
            file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            return init_settings, variables, file

    try:
        return Layered(**overrides)
    except ValidationError as error:
        problems = all_problems(error, Settings, variables.origins)
        if path:
            problems = [f"{path}: {problem}" for problem in problems]
        raise SettingsError(problems[0], problems) from None


def _read(path: Path | None) -> TomlConfigSettingsSource:
    try:
        if path is not None:
            path.open("rb").close()  # the source takes a missing file for an empty one
        return TomlConfigSettingsSource(Settings, path)
    except TOMLDecodeError as error:
        raise SettingsError(f"{path}: no TOML: {error}".replace("\n", " ")) from None
    except UnicodeDecodeError:
        raise SettingsError(f"{path}: no TOML: it is not UTF-8 text") from None
    except OSError as error:
        raise SettingsError(
            f"{path}: cannot be read: {error.strerror}; name the file with --config"
        ) from None
