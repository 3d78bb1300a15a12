"""How a command fails: one clear line on stderr, exit code 1, or 2 for wrong usage."""

import os
import ssl

from services.permits.address import read_address


class Failure(Exception):
    """The check or call failed. The message is one line with the cause and the cure."""


class WrongUsage(Exception):
    """What was typed can never be right, whatever Redis holds. The message is one line with the rule."""


def why(error: BaseException) -> str:
    """Return the reason of a network error in words: the system's own where there is one, on one line."""
    at: BaseException | None = error
    while at is not None:
        if isinstance(at, ssl.SSLError):
            # Its number is not one of the system's.
            return str(getattr(at, "verify_message", "") or at).lower()
        if isinstance(at, OSError) and at.errno:
            return os.strerror(at.errno).lower()
        at = at.__cause__ or at.__context__
    return " ".join(str(error).split()) or type(error).__name__


def without_secrets(url: str) -> str:
    """Return a Redis URL that still leads there, without user, password and options."""
    scheme, _, rest = url.partition("?")[0].partition("://")
    place, slash, path = rest.partition("/")
    return f"{scheme}://{place.rpartition('@')[2]}{slash}{path}"


def address(url: str) -> str:
    """Return where a Redis URL leads, without user and password."""
    return str(read_address(url))
