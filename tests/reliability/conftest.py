"""What these tests share: a small config, and a table of what they found, at the end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from figures import Figure, table


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--figures", metavar="FILE", help="write the table of reliability figures to FILE")


@pytest.fixture
def figure(record_property: Callable[[str, object], None]) -> Figure:
    """Puts a line into the table: what was tried, how often, and what came of it."""
    return lambda text: record_property("figure", text)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):
        return  # xdist's controller has all reports
    text = table(terminalreporter)
    if text:
        terminalreporter.section("reliability")
        terminalreporter.write(text)
    name = config.getoption("--figures", None)
    if name is not None:
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(text)
