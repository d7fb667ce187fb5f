"""Formats the results of reliability tests as a table."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest

Figure = Callable[[str], None]  # says what was tried, how often, and what came of it


def table(terminalreporter: Any) -> str:
    """Returns a block for each file: tests passed, failed and skipped, seconds, and their figures."""
    reports = [
        (kind, each)
        for kind in ("passed", "failed", "error", "skipped")
        for each in terminalreporter.getreports(kind)
        if isinstance(each, pytest.TestReport)
    ]
    files: dict[str, list[tuple[str, pytest.TestReport]]] = defaultdict(list)
    for kind, report in reports:
        if report.when == "call" or kind != "passed":
            files[report.location[0]].append((kind, report))
    lines = []
    for file, found in sorted(files.items()):
        count = {kind: sum(each == kind for each, _ in found) for kind, _ in found}
        counts = ", ".join(f"{number} {kind}" for kind, number in count.items())
        lines.append(f"{file}: {counts}, {sum(report.duration for _, report in found):.0f} s")
        for kind, report in sorted(found, key=lambda each: each[1].nodeid):
            failed = "" if kind in ("passed", "skipped") else f"{kind.upper()}: "
            texts = [text for name, text in report.user_properties if name == "figure"]
            if failed and not texts:
                texts = [report.nodeid.partition("::")[2]]
            lines += [f"    {failed}{text}" for text in texts]
    return "".join(f"{line}\n" for line in lines)
