"""What a run found, as tables: on the terminal, and in docs/performance.md between two marks."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

BEGIN: Final = "<!-- Written by `make bench`: from here -->"
END: Final = "<!-- Written by `make bench`: to here -->"


@dataclass(frozen=True, slots=True)
class Sheet:
    """One table. The cells of `rows` are text, as many in each as there are columns."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""

    def show(self, console: Console) -> None:
        """Print it."""
        table = Table(*self.columns, title=self.title, title_justify="left")
        for row in self.rows:
            table.add_row(*row)
        console.print(table)
        if self.note:
            console.print(self.note, highlight=False)

    def markdown(self) -> str:
        """Return it as Markdown, under a heading."""
        lines = [self.columns, ["---"] * len(self.columns), *self.rows]
        table = "\n".join(f"| {' | '.join(map(_cell, line))} |" for line in lines)
        return f"### {self.title}\n\n{table}\n" + (f"\n{self.note}\n" if self.note else "")


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def put_between_marks(page: str, written: str) -> str:
    """Return the page with what stands between the marks replaced; ValueError when they are not there."""
    pattern = re.compile(f"({re.escape(BEGIN)}\n).*?({re.escape(END)})", re.DOTALL)
    if not pattern.search(page):
        raise ValueError(f"the page has no lines {BEGIN!r} and {END!r}")
    return pattern.sub(lambda found: f"{found[1]}\n{written.strip()}\n\n{found[2]}", page, count=1)


def write(path: Path, sheets: Sequence[Sheet], pictures: dict[str, str], intro: str) -> None:
    """Put sheets and pictures into the page at `path`; the pictures lie in a folder named like it.

    pictures   file name -> SVG; the name less its suffix, with spaces for dashes, is what a reader is told
    """
    folder = path.with_suffix("")
    parts = [intro]
    folder.mkdir(exist_ok=True)
    for name, picture in pictures.items():
        (folder / name).write_text(picture)
        parts.append(f"![{name.removesuffix('.svg').replace('-', ' ')}]({folder.name}/{name})\n")
    parts += [sheet.markdown() for sheet in sheets]
    path.write_text(put_between_marks(path.read_text(), "\n".join(parts)))
