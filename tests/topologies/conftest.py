"""What tests of several Redis servers share: an engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.scripted_engine import ScriptedEngine

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def engine() -> Iterator[ScriptedEngine]:
    with ScriptedEngine() as scripted:
        yield scripted
