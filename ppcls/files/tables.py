"""Writes tables as CSV that spreadsheets read correctly.

Decisions:
- A file starts with a byte order mark, by which spreadsheets recognize UTF-8.
- Cells that a spreadsheet would execute as a formula are marked as text, because file names may come from
  strangers.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence

BYTE_ORDER_MARK = "\ufeff"
_FORMULAS = ("=", "+", "-", "@")


def format_row(columns: Sequence[str], row: Mapping[str, str]) -> str:
    """Returns a line of CSV.

    Args:
        columns: Names of the columns.
        row: Cells by column. Missing cells are empty.
    """
    cells = [row.get(column, "") for column in columns]
    line = io.StringIO()
    csv.writer(line).writerow([f"'{cell}" if cell.startswith(_FORMULAS) else cell for cell in cells])
    return line.getvalue()


def format_table(columns: Sequence[str], rows: Iterable[Mapping[str, str]]) -> str:
    """Returns the content of a CSV file, with the names of the columns in the first line."""
    header = dict(zip(columns, columns, strict=True))
    return BYTE_ORDER_MARK + "".join(format_row(columns, row) for row in (header, *rows))
