"""Writes the files of an audit: a gallery, a table of all findings, and a list of suggested fixes."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from numpy.typing import NDArray

from ppcls.audit.findings import KINDS, Audit, Finding
from ppcls.errors import counted
from ppcls.files import atomic_write, one_line, write_text
from ppcls.files.tables import BYTE_ORDER_MARK, mark_formula, unmark_formula
from ppcls.report.thumbnail import data_uri

GALLERY = "audit.html"
TABLE = "audit.csv"
FIXES = "fixes.csv"
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")  # beginnings of what Excel calls Unicode text
_SHOWN = 60  # findings of each kind in the gallery
_SHOWN_PICTURES = 8  # of each finding

ReadPixels = Callable[[int], NDArray[np.uint8] | None]


@dataclass(frozen=True)
class Fix:
    """One change of a data set.

    Attributes:
        action: ``relabel`` or ``remove``.
        file: Path of the picture, relative to the folder of the pictures.
        label: New class for ``relabel``; else "".
        reason: What was found.
    """

    action: str
    file: str
    label: str
    reason: str


def write_audit(audit: Audit, source: str, folder: Path, read_pixels: ReadPixels) -> None:
    """Writes ``audit.html``, ``audit.csv`` and ``fixes.csv``.

    Args:
        audit: The findings.
        source: Name of the data set, for the title.
        folder: Existing folder.
        read_pixels: Function that returns the pixels of a picture, or None.
    """
    write_text(folder / GALLERY, render_gallery(audit, source, read_pixels))
    rows = [["kind", "rank", "file", "class", "split", "suggested", "score", "finding"]]
    for kind in KINDS:
        for rank, finding in enumerate(audit.of_kind(kind), start=1):
            rows += [_row(audit, finding, rank, position) for position in finding.positions or (None,)]
    write_table(folder / TABLE, rows)
    fixes = [[fix.action, fix.file, fix.label, fix.reason] for fix in suggest_fixes(audit)]
    write_table(folder / FIXES, [["action", "file", "label", "reason"], *fixes])


def summarize(audit: Audit) -> str:
    """Returns a line with the number of pictures and of findings of each kind."""
    names = {
        "leak": ("duplicate across splits", "duplicates across splits"),
        "contradiction": ("contradictory label", "contradictory labels"),
        "label": ("suspicious label", "suspicious labels"),
        "exact": ("exact duplicate", "exact duplicates"),
        "near": ("near duplicate", "near duplicates"),
        "outlier": ("outlier", "outliers"),
        "burst": ("series", "series"),
        "small": ("small class", "small classes"),
    }
    counts = ", ".join(counted(len(audit.of_kind(kind)), *words) for kind, words in names.items())
    unreadable = f", {audit.unreadable} unreadable" if audit.unreadable else ""
    return f"{counted(len(audit.pictures), 'picture')}{unreadable}: {counts}"


def suggest_fixes(audit: Audit) -> Iterator[Fix]:
    """Yields at most one fix for each picture: relabel it, or remove it."""
    fixed: set[int] = set()
    for finding in audit.findings:
        for position in finding.redundant:
            if position not in fixed:
                fixed.add(position)
                yield Fix("remove", audit.pictures.files[position], "", f"{finding.kind}: {finding.text}")
        (position, *_) = finding.positions or (-1,)
        if finding.suggested is not None and position not in fixed:
            fixed.add(position)
            label = audit.pictures.classes[finding.suggested]
            yield Fix("relabel", audit.pictures.files[position], label, finding.text)
        if finding.kind == "outlier" and position not in fixed:
            fixed.add(position)
            yield Fix("remove", audit.pictures.files[position], "", f"outlier: {finding.text}")


def render_gallery(audit: Audit, source: str, read_pixels: ReadPixels) -> str:
    """Returns the gallery as HTML text. Names of files and classes are escaped."""
    parts = []
    for kind, about in KINDS.items():
        findings = audit.of_kind(kind)
        if findings:
            shown = [_shown_finding(audit, finding, read_pixels) for finding in findings[:_SHOWN]]
            more = max(0, len(findings) - _SHOWN)
            parts.append({"kind": kind, "about": about, "findings": shown, "more": more})
    text = _template().render(
        source=one_line(source), summary=summarize(audit), notes=audit.notes, parts=parts
    )
    return text.encode("utf-8", "replace").decode("utf-8")


def _shown_finding(audit: Audit, finding: Finding, read_pixels: ReadPixels) -> dict[str, Any]:
    pictures = []
    for position in finding.positions[:_SHOWN_PICTURES]:
        pixels = read_pixels(position)
        pictures.append(
            {
                "file": one_line(audit.pictures.files[position]),
                "about": audit.pictures.describe(position),
                "address": "" if pixels is None else data_uri(pixels),
            }
        )
    return {
        "text": finding.text,
        "pictures": pictures,
        "more": max(0, len(finding.positions) - len(pictures)),
    }


def _row(audit: Audit, finding: Finding, rank: int, position: int | None) -> list[str]:
    pictures = audit.pictures
    suggested = "" if finding.suggested is None else pictures.classes[finding.suggested]
    picture = ["", "", ""]
    if position is not None:
        label = pictures.classes[int(pictures.labels[position])]
        picture = [pictures.files[position], label, pictures.splits[position]]
    return [finding.kind, str(rank), *picture, suggested, f"{finding.score:.4f}", finding.text]


def write_table(path: Path, rows: Sequence[Sequence[str]]) -> None:
    """Writes a CSV file with a byte order mark, without which Excel does not read UTF-8.

    Names that are not UTF-8 keep their bytes, and no cell is a formula.
    """
    text = io.StringIO()
    writer = csv.writer(text)  # with CRLF: cells with a carriage return are then quoted
    for row in rows:
        writer.writerow([mark_formula(cell) for cell in row])
    with atomic_write(path) as stream:
        stream.write((BYTE_ORDER_MARK + text.getvalue()).encode("utf-8", "surrogateescape"))


def read_table(data: bytes, delimiter: str = ",") -> list[list[str]]:
    """Returns the rows of a CSV file that `write_table` wrote, or that a spreadsheet saved.

    Args:
        data: Content of the file.
        delimiter: Character between cells. In many countries, spreadsheets write semicolons.
    """
    if data.startswith(_UTF_16):
        text = data.decode("utf-16", "replace")
    else:
        text = data.decode("utf-8-sig", "surrogateescape")
    rows = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
    return [[unmark_formula(cell) for cell in row] for row in rows]


@cache
def _template() -> Template:
    environment = Environment(
        loader=PackageLoader("ppcls.audit", "page"), autoescape=True, undefined=StrictUndefined
    )
    return environment.get_template("audit.html.j2")
