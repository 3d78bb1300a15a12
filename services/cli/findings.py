"""What a check found: fine, worth knowing, or a problem with its cure."""

from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "info", "problem"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the doctor's report. A problem always has a cure."""

    check: str
    level: Level
    detail: str
    cure: str = ""


def fine(check: str, detail: str) -> Finding:
    """Report that a check passed."""
    return Finding(check, "ok", detail)


def note(check: str, detail: str) -> Finding:
    """Report something that is neither right nor wrong."""
    return Finding(check, "info", detail)


def problem(check: str, detail: str, cure: str) -> Finding:
    """Report what is wrong and how to put it right."""
    return Finding(check, "problem", detail, cure)
