"""Format tables line by line, and make the cells safe for a terminal."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice

import click

from rmq.cli_framework.text import neutral, output_file

PIPED_WIDTH = 160  # cells, without a terminal; COLUMNS overrides it
WIDE = 110  # cells from which a terminal shows all columns
NARROWEST = 12  # cells of a shortened column, however narrow the terminal
GAP = 2
# Number of rows that decide on the widths. A wider cell in a later row is not shortened, so the
# cell is longer than its column.
WINDOW = 1000

# Characters of one cell each: Latin letters, and the mark of a text that was shortened.
_NARROW = re.compile("[ -~\xa1-\xac\xae-\u02ff…]*")


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        title: Title of the column.
        right: Whether to align cells to the right, as for numbers.
        cut: Whether the table may shorten the cells on a narrow terminal.
        style: Colour of the cells.
        wide: Whether to show the column only on a terminal with at least WIDE characters per line.
            If --columns names the column, the table always shows it.
    """

    title: str
    right: bool = False
    cut: bool = False
    style: str = ""
    wide: bool = False


def terminal_width() -> int:
    """Return the width of a line of the terminal, in characters."""
    return shutil.get_terminal_size((PIPED_WIDTH, 24)).columns


def coloured() -> bool:
    """Return whether the output of this thread can show colours."""
    wanted = not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return wanted and output_file().isatty()


def styled(text: str, style: str) -> str:
    """Return a text in a colour or in bold, if the output can show this."""
    if not style or not coloured():
        return text
    bold = style == "bold"
    return click.style(text, fg=None if bold else style, bold=bold or None)


def cells(text: str) -> int:
    """Return how many columns a text needs on a terminal. A Latin letter needs one."""
    if text.isascii() or _NARROW.fullmatch(text):
        return len(text)
    from rich.cells import cell_len  # loads tables of wide characters, which few texts need

    return cell_len(text)


def _fitted(text: str, width: int) -> str:
    if text.isascii():
        return text[:width].ljust(width)
    from rich.cells import set_cell_size

    return set_cell_size(text, width)


def shorten(text: str, width: int) -> str:
    """Shorten a text that is too long. An ellipsis shows that text is missing."""
    return text if cells(text) <= width else _fitted(text, width - 1).rstrip() + "…"


def _widths(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> list[int]:
    widths = [
        max([cells(column.title), *(cells(row[index]) for row in rows)])
        for index, column in enumerate(columns)
    ]
    cuttable = [index for index, column in enumerate(columns) if column.cut]
    room = terminal_width() - GAP * (len(columns) - 1)
    room -= sum(width for index, width in enumerate(widths) if index not in cuttable)
    for position, index in enumerate(sorted(cuttable, key=lambda index: widths[index])):
        share = max(NARROWEST, room // (len(cuttable) - position))
        widths[index] = min(widths[index], share)
        room -= widths[index]
    return widths


def table_lines(
    columns: Sequence[Column], rows: Iterable[Sequence[str]], window: int = WINDOW
) -> Iterator[str]:
    """Yield the lines of a table. The first line has the column titles.

    Args:
        columns: Columns of the table.
        rows: Cells of the rows. In a list or tuple, all rows decide the widths of the columns. In
            another iterable, only the first rows decide the widths.
        window: Number of first rows that decide the widths.
    """
    safe = ([neutral(cell) for cell in row] for row in rows)
    first = list(safe if isinstance(rows, Sequence) else islice(safe, window))
    widths = _widths(columns, first)
    gap = " " * GAP

    def line(row: Sequence[str], styles: Sequence[str], exact: bool) -> str:
        parts = []
        for column, width, style, cell in zip(columns, widths, styles, row, strict=True):
            size = cells(cell)
            if size > width and (column.cut or exact):
                cell = shorten(cell, width)
                size = cells(cell)
            blanks = " " * (width - size)
            cell = styled(cell, style) if style else cell
            parts.append(blanks + cell if column.right else cell + blanks)
        return gap.join(parts).rstrip()

    yield line([column.title for column in columns], ["bold"] * len(columns), True)
    styles = [column.style if coloured() else "" for column in columns]
    for row in chain(first, safe):
        yield line(row, styles, False)
