"""Results for the tests of what shows results: two kinds of rows, a line chart and a bar chart."""

from __future__ import annotations

from ppcls.bench.results.results import Chart, Metric, Results, Row


def _row(backend: str, threads: int, *values: float) -> Row:
    return Row({"backend": backend, "threads": threads}, {"throughput": Metric(values, "images/s")})


RESULTS = Results(
    benchmark="loader",
    command=("tools/benchmark.py", "loader", "-c", "my config.yaml"),
    written="2026-01-02T03:04:05+00:00",
    machine={"Processor": "an <old> one"},
    versions={"ppcls": "1"},
    config="Global:\n  seed: 1 # </pre></script>\n",
    rows=(
        _row("DALI", 1, 500.0, 520.0, 510.0),
        _row("DALI", 2, 1000.0, 900.0, 1100.0),
        _row("paddle.io $x", 2, 400.0),
        Row({"backend": "DALI", "threads": 64}, {}, "out of <memory> [b]"),
        Row({"stage": "disk"}, {"throughput": Metric((20000.0,), "images/s")}),
        Row({"stage": "decode"}, {"throughput": Metric((1234.5,), "images/s")}),
    ),
    charts=(
        Chart("Speed by threads", "throughput", "threads", ("backend",)),
        Chart("Stages, each alone", "throughput", "stage"),
        Chart("Not measured", "memory", "threads"),
    ),
    findings=("Use 2 threads & no <more>.",),
)
