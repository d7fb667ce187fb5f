"""Example results for tests of tables and charts: two kinds of rows, a line chart and a bar chart."""

from __future__ import annotations

from ppcls.bench.results.schema import Quantity, ResultRow, Results


def speed_row(backend: str, threads: int, *values: float) -> ResultRow:
    return ResultRow({"backend": backend, "threads": threads}, {"images/s": Quantity(values, "images/s")})


RESULTS = Results(
    benchmark="loader",
    command=("tools/benchmark.py", "loader", "-c", "my config.yaml"),
    written="2026-01-02T03:04:05+00:00",
    machine={"Processor": "an <old> one"},
    versions={"ppcls": "1"},
    config="Global:\n  seed: 1 # </pre></script>\n",
    rows=(
        speed_row("DALI", 1, 500.0, 520.0, 510.0),
        speed_row("DALI", 2, 1000.0, 900.0, 1100.0),
        speed_row("paddle.io $x", 2, 400.0),
        ResultRow({"backend": "DALI", "threads": 64}, {}, "out of <memory> [b]"),
        ResultRow({"stage": "disk"}, {"images/s": Quantity((20000.0,), "images/s")}),
        ResultRow({"stage": "decode"}, {"images/s": Quantity((1234.5,), "images/s")}),
    ),
    findings=("Use 2 threads & no <more>.",),
)
