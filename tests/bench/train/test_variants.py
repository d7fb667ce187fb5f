"""The ways of training that a benchmark goes through."""

from __future__ import annotations

from dataclasses import replace

import pytest
from paths import ROOT

from ppcls.bench.train.variants import (
    PRECISIONS,
    Axes,
    Place,
    Variant,
    counts,
    find_variants,
    hindrance,
    own_variant,
)
from ppcls.config.load import load_config
from ppcls.config.schema import Config
from ppcls.errors import UserError

CONFIGS = ROOT / "configs"
CPU = Place("cpu", 2)
H200 = Place("gpu", 16, 4, "NVIDIA H200", (9, 0))
V100 = Place("gpu", 16, 1, "Tesla V100-SXM2-32GB", (7, 0))


def config(name: str = "ResNet50.yaml", *overrides: str) -> Config:
    return load_config(CONFIGS / name, overrides)


@pytest.mark.parametrize(
    ("name", "place", "precision", "layout"),
    [
        ("ResNet50.yaml", CPU, "float32", "NCHW"),
        ("ResNet50.yaml", V100, "float32", "NCHW"),
        ("ResNet50.yaml", H200, "TF32", "NCHW"),
        ("ResNet50_fp16.yaml", H200, "O1", "NCHW"),
        ("ResNet50_fp16_ultra.yaml", H200, "O2", "NHWC"),
        ("ResNet50_bf16.yaml", H200, "O1-bfloat16", "NHWC"),
    ],
)
def test_a_configs_own_way(name: str, place: Place, precision: str, layout: str) -> None:
    own = own_variant(config(name), place, "loader")
    assert (own.precision, own.layout, own.processes, own.source) == (precision, layout, 1, "loader")
    assert own.cudnn_search == ("none" if place is CPU else "auto")


def test_a_deterministic_config_does_not_search() -> None:
    assert (
        own_variant(config("ResNet50.yaml", "Global.deterministic=True"), H200, "loader").cudnn_search
        == "off"
    )


@pytest.mark.parametrize("name", ["ResNet50.yaml", "ResNet50_fp16_ultra.yaml", "ResNet50_bf16.yaml"])
def test_every_way_is_a_config_of_its_own(name: str) -> None:
    """What `overrides` says makes, of the same YAML, the config whose own way it is."""
    base = config(name)
    own = own_variant(base, H200, "loader")
    axes = Axes(("loader",), (), tuple(PRECISIONS), ("NCHW", "NHWC"), (), (1, 4), (32, 64))
    variants = find_variants(base, H200, axes)
    assert len(set(variants)) == len(PRECISIONS) * 2 * 2 * 2
    for each in variants:
        found = own_variant(config(name, *each.overrides(own)), H200, "loader")
        precision = "TF32" if each.precision == "float32" else each.precision  # the environment says which
        assert found == replace(each, precision=precision)


def test_the_tour_changes_one_thing_at_a_time() -> None:
    base = config("ResNet50_fp16_ultra.yaml")
    own = own_variant(base, H200, "synthetic")
    tour = find_variants(base, H200, Axes())
    assert tour[:2] == [own, replace(own, source="loader")]
    assert len(tour) == 2 * (1 + 5 + 1 + 2 + 1 + 2)  # precisions, layout, search, accumulation, 2 and 4 GPUs
    for each in tour:
        changed = [name for name, value in each.labels().items() if value != own.labels()[name]]
        assert len([name for name in changed if name != "source"]) <= 1


def test_named_axes_are_crossed_and_the_rest_stays() -> None:
    axes = Axes(("synthetic", "bare"), (1, 2), ("O1", "O2"))
    found = find_variants(config(), H200, axes)
    assert len(found) == 8
    assert {each.layout for each in found} == {"NCHW"}
    assert [each.source for each in found[:2]] == ["synthetic", "bare"]


def test_numbers_of_gpus() -> None:
    assert [counts(most) for most in (0, 1, 2, 6, 8)] == [[], [1], [1, 2], [1, 2, 4, 6], [1, 2, 4, 8]]


@pytest.mark.parametrize(
    ("change", "place", "said"),
    [
        ({"precision": "O2"}, CPU, "float16 needs a GPU"),
        ({"precision": "TF32"}, CPU, "TF32 needs a GPU"),
        ({"precision": "O1-bfloat16"}, CPU, None),
        ({"cudnn_search": "off"}, CPU, "cuDNN is for GPUs"),
        ({"processes": 8}, CPU, None),
        (
            {"precision": "TF32"},
            V100,
            "TF32 needs compute capability 8.0 (Ampere), and Tesla V100-SXM2-32GB has 7.0",
        ),
        ({"processes": 8}, H200, "8 processes need as many GPUs, and Paddle sees 4"),
        ({"processes": 4, "precision": "O2-bfloat16"}, H200, None),
    ],
)
def test_what_can_not_run(change: dict[str, object], place: Place, said: str | None) -> None:
    way = own_variant(config(), place, "synthetic")
    assert hindrance(replace(way, **change), place) == said


def test_float32_and_tf32_are_told_apart_by_the_environment() -> None:
    way = own_variant(config(), H200, "synthetic")
    assert way.environment() == {"NVIDIA_TF32_OVERRIDE": None}
    assert replace(way, cudnn_search="on").environment()["FLAGS_cudnn_exhaustive_search"] == "1"
    exact = replace(way, precision="float32", cudnn_search="off").environment()
    assert exact == {"FLAGS_cudnn_exhaustive_search": "0", "NVIDIA_TF32_OVERRIDE": "0"}
    assert "NVIDIA_TF32_OVERRIDE" not in replace(way, precision="O2").environment()


def test_a_line_for_people() -> None:
    way = Variant(2, "O2", "NHWC", "on", 4, 256, "loader", "PyTorch")
    said = "PyTorch, 2 processes, O2, NHWC, cuDNN search on, 4 batches an update, batch 256, loader"
    assert way.describe() == said


def test_a_global_batch_stays_as_it_is() -> None:
    base = config("ResNet50.yaml", "DataLoader.Train.sampler={global_batch_size: 256, shuffle: True}")
    own = own_variant(base, H200, "loader")
    assert own.batch_size == 0
    assert not any("batch" in each for each in replace(own, processes=2).overrides(own))


def test_a_config_that_does_not_train() -> None:
    with pytest.raises(UserError, match=r"training needs DataLoader\.Train"):
        own_variant(config("ResNet50.yaml", "DataLoader.Train=null"), CPU, "loader")
