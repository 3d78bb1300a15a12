"""Turns script replies into values. One function per reply word; the words are those of the headers."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from services.permits.errors import BadReply
from services.permits.model import (
    Closed,
    Full,
    Granted,
    Learning,
    LeaseRow,
    Reaped,
    Reclaim,
    Stamp,
    Ticked,
)

_RECLAIM_WIDTH: Final = 6


def _stamp(reply: list[Any]) -> Stamp:
    return Stamp(epoch=reply[1], grant=int(reply[2]))


def _granted(reply: list[Any]) -> Granted:
    return Granted(class_=reply[3], engine=reply[4], stamp=_stamp(reply))


def _full(reply: list[Any]) -> Full:
    return Full(pool=reply[3], in_use=int(reply[4]), limit=int(reply[5]), stamp=_stamp(reply))


def _learning(reply: list[Any]) -> Learning:
    return Learning(left_ms=int(reply[3]), stamp=_stamp(reply))


def _closed(reply: list[Any]) -> Closed:
    return Closed(stamp=_stamp(reply))


def _ticked(reply: list[Any]) -> Ticked:
    return Ticked(
        stamp=_stamp(reply),
        clock=int(reply[3]),
        learning_ms=int(reply[4]),
        gateways=int(reply[5]),
        missing=tuple(reply[6:]),
    )


def _reaped(reply: list[Any]) -> Reaped:
    rest = reply[6:]
    rows = (rest[n : n + _RECLAIM_WIDTH] for n in range(0, len(rest), _RECLAIM_WIDTH))
    return Reaped(
        settled=int(reply[3]),
        drift=int(reply[4]),
        more=bool(int(reply[5])),
        reclaimed=tuple(
            Reclaim(
                lease=row[0], tenant=row[1], holder=row[2], class_=row[3], engine=row[4], age_ms=int(row[5])
            )
            for row in rows
        ),
    )


def _number_last(reply: list[Any]) -> int:
    return int(reply[-1])


def _moved(reply: list[Any]) -> str:
    return str(reply[3])


def _gone(_reply: list[Any]) -> None:
    return None


def _itself(reply: list[Any]) -> list[Any]:
    return reply


REPLIES: Final[Mapping[str, Mapping[str, Callable[[list[Any]], Any]]]] = {
    "acquire": {"GRANTED": _granted, "FULL": _full, "LEARNING": _learning, "CLOSED": _closed},
    "tick": {"TICKED": _ticked},
    "downgrade": {"DOWNGRADED": _number_last},
    "release": {"RELEASED": _number_last},
    "move": {"MOVED": _moved, "FULL": _full, "GONE": _gone},
    "reap": {"REAPED": _reaped},
    "set_limits": {"LIMITED": _number_last},
    "witness": {"WITNESSED": _number_last},
    "seed_keys": {"KEYED": _number_last},
    "count": {"COUNTED": _itself},
}


def read(verb: str, reply: Any) -> Any:  # noqa: ANN401  (the store's methods state the types)
    """Turn a raw reply of `verb` into its value; raise BadReply for a word its header does not have."""
    if not isinstance(reply, list) or not reply:
        raise BadReply(verb, reply)
    reader = REPLIES[verb].get(reply[0])
    if reader is None:
        raise BadReply(verb, reply)
    return reader(reply)


def lease_row(line: str) -> LeaseRow:
    """Read one line of `inspect`."""
    words = dict(word.partition("=")[::2] for word in line.split(" "))
    acquired_at = words["acquired_at"]
    return LeaseRow(
        lease=words["lease"],
        request_id=words["request_id"],
        tenant=words["tenant"],
        class_=words["class"],
        engine=words["engine"],
        holder=words["holder"],
        phase=words["phase"],
        acquired_at=int(acquired_at) if acquired_at.isdigit() else 0,
        age_ms=int(words["age_ms"]),
        expires_in_ms=int(words["expires_in_ms"]),
    )
