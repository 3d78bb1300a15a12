"""Turns script replies into values. One function per reply word; the words are those of the headers."""

from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any, Final

from services.permits.errors import BadReply
from services.permits.model import (
    Closed,
    Cut,
    Full,
    Granted,
    Learning,
    LeaseRow,
    Queued,
    Reaped,
    Reclaim,
    Stamp,
    Ticked,
    WaiterRow,
)

_RECLAIM_WIDTH: Final = 6
# A move does not say who stands in line.
_FULL_WIDTH: Final = 6


def _stamp(reply: list[Any]) -> Stamp:
    return Stamp(epoch=reply[1], grant=int(reply[2]))


def _granted(reply: list[Any]) -> Granted:
    return Granted(class_=reply[3], engine=reply[4], stamp=_stamp(reply))


def _full(reply: list[Any]) -> Full:
    waiting = int(reply[6]) if len(reply) > _FULL_WIDTH else 0
    return Full(
        pool=reply[3], in_use=int(reply[4]), limit=int(reply[5]), stamp=_stamp(reply), waiting=waiting
    )


def _queued(reply: list[Any]) -> Queued:
    return Queued(waiting=int(reply[3]), stamp=_stamp(reply))


def _learning(reply: list[Any]) -> Learning:
    return Learning(left_ms=int(reply[3]), stamp=_stamp(reply))


def _closed(reply: list[Any]) -> Closed:
    return Closed(stamp=_stamp(reply))


def _ticked(reply: list[Any]) -> Ticked:
    stamp, rest = _stamp(reply), iter(reply[9:])
    missing, cut, granted = (int(count) for count in reply[6:9])
    return Ticked(
        stamp=stamp,
        clock=int(reply[3]),
        learning_ms=int(reply[4]),
        gateways=int(reply[5]),
        missing=tuple(islice(rest, missing)),
        cut={next(rest): next(rest) for _ in range(cut)},
        granted={next(rest): _handed_on(rest, stamp.epoch) for _ in range(granted)},
        gone=tuple(rest),
    )


def _handed_on(words: Iterator[Any], epoch: str) -> Granted:
    class_, engine, number = (next(words) for _ in range(3))
    return Granted(class_=class_, engine=engine, stamp=Stamp(epoch, int(number)))


def wake_ups(message: str) -> Iterator[tuple[str, Granted | Cut]]:
    """Read what a script published to a gateway: an epoch, then `lease grant class engine` per line."""
    epoch, *lines = message.splitlines()
    for line in lines:
        lease, number, class_, engine = line.split(" ")
        if class_ == "cut":
            yield lease, Cut(reason=engine)
        else:
            yield lease, _handed_on(iter((class_, engine, number)), epoch)


def _revoked(reply: list[Any]) -> str:
    return str(reply[3])


def _unknown(_reply: list[Any]) -> None:
    return None


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
    "acquire": {
        "GRANTED": _granted,
        "QUEUED": _queued,
        "FULL": _full,
        "LEARNING": _learning,
        "CLOSED": _closed,
    },
    "tick": {"TICKED": _ticked},
    "downgrade": {"DOWNGRADED": _number_last},
    "release": {"RELEASED": _number_last},
    "revoke": {"REVOKED": _revoked, "UNKNOWN": _unknown},
    "move": {"MOVED": _moved, "FULL": _full, "GONE": _gone},
    "reap": {"REAPED": _reaped},
    "set_limits": {"LIMITED": _number_last},
    "witness": {"WITNESSED": _number_last},
    "seed_keys": {"KEYED": _number_last},
    "count": {"COUNTED": _itself},
    "set_tenant": {"KEYED": _number_last, "UNKNOWN": _unknown},
    "set_key": {"KEYED": _number_last, "UNKNOWN": _unknown},
    "drain": {"DRAINING": _number_last, "UNKNOWN": _unknown},
    "ended": {"NOTED": _number_last},
}
# Whose replies are lines for people, one for each of what was found.
LISTS: Final = frozenset({"inspect", "line"})


def read(verb: str, reply: Any) -> Any:  # noqa: ANN401  (the store's methods state the types)
    """Turn a raw reply of `verb` into its value; raise BadReply for a word its header does not have."""
    if isinstance(reply, list):
        if verb in LISTS:
            return reply
        if reply and (reader := REPLIES[verb].get(reply[0])):
            return reader(reply)
    raise BadReply(verb, reply)


def waiter_row(line: str) -> WaiterRow:
    """Read one line of `line`."""
    words = _words(line)
    return WaiterRow(
        lease=words["lease"],
        request_id=words["request_id"],
        tenant=words["tenant"],
        class_=words["class"],
        holder=words["holder"],
        waited_ms=int(words["waited_ms"]),
        deadline_in_ms=int(words["deadline_in_ms"]),
    )


def _words(line: str) -> dict[str, str]:
    return dict(word.partition("=")[::2] for word in line.split(" "))


def lease_row(line: str) -> LeaseRow:
    """Read one line of `inspect`."""
    words = _words(line)
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
