"""A benchmark's results as one HTML file that needs nothing else, and the folder of all its files."""

from __future__ import annotations

import shlex
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from ppcls.bench.results.charts import Drawing, category_lines, drawings, shown
from ppcls.bench.results.plots import file_name, to_png
from ppcls.bench.results.results import Results, Row, write_results
from ppcls.bench.results.table import LEGEND, cell, headings, kinds_of_rows, number
from ppcls.files import atomic_write, write_text

PAGE = "index.html"


@cache
def _template() -> Template:
    environment = Environment(
        loader=PackageLoader("ppcls.bench.results", "page"), autoescape=True, undefined=StrictUndefined
    )
    return environment.get_template("results.html.j2")


def publish(folder: Path, results: Results) -> list[Path]:
    """Writes results as JSON, CSV, a PNG a chart, and the page, into a folder, which is made.

    Returns:
        The charts' files.
    """
    write_results(folder, results)
    charts = []
    for number_, drawing in enumerate(drawings(results), start=1):
        charts.append(folder / file_name(number_, drawing))
        with atomic_write(charts[-1]) as file:
            file.write(to_png(drawing))
    write_text(folder / PAGE, render(results))
    return charts


def render(results: Results) -> str:
    """Returns the page."""
    page = _template().render(
        results=results,
        command=shlex.join(results.command),
        tables=[_table(rows) for rows in kinds_of_rows(results.rows)],
        legend=LEGEND,
        data={"charts": [_chart(each) for each in drawings(results)]},
        style=_asset("ppcls.report", "report.css") + _asset("ppcls.bench", "results.css"),
        script=_asset("ppcls.bench", "results.js"),
    )
    # A file's name may be no text; that must not cost the page.
    return page.encode("utf-8", "replace").decode("utf-8")


def _asset(package: str, name: str) -> str:
    return files(package).joinpath("page", name).read_text(encoding="utf-8")


def _table(rows: list[Row]) -> dict[str, Any]:
    heads = headings(rows)
    return {
        "heads": heads,
        "rows": [
            {
                "labels": [shown(row.labels[name]) for name in heads.labels],
                "metrics": [_cell(row, name) for name, _ in heads.metrics],
                "note": row.note,
            }
            for row in rows
        ],
    }


def _cell(row: Row, name: str) -> dict[str, Any]:
    metric = row.metrics.get(name)
    if metric is None:
        return {"text": "", "all": "not measured", "sort": ""}
    return {"text": cell(metric), "all": ", ".join(map(number, metric.values)), "sort": metric.median}


def _chart(drawing: Drawing) -> dict[str, Any]:
    return {
        "title": drawing.title,
        "x": drawing.x,
        "y": drawing.y,
        "log": drawing.log,
        "categories": category_lines(drawing),
        "series": [
            {
                "name": series.name,
                "colour": series.colour,
                "points": [
                    {
                        "x": point.x,
                        "label": point.label,
                        "median": point.metric.median,
                        "low": point.metric.low,
                        "high": point.metric.high,
                        "text": f"{cell(point.metric)} {point.metric.unit}".strip(),
                    }
                    for point in series.points
                ],
            }
            for series in drawing.series
        ],
    }
