"""Tables of kernels."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.infer.kernels import KernelTime, describe, sum_up
from benchmarks.run import main


def event(name: str, start: float, duration: float) -> dict[str, Any]:
    return {"name": name, "ts": start, "dur": duration, "cat": "Kernel"}


def test_shortest_time_of_each_call_counts() -> None:
    """Two batches: the first call of `add` is disturbed in the first, and the second call in the second."""
    events = [
        event("add[9.000 us]", 10, 9000.0),
        event("add[2.000 us]", 20, 2000.0),
        event("void mul<float>[1.500 us]", 30, 1500.0),
        event("add[8.000 us]", 60, 8000.0),
        event("void mul<float>[1.000 us]", 70, 1000.0),
        event("add[1.000 us]", 50, 1000.0),  # events of a trace are in any order
    ]
    assert sum_up(events, 2) == [KernelTime("add", 3.0, 2), KernelTime("mul<float>", 1.0, 1)]


def test_calls_that_differ_between_batches_are_averaged() -> None:
    events = [event("copy dygraph", start, 1000.0) for start in range(5)]
    assert sum_up(events, 2) == [KernelTime("copy", 2.5, 2.5)]


def test_table_lists_the_longest_kernels_and_the_sum_of_all() -> None:
    rows = [KernelTime("short", 0.25, 3), KernelTime("long", 1.5, 1), KernelTime("medium", 0.5, 2)]
    lines = describe("ResNet50", 2.75, rows, 2).splitlines()
    assert [line.split() for line in lines] == [
        ["ResNet50"],
        ["whole", "batch", "2.750", "ms"],
        ["all", "kernels", "2.250", "ms", "6", "calls"],
        ["1.500", "ms", "1", "x", "long"],
        ["0.500", "ms", "2", "x", "medium"],
    ]


def test_no_model_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["kernels"]) == 2
    assert "nothing to measure; use --model PATH or --random NAME" in capsys.readouterr().err


@pytest.mark.slow
def test_operators_of_a_model_on_a_cpu_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    settings = ["-o", "Global.device=cpu", "Global.fused_kernels=False"]
    assert main(["kernels", "--random", "MobileNetV3_small_x0_35", "--batch-size", "1", *settings]) == 0
    text = capsys.readouterr().out
    assert "MobileNetV3_small_x0_35, batch 1, Paddle" in text
    assert "operators of Paddle" in text
    assert " x conv2d" in text
