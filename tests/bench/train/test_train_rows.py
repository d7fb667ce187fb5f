"""Measurements of training to rows, charts and sentences."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ppcls.bench.measure.turns import Measured
from ppcls.bench.results.charts import drawings
from ppcls.bench.results.results import Results
from ppcls.bench.train.rows import Ways, charts_of, findings_of, rows_of
from ppcls.bench.train.train import Look
from ppcls.bench.train.variants import Place, Variant

PLAIN = "steps: operator by operator"
WAY = Variant(1, "O2", "NHWC", "on", 1, 256, "synthetic")
FED = replace(WAY, source="loader")
H200 = Place("gpu", 16, 2, "NVIDIA H200", (9, 0))


def look(place: Place = H200) -> Look:
    return Look(place, {}, {}, "ResNet50", "224x224", 16, 25_557_032, 4_089_184_256)


def ways(variant: Variant, *rates: float, reason: str = "", **more: Any) -> Ways:
    whole = {"step": 0.05, "data_wait": 0.25, "cpu_cores": 3.0, "host_memory": 4000, "execution": PLAIN}
    gpu = {"gpu_reserved": 9000, "gpu_allocated": 8000}
    return Measured(variant, [{"images_per_second": rate, **whole, **gpu, **more} for rate in rates], reason)


def test_a_row() -> None:
    phases = {"data wait": 0.001, "forward": 0.01, "backward": 0.02, "optimizer": 0.003, "host": 0.0005}
    whole, split = rows_of([ways(WAY, 5000.0, 5100.0, phases=phases)], look())
    assert whole.labels == {"model": "ResNet50", "image": "224x224", **WAY.labels()}
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


def test_efficiency_is_against_one_process_in_the_same_round() -> None:
    two = replace(WAY, processes=2)
    measured = [ways(WAY, 5000.0, 4000.0), ways(FED, 3000.0), ways(two, 9000.0, 8000.0)]
    rows = rows_of(measured, look())
    assert rows[2].metrics["efficiency"].values == (90.0, 100.0)
    assert "efficiency" not in rows[0].metrics
    alone = rows_of([ways(two, 9000.0)], look())
    assert "efficiency" not in alone[0].metrics


def test_mfu_is_of_each_card() -> None:
    rows = rows_of([ways(WAY, 5000.0), ways(replace(WAY, processes=2), 10000.0)], look())
    assert rows[0].metrics["MFU"] == rows[1].metrics["MFU"]


def test_tf32_and_float32_have_their_own_peaks() -> None:
    rows = rows_of([ways(replace(WAY, precision=each), 2000.0) for each in ("TF32", "float32")], look())
    tf32, exact = (row.metrics["MFU"].median for row in rows)
    assert exact / tf32 == pytest.approx(494.5 / 67)


def test_the_exchange_hidden_and_not() -> None:
    phases = {"backward": 0.02, "all-reduce": 0.004, "all-reduce hidden": 0.006}
    _, split = rows_of([ways(replace(WAY, processes=2), 1.0, phases=phases)], look())
    found = {name: metric.median for name, metric in split.metrics.items()}
    assert found["all-reduce not hidden"] == pytest.approx(4.0)
    assert found["all-reduce hidden"] == pytest.approx(6.0)


def test_what_failed_is_a_row_with_its_reason() -> None:
    rows = rows_of([ways(WAY, 5000.0), ways(FED, reason="no data"), ways(FED, 1.0, reason="hung")], look())
    assert rows[1].metrics == {}
    assert rows[1].note == "no data"
    assert rows[2].note == "no more rounds after 1: hung"


def test_steps_of_several_kinds_are_noted() -> None:
    graph = ways(FED, 6000.0, execution="steps: a CUDA graph", no_phases="out of GPU memory")
    rows = rows_of([ways(WAY, 5000.0), graph], look())
    assert [row.note for row in rows] == [PLAIN, "steps: a CUDA graph; phases not timed: out of GPU memory"]


def test_findings() -> None:
    said = list(findings_of([ways(WAY, 5000.0), ways(FED, 4000.0), ways(WAY, reason="no")], look()))
    assert said[0] == f"Fastest: {WAY.describe()}: 5000 images/s."
    assert said[1] == "Paddle's steps: operator by operator."
    assert said[-1] == "1 of 3 ways could not be measured; each row says why."
    assert not any("MFU" in each for each in said)
    noisy = list(findings_of([ways(WAY, 5000.0, 4000.0), ways(FED, 4500.0, 3000.0)], look()))
    assert noisy[1].startswith("Runs of one and the same setting differ by ±16% here")
    assert list(findings_of([ways(WAY, reason="no")], look())) == [
        "Nothing could be measured; each row says why."
    ]


def test_why_there_is_no_mfu() -> None:
    card = replace(H200, card="NVIDIA Something")
    measured = [ways(WAY, 5000.0)]
    assert "MFU" not in rows_of(measured, look(card))[0].metrics
    said = "No MFU: the peak rates of 'NVIDIA Something' are not known (ppcls/bench/train/peak_flops.py)."
    assert said in list(findings_of(measured, look(card)))


def test_what_a_cpu_can_not_show_is_said() -> None:
    cpu = [replace(WAY, precision="O1-bfloat16", cudnn_search="none", processes=count) for count in (1, 2)]
    said = " ".join(findings_of([ways(each, 5.0) for each in cpu], look(Place("cpu", 2))))
    assert "gloo processes that share this CPU's 2 cores" in said
    assert "bfloat16 on a CPU is rounding" in said
    assert "No MFU: the peak rate of a CPU is not known." in said


def test_charts_show_what_varies() -> None:
    counts = [replace(way, processes=count) for count in (1, 2, 4) for way in (WAY, FED)]
    measured = [ways(each, 100.0 * each.processes) for each in counts]
    rows = tuple(rows_of(measured, look()))
    drawn = drawings(Results("train", (), "", {}, {}, "", rows, tuple(charts_of(measured))))
    assert [each.title for each in drawn] == ["Training, by processes", "Efficiency against one process"]
    assert [[point.x for point in series.points] for series in drawn[0].series] == [[1, 2, 4], [1, 2, 4]]
    assert [series.name for series in drawn[0].series] == ["synthetic", "loader"]


def test_charts_set_frameworks_beside_each_other() -> None:
    torch = replace(WAY, framework="PyTorch", precision="O1")  # what stands beside our O2
    counts = [replace(way, processes=count) for count in (1, 2) for way in (WAY, FED, torch)]
    drawn = charts_of([ways(each, 100.0) for each in counts])
    assert [(each.x, each.series) for each in drawn] == [("processes", ("framework", "source"))] * 2
    assert all(each.where == {} for each in drawn)
    (only,) = charts_of([ways(WAY, 1.0), ways(torch, 1.0)])
    assert (only.x, only.series) == ("framework", ())


def test_several_models_at_once_have_no_mfu() -> None:
    several = replace(look(), multiply_adds=None)
    assert "MFU" not in rows_of([ways(WAY, 5000.0)], several)[0].metrics
    said = "No MFU: of several models that train at once, only one's multiplications are counted."
    assert said in list(findings_of([ways(WAY, 5000.0)], several))


def test_charts_of_a_tour_hold_all_else_fixed() -> None:
    others = [replace(WAY, layout="NCHW"), replace(WAY, precision="O1"), replace(WAY, precision="TF32")]
    measured = [ways(each, 100.0) for each in (WAY, *others)]
    rows = tuple(rows_of(measured, look()))
    drawn = drawings(Results("train", (), "", {}, {}, "", rows, tuple(charts_of(measured))))
    assert [each.categories for each in drawn] == [("O2", "O1", "TF32"), ("NHWC", "NCHW")]
