"""Writes settings as TOML: the file that `tenure up` leaves for the other commands."""

import json
from collections.abc import Mapping, Sequence

from services.settings.schema import Settings

Value = str | int | Sequence["Value"] | Mapping[str, "Value"]


def toml_text(settings: Settings) -> str:
    """Return a file that `services.settings.load` reads back to equal settings."""
    lines: list[str] = []
    for section, content in settings.model_dump(mode="json").items():
        if section in ("fleets", "tenants"):
            for name, table in content.items():
                lines += _table(f"{section}.{_key(name)}", table)
        else:
            lines += _table(section, content)
    return "\n".join(lines) + "\n"


def _table(path: str, content: Mapping[str, Value]) -> list[str]:
    return [f"[{path}]", *(f"{_key(name)} = {_value(value)}" for name, value in content.items()), ""]


def _key(name: str) -> str:
    # Names may hold dots, which would start a sub-table.
    return name if name.isascii() and name.replace("_", "").isalnum() else _text(name)


def _value(value: Value) -> str:
    match value:
        case str():
            return _text(value)
        case int():
            return str(value)
        case Mapping():
            pairs = ", ".join(f"{_key(name)} = {_value(inner)}" for name, inner in value.items())
            return f"{{ {pairs} }}" if pairs else "{}"
        case _:
            return "[" + ", ".join(_value(inner) for inner in value) + "]"


def _text(text: str) -> str:
    # A JSON string is a TOML string, but for the one control character that JSON leaves bare.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
