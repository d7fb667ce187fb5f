"""Rows, charts and conclusions of training."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from finished_candidates import finished

from ppcls.bench.results.schema import Quantity, ResultRow
from ppcls.bench.train.results import MeasuredVariant, add_epochs, explain_rows, make_rows
from ppcls.bench.train.variants import Inspection, Variant

PLAIN = "steps: operator by operator"
PLAIN_VARIANT = Variant(1, "O2", "NHWC", 256, "synthetic")
FED = replace(PLAIN_VARIANT, source="loader")
H200 = Inspection("gpu", 16, 16, 2, "NVIDIA H200", (9, 0), multiply_adds=4_089_184_256)


def measured(variant: Variant, *rates: float, reason: str = "", **more: Any) -> MeasuredVariant:
    whole = {"step": 0.05, "data_wait": 0.25, "cpu_cores": 3.0, "host_memory": 4000, "execution": PLAIN}
    gpu = {"gpu_reserved": 9000, "gpu_allocated": 8000}
    samples = [{"images_per_second": rate, **whole, **gpu, **more} for rate in rates]
    return finished(variant, variant.describe(), samples, reason, variant.labels())


def test_make_rows_returns_the_step_and_its_phases() -> None:
    phases = {"data wait": 0.001, "forward": 0.01, "backward": 0.02, "optimizer": 0.003, "host": 0.0005}
    whole, split = make_rows([measured(PLAIN_VARIANT, 5000.0, 5100.0, phases=phases)], H200)
    assert whole.labels == PLAIN_VARIANT.labels()
    assert {name: metric.values for name, metric in whole.metrics.items()} == {
        "images/s": (5000.0, 5100.0),
        "step": (50.0, 50.0),
        "data wait": (25.0, 25.0),
        "CPU load": (3.0, 3.0),
        "host memory": (4000, 4000),
        "GPU memory": (9000, 9000),
        "GPU memory in tensors": (8000, 8000),
        "MFU": pytest.approx((12.398, 12.646), abs=1e-3),  # of 989.5 TFLOP/s
    }
    assert whole.note == ""
    assert split.labels == {**whole.labels, "of": "phases of a step"}
    assert {name: metric.median for name, metric in split.metrics.items()} == pytest.approx(
        {"data": 1.0, "forward": 10.0, "backward": 20.0, "optimizer": 3.0, "rest": 0.5}
    )


def test_efficiency_compares_with_one_process_in_the_same_round() -> None:
    two = replace(PLAIN_VARIANT, processes=2)
    found = [measured(PLAIN_VARIANT, 5000.0, 4000.0), measured(FED, 3000.0), measured(two, 9000.0, 8000.0)]
    rows = make_rows(found, H200)
    assert rows[2].metrics["efficiency"].values == (90.0, 100.0)
    assert "efficiency" not in rows[0].metrics
    alone = make_rows([measured(two, 9000.0)], H200)
    assert "efficiency" not in alone[0].metrics


def test_mfu_is_per_card() -> None:
    rows = make_rows(
        [measured(PLAIN_VARIANT, 5000.0), measured(replace(PLAIN_VARIANT, processes=2), 10000.0)],
        H200,
    )
    assert rows[0].metrics["MFU"] == rows[1].metrics["MFU"]


def test_mfu_uses_the_peak_of_the_format() -> None:
    rows = make_rows(
        [measured(replace(PLAIN_VARIANT, precision=each), 2000.0) for each in ("TF32", "float32")],
        H200,
    )
    tf32, exact = (row.metrics["MFU"].median for row in rows)
    assert exact / tf32 == pytest.approx(494.5 / 67)


def test_make_rows_hidden_and_visible_all_reduce() -> None:
    phases = {"backward": 0.02, "all-reduce": 0.004, "all-reduce hidden": 0.006}
    _, split = make_rows([measured(replace(PLAIN_VARIANT, processes=2), 1.0, phases=phases)], H200)
    found = {name: metric.median for name, metric in split.metrics.items()}
    assert found["all-reduce not hidden"] == pytest.approx(4.0)
    assert found["all-reduce hidden"] == pytest.approx(6.0)


def test_make_rows_failure_is_a_row_with_its_reason() -> None:
    rows = make_rows(
        [measured(PLAIN_VARIANT, 5000.0), measured(FED, reason="no data"), measured(FED, 1.0, reason="hung")],
        H200,
    )
    assert rows[1].metrics == {}
    assert rows[1].note == "no data"
    assert rows[2].note == "rounds measured: 1; hung"


def test_make_rows_different_executions_are_noted() -> None:
    graph = measured(FED, 6000.0, execution="steps: a CUDA graph", no_phases="out of GPU memory")
    rows = make_rows([measured(PLAIN_VARIANT, 5000.0), graph], H200)
    assert [row.note for row in rows] == [PLAIN, "steps: a CUDA graph; phases not timed: out of GPU memory"]


def test_explain_rows_names_the_common_execution() -> None:
    found = [measured(PLAIN_VARIANT, 5000.0), measured(FED, 4000.0), measured(PLAIN_VARIANT, reason="no")]
    assert list(explain_rows(found, H200)) == ["Paddle steps: operator by operator."]
    assert list(explain_rows(found[2:], H200)) == []


def test_explain_rows_reason_for_missing_mfu() -> None:
    card = replace(H200, card="NVIDIA Something")
    found = [measured(PLAIN_VARIANT, 5000.0)]
    assert "MFU" not in make_rows(found, card)[0].metrics
    sentences = "No MFU: the peak rates of 'NVIDIA Something' are unknown (ppcls/bench/train/peak_flops.py)."
    assert sentences in list(explain_rows(found, card))


def test_explain_rows_limits_of_a_cpu() -> None:
    cpu = [replace(PLAIN_VARIANT, precision="O1-bfloat16", processes=count) for count in (1, 2)]
    sentences = " ".join(explain_rows([measured(each, 5.0) for each in cpu], Inspection("cpu", 2, 2)))
    assert "All processes share 2 CPU cores" in sentences
    assert "On a CPU, bfloat16 is emulated" in sentences
    assert "No MFU: the peak rate of a CPU is unknown." in sentences


def test_mfu_of_several_models_is_unknown() -> None:
    several = replace(H200, multiply_adds=None)
    assert "MFU" not in make_rows([measured(PLAIN_VARIANT, 5000.0)], several)[0].metrics
    sentences = "No MFU: several models are trained together, and their total multiply-adds are unknown."
    assert sentences in list(explain_rows([measured(PLAIN_VARIANT, 5000.0)], several))


def test_epochs_are_seconds_computed_from_images_per_second() -> None:
    measured = ResultRow({"x": 1}, {"images/s": Quantity((100.0, 50.0), "images/s")})
    failed = ResultRow({"x": 2}, {}, "no GPU")
    rows = add_epochs([measured, failed], 10, 500)
    assert rows[0].metrics["time"] == Quantity((50.0, 100.0), "s for 10 epochs", "less")
    assert rows[1] == failed
    assert add_epochs([measured, failed], None, 500) == [measured, failed]
