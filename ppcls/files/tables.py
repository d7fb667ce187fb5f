"""Writes tables as CSV that spreadsheets read correctly.

Decisions:
- A file starts with a byte order mark, by which spreadsheets recognize UTF-8.
- Cells that a spreadsheet would execute as a formula are marked as text, because file names may come from
  strangers, and a class such as ``-dash`` would be shown as an error. Readers remove the mark.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence

BYTE_ORDER_MARK = "\ufeff"
_FORMULAS = ("=", "+", "-", "@", "\t", "\r", "'")  # the mark itself, too, so that it can be removed


def mark_formula(cell: str) -> str:
    """Returns a cell with a quotation mark in front if a spreadsheet would evaluate it."""
    return f"'{cell}" if cell.startswith(_FORMULAS) else cell


def unmark_formula(cell: str) -> str:
    """Returns a cell without the mark of `mark_formula`."""
    return cell[1:] if cell[:1] == "'" and cell[1:].startswith(_FORMULAS) else cell


def format_row(columns: Sequence[str], row: Mapping[str, str]) -> str:
    """Returns a line of CSV.

    Args:
        columns: Names of the columns.
        row: Cells by column. Missing cells are empty.
    """
    cells = [row.get(column, "") for column in columns]
    line = io.StringIO()
    csv.writer(line).writerow([mark_formula(cell) for cell in cells])
    return line.getvalue()


def format_table(columns: Sequence[str], rows: Iterable[Mapping[str, str]]) -> str:
    """Returns the content of a CSV file, with the names of the columns in the first line."""
    header = dict(zip(columns, columns, strict=True))
    return BYTE_ORDER_MARK + "".join(format_row(columns, row) for row in (header, *rows))
