"""One line for everything that can be wrong with a configuration: the field, what is wrong, the cure."""

import difflib
from collections.abc import Mapping, Sequence
from typing import Final, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

_SHOWN_CHARS: Final = 60
# Their values are secrets, or may hold one.
_NEVER_SHOWN: Final = frozenset({"token", "api_key", "url", "keys_sha256"})
# A plain value where one with parts is needed: it was meant for one of the parts, perhaps for a secret one.
_NEEDS_TABLE: Final = frozenset({"model_type", "model_attributes_type", "dict_type"})
_NEEDS_LIST: Final = frozenset({"tuple_type", "list_type"})


class SettingsError(ValueError):
    """The configuration cannot be used; the message is one line that names the field and the fix.

    `problems` has one such line for everything that was found to be wrong, the message's own first.
    """

    def __init__(self, line: str, problems: Sequence[str] = ()) -> None:
        super().__init__(line)
        self.problems = tuple(problems) or (line,)


def all_problems(error: ValidationError, model: type[BaseModel], origins: Mapping[str, str]) -> list[str]:
    """Return everything that is wrong, each as one line.

    `origins` maps a field's path to the environment variable that set it, which the line then names too.
    """
    details = error.errors(include_url=False)
    # A wrong part also spoils what holds it and what is derived from it: only the causes are told.
    causes = [
        detail
        for detail in details
        if detail["type"] != "default_factory_not_called"
        and not any(_inside(other["loc"], detail["loc"]) for other in details)
    ]
    return [_line(detail, model, origins) for detail in causes or details]


def _inside(part: tuple[int | str, ...], whole: tuple[int | str, ...]) -> bool:
    return len(part) > len(whole) and part[: len(whole)] == whole


def _line(detail: ErrorDetails, model: type[BaseModel], origins: Mapping[str, str]) -> str:
    field = _path(detail["loc"])
    # A finding about a whole section or about all of them begins with the name of its field.
    said = _said(detail, model)
    line = f"{field}: {said}" if field else said
    # A variable for a fleet that the file does not have leaves the rest of that fleet missing.
    near = field.rpartition(".")[0] if detail["type"] == "missing" else field
    variable = next((v for path, v in origins.items() if path == near or path.startswith(f"{near}.")), "")
    if field and variable:
        line += f" (set by {variable})"
    return " ".join(line.split())


def _path(loc: tuple[int | str, ...]) -> str:
    path = ""
    for part in loc:
        if part == "[key]":  # pydantic's mark for the key of a table, which is the part before it
            continue
        shown = str(part) if len(str(part)) <= _SHOWN_CHARS else f"{str(part)[:_SHOWN_CHARS]}..."
        path += f"[{part}]" if isinstance(part, int) else f".{shown if shown.isprintable() else ascii(shown)}"
    return path.removeprefix(".")


def _said(detail: ErrorDetails, model: type[BaseModel]) -> str:
    kind, value = detail["type"], detail["input"]
    if kind == "extra_forbidden":
        return _unknown_key(detail["loc"], model)
    if kind == "missing":
        return "is missing; it has no default"
    if kind == "string_pattern_mismatch" and "keys_sha256" in detail["loc"]:
        return 'not a SHA-256 in 64 hex digits; make one with: printf %s "$KEY" | sha256sum'
    if kind in _NEEDS_TABLE:
        return "must be a table of named values"
    if kind in _NEEDS_LIST:
        return "must be a list"
    message = detail["msg"].removeprefix("Value error, ")
    message = message[0].lower() + message[1:]
    shown = isinstance(value, str | int | float) and not _NEVER_SHOWN.intersection(detail["loc"])
    if not shown or kind == "value_error":
        return message
    return f"{message.replace('input should', 'must')}, not {str(value)[:_SHOWN_CHARS]!r}"


def _unknown_key(loc: tuple[int | str, ...], model: type[BaseModel]) -> str:
    known = sorted(_fields_at(model, loc[:-1]))
    near = difflib.get_close_matches(str(loc[-1])[:_SHOWN_CHARS], known, n=1)
    return f"unknown key; did you mean {near[0]}?" if near else f"unknown key; known are: {', '.join(known)}"


def _fields_at(model: type[BaseModel], loc: tuple[int | str, ...]) -> set[str]:
    at: object = model
    for part in loc:
        if isinstance(at, type) and issubclass(at, BaseModel):
            at = at.model_fields[str(part)].annotation
        else:  # into a table or a list: its values are of the last of the annotation's arguments
            at = next(arg for arg in reversed(get_args(at)) if arg is not Ellipsis)
    return set(at.model_fields) if isinstance(at, type) and issubclass(at, BaseModel) else set()
