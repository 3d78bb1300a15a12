"""A permit's life is the table, and nothing else."""

from __future__ import annotations

import itertools

import pytest

from services.permits import states
from services.permits.errors import BadMove
from services.permits.states import MOVES, Move, State, after


@pytest.mark.parametrize(("state", "move"), list(itertools.product(State, Move)))
def test_every_pair_is_in_the_table_or_refused(state: State, move: Move) -> None:
    if move in MOVES[state]:
        assert after(state, move) is MOVES[state][move]
    else:
        with pytest.raises(BadMove, match=f"{state} cannot {move}"):
            after(state, move)


def test_every_state_is_reached_from_the_first_and_has_a_row() -> None:
    assert set(MOVES) == set(State)
    reached, new = set(), {State.ASKED}
    while new:
        reached |= new
        new = {end for state in new for end in MOVES[state].values()} - reached
    assert reached == set(State)


def test_every_life_ends_released_or_refused() -> None:
    assert {state for state, moves in MOVES.items() if not moves} == {State.RELEASED, State.REFUSED}


def test_whatever_was_granted_ends_released() -> None:
    """Once there may be a lease in Redis, no way leads around the release."""
    after_grant, new = set(), {moves[Move.GRANT] for moves in MOVES.values() if Move.GRANT in moves}
    while new:
        after_grant |= new
        new = {end for state in new for end in MOVES[state].values()} - after_grant
    assert State.REFUSED not in after_grant
    assert State.RELEASED in after_grant


def test_the_drawing_names_every_move_and_state() -> None:
    drawing = str(states.__doc__)
    for word in (*State, *Move):
        assert word in drawing
