"""A permit's life as one table of moves. Everything that may happen to a permit is in this file.

asked --grant--> held --close--> closing --freed--> released
  |                |---lose----> lost ---close--> closing
  |--refuse--> refused
  `--leave--> abandoned --grant--> closing     (a grant that came too late goes back)
                        --refuse--> refused
"""

from enum import StrEnum
from typing import Final

from services.permits.errors import BadMove


class State(StrEnum):
    """Where a permit is."""

    ASKED = "asked"
    HELD = "held"
    LOST = "lost"
    CLOSING = "closing"
    RELEASED = "released"
    REFUSED = "refused"
    ABANDONED = "abandoned"


class Move(StrEnum):
    """What happens to it."""

    GRANT = "grant"
    REFUSE = "refuse"
    LEAVE = "leave"
    LOSE = "lose"
    CLOSE = "close"
    FREED = "freed"


MOVES: Final[dict[State, dict[Move, State]]] = {
    State.ASKED: {
        Move.GRANT: State.HELD,
        Move.REFUSE: State.REFUSED,
        Move.LEAVE: State.ABANDONED,
    },
    State.HELD: {Move.CLOSE: State.CLOSING, Move.LOSE: State.LOST},
    # The holder found out that its lease is gone; what it still closes changes nothing in Redis.
    State.LOST: {Move.CLOSE: State.CLOSING},
    State.CLOSING: {Move.FREED: State.RELEASED},
    # Whether the acquire arrived is unknown: the id is released blind once its call has ended.
    State.ABANDONED: {Move.GRANT: State.CLOSING, Move.REFUSE: State.REFUSED},
    State.REFUSED: {},
    State.RELEASED: {},
}


def after(state: State, move: Move) -> State:
    """Return the state after `move`, or raise BadMove when the table has no such move."""
    try:
        return MOVES[state][move]
    except KeyError:
        raise BadMove(f"a permit that is {state} cannot {move}") from None
