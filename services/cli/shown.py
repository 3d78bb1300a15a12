"""What commands print: a table for people, plain JSON for programs, always on stdout."""

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from services.cli.plain import plain

# Into a pipe or a file nothing is cut off: a row is one line, however long.
_PIPE_COLUMNS: Final = 1000


def print_json(value: Any) -> None:  # noqa: ANN401  (whatever JSON can say)
    """Print one JSON document and a newline."""
    sys.stdout.write(json.dumps(value, ensure_ascii=False) + "\n")


def print_rows(columns: Sequence[str], rows: Sequence[Mapping[str, Any]], *, empty: str) -> None:
    """Print `rows` under `columns`, numbers to the right; `empty` when there are none."""
    console = _console()
    if not rows:
        console.print(empty, markup=False, highlight=False)
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        numeric = all(isinstance(row[column], int | float) for row in rows)
        table.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(plain(str(row[column])) for column in columns))
    console.print(table)


def print_line(text: str) -> None:
    """Print one line."""
    sys.stdout.write(plain(text) + "\n")
    sys.stdout.flush()


def _console() -> Console:
    return Console(markup=False, width=None if sys.stdout.isatty() else _PIPE_COLUMNS)
