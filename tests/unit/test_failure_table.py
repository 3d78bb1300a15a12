"""The table of known failures in `tests/README.md` is true: each test that it names is there."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path
from typing import Final

from tests.support.processes import ROOT

NAMED: Final = re.compile(r"`(tests/[\w/]+\.py::\w+(?:\[[^\]`]+\])?)`")


def rows() -> list[list[str]]:
    """Return the cells of each row of the table."""
    text = (ROOT / "tests" / "README.md").read_text().partition("## Known failures")[2]
    lines = [line for line in text.partition("\n## ")[0].splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [row for row in cells if row[0] != "what goes wrong" and not set(row[0]) <= {"-"}]


def test_every_row_says_what_goes_wrong_and_which_test_saw_it_once() -> None:
    for row in rows():
        assert len(row) == 3, row
        assert all(row), row
        assert NAMED.search(row[1]) or row[1] == "cannot happen here", row


def test_no_row_stands_twice() -> None:
    faults = [row[0] for row in rows()]
    assert sorted(faults) == sorted(set(faults))


def test_every_test_that_the_table_names_is_there() -> None:
    """A test that was renamed or thrown away would leave a promise behind that nobody keeps."""
    named = sorted({name for row in rows() for name in NAMED.findall(row[1])})
    assert len(named) > 15
    for name in named:
        path, _, test = name.partition("::")
        test, _, case = test.removesuffix("]").partition("[")
        text = (ROOT / path).read_text()
        assert test in functions(path), name
        # Ids of cases are words of their table.
        assert not case or f'"{case}"' in text, name


@cache
def functions(path: str) -> set[str]:
    """Return the names of the tests of a file, as pytest finds them."""
    assert Path(path).name.startswith("test_"), path
    body = ast.parse((ROOT / path).read_text()).body
    found = {one.name for one in body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)}
    return {name for name in found if name.startswith("test_")}
