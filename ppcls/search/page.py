"""Renders an HTML page with a table and charts, which shows the results of several runs."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from ppcls.files import escape_controls

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_STYLE = (
    "body{font:15px system-ui,sans-serif;max-width:70em;margin:2em auto;padding:0 1em}"
    "table{border-collapse:collapse}td,th{padding:.25em .8em;text-align:right;border-bottom:1px solid #ccc}"
    "td:first-child,th:first-child{text-align:left}img{max-width:100%}tr.strong{font-weight:bold}"
)


def render_page(
    title: str,
    text: Sequence[str],
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    strong: Sequence[int] = (),
    figure: Figure | None = None,
) -> str:
    """Returns a self-contained HTML page.

    Args:
        title: Title of the page.
        text: Paragraphs above the table.
        header: Titles of the columns.
        rows: Cells of the table, row by row.
        strong: Positions of the rows to emphasize.
        figure: Charts below the table; None for no charts.
    """
    lines = [
        f"<!doctype html><meta charset=utf-8><title>{escape(title)}</title><style>{_STYLE}</style>",
        f"<h1>{escape(title)}</h1>",
        *(f"<p>{escape(paragraph)}</p>" for paragraph in text),
        f"<table><tr>{''.join(f'<th>{escape(cell)}</th>' for cell in header)}</tr>",
    ]
    for position, row in enumerate(rows):
        mark = ' class="strong"' if position in strong else ""
        lines.append(f"<tr{mark}>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>")
    lines.append("</table>")
    if figure is not None:
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", dpi=110)
        data = base64.b64encode(buffer.getvalue()).decode()
        lines.append(f'<p><img alt="charts" src="data:image/png;base64,{data}"></p>')
    return escape_controls("\n".join(lines)) + "\n"
