"""Ways to train that a benchmark measures."""

from __future__ import annotations

from dataclasses import replace

import pytest
from paths import ROOT

from ppcls.bench.train.variants import (
    PRECISIONS,
    Inspection,
    Variant,
    config_variant,
    find_obstacle,
    find_variants,
)
from ppcls.errors import UserError
from ppcls.recipe.load import load_config
from ppcls.recipe.schema import Config

CONFIGS = ROOT / "configs"
CPU = Inspection("cpu", 2, 2)
H200 = Inspection("gpu", 16, 16, 4, "NVIDIA H200", (9, 0))
V100 = Inspection("gpu", 16, 16, 1, "Tesla V100-SXM2-32GB", (7, 0))


def config(name: str = "ResNet50.yaml", *overrides: str) -> Config:
    return load_config(CONFIGS / name, overrides)


def variant_of(config: Config, machine: Inspection, source: str) -> Variant:
    return config_variant(config.DataLoader.need_train().sampler, config.Arch, config.AMP, machine, source)


@pytest.mark.parametrize(
    ("name", "device", "precision", "layout"),
    [
        ("ResNet50.yaml", CPU, "float32", "NCHW"),
        ("ResNet50.yaml", V100, "float32", "NCHW"),
        ("ResNet50.yaml", H200, "TF32", "NCHW"),
        ("ResNet50_fp16.yaml", H200, "O1", "NCHW"),
        ("ResNet50_fp16_ultra.yaml", H200, "O2", "NHWC"),
        ("ResNet50_bf16.yaml", H200, "O1-bfloat16", "NHWC"),
    ],
)
def test_config_variant_reads_the_config(name: str, device: Inspection, precision: str, layout: str) -> None:
    base_variant = variant_of(config(name), device, "loader")
    assert (base_variant.precision, base_variant.layout, base_variant.processes, base_variant.source) == (
        precision,
        layout,
        1,
        "loader",
    )


@pytest.mark.parametrize("name", ["ResNet50.yaml", "ResNet50_fp16_ultra.yaml", "ResNet50_bf16.yaml"])
def test_overrides_turn_the_config_into_the_variant(name: str) -> None:
    base = config(name)
    base_variant = variant_of(base, H200, "loader")
    axes = {
        "precision": list(PRECISIONS),
        "layout": ["NCHW", "NHWC"],
        "batch_size": [32, 64],
        "processes": [],
    }
    variants = find_variants(base_variant, H200, ["loader"], axes)
    assert len(set(variants)) == len(PRECISIONS) * 2 * 2
    for each in variants:
        found = variant_of(config(name, *each.overrides(base_variant)), H200, "loader")
        precision = "TF32" if each.precision == "float32" else each.precision  # the environment decides which
        assert found == replace(each, precision=precision)


def test_find_variants_tour_changes_one_thing_at_a_time() -> None:
    base = config("ResNet50_fp16_ultra.yaml")
    base_variant = variant_of(base, H200, "synthetic")
    tour = find_variants(base_variant, H200, ["synthetic", "loader"], {})
    assert tour[:2] == [base_variant, replace(base_variant, source="loader")]
    assert len(tour) == 2 * (1 + 5 + 1 + 2)  # precisions, layout, 2 and 4 GPUs
    for each in tour:
        changed = [name for name, value in each.labels().items() if value != base_variant.labels()[name]]
        assert len([name for name in changed if name != "source"]) <= 1


def test_find_variants_combines_axes_and_keeps_the_rest() -> None:
    axes = {"processes": [1, 2], "precision": ["O1", "O2"]}
    found = find_variants(variant_of(config(), H200, "synthetic"), H200, ["synthetic", "bare"], axes)
    assert len(found) == 8
    assert {each.layout for each in found} == {"NCHW"}
    assert [each.source for each in found[:2]] == ["synthetic", "bare"]


@pytest.mark.parametrize(
    ("change", "device", "reason"),
    [
        ({"precision": "O2"}, CPU, "float16 needs a GPU"),
        ({"precision": "TF32"}, CPU, "TF32 needs a GPU"),
        ({"precision": "O1-bfloat16"}, CPU, None),
        ({"processes": 8}, CPU, None),
        (
            {"precision": "TF32"},
            V100,
            "TF32 needs compute capability 8.0 (Ampere), but Tesla V100-SXM2-32GB has 7.0",
        ),
        ({"processes": 8}, H200, "8 processes need 8 GPUs, but Paddle finds 4"),
        ({"processes": 4, "precision": "O2-bfloat16"}, H200, None),
    ],
)
def test_find_obstacle_returns_the_reason_or_none(
    change: dict[str, object], device: Inspection, reason: str | None
) -> None:
    variant = variant_of(config(), device, "synthetic")
    assert find_obstacle(replace(variant, **change), device) == reason


def test_environment_distinguishes_float32_from_tf32() -> None:
    variant = variant_of(config(), H200, "synthetic")
    assert variant.environment() == {"NVIDIA_TF32_OVERRIDE": None}
    assert replace(variant, precision="float32").environment() == {"NVIDIA_TF32_OVERRIDE": "0"}
    assert "NVIDIA_TF32_OVERRIDE" not in replace(variant, precision="O2").environment()


def test_describe_names_all_deviations() -> None:
    variant = Variant(2, "O2", "NHWC", 256, "loader", "PyTorch")
    assert variant.describe() == "PyTorch, 2 processes, O2, NHWC, batch 256, loader"
    assert Variant(1, "O2", "NHWC", 0, "bare").describe() == "1 process, O2, NHWC, bare"


def test_overrides_keep_a_global_batch_size() -> None:
    base = config("ResNet50.yaml", "DataLoader.Train.sampler={global_batch_size: 256, shuffle: True}")
    base_variant = variant_of(base, H200, "loader")
    assert base_variant.batch_size == 0
    assert not any("batch" in each for each in replace(base_variant, processes=2).overrides(base_variant))


def test_config_variant_without_training_data_is_rejected() -> None:
    evaluated = config("ResNet50.yaml", "DataLoader.Train=null", "DataLoader.Eval.sampler.batch_size=64")
    with pytest.raises(UserError, match=r"DataLoader\.Train: missing"):
        variant_of(evaluated, CPU, "loader")


def test_search_of_cudnn_is_a_label_only_if_it_is_set() -> None:
    variant = Variant(1, "O1", "NCHW", 8, "loader")
    assert "cudnn search" not in variant.labels()
    assert variant.environment() == {}
    on = replace(variant, cudnn_search="on")
    assert on.labels()["cudnn search"] == "on"
    assert on.describe() == "1 process, O1, NCHW, batch 8, cuDNN search on, loader"
    assert on.environment() == {"FLAGS_cudnn_exhaustive_search": "1"}
    assert replace(variant, cudnn_search="off").environment() == {"FLAGS_cudnn_exhaustive_search": "0"}
    cpu = Inspection("cpu", 2, 2)
    assert find_obstacle(replace(on, precision="float32"), cpu) == "the search of cuDNN needs a GPU"
    assert find_obstacle(replace(on, precision="float32", cudnn_search="off"), cpu) is None
