"""Warnings about pixel values that differ between training, evaluation and prediction, or can't be right."""

from __future__ import annotations

from typing import Any

import pytest
from paddleclas_trees import plain
from paths import ROOT

from ppcls.recipe.compat import config_warnings
from ppcls.recipe.load import load_config

IMAGENET = {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}
PLACES = ("Train", "Eval", "Infer")


def warnings(decoders: dict[str, dict[str, Any]], scalings: dict[str, dict[str, Any]]) -> list[str]:
    """The warnings about pixels of a config with these keys of DecodeImage and NormalizeImage."""
    tree = plain("ResNet50")
    loader = tree["DataLoader"]
    tree.setdefault("Infer", {})
    for place in PLACES:
        decode = {"DecodeImage": {"to_rgb": True, **decoders.get(place, {})}}
        scale = {"NormalizeImage": {"scale": "1.0/255.0", **IMAGENET, **scalings.get(place, {})}}
        chain = [decode, {"ResizeImage": {"size": 224}}, scale, {"ToCHWImage": None}]
        if place == "Infer":
            tree["Infer"]["transforms"] = chain
        else:
            loader[place]["dataset"]["transform_ops"] = chain
    lines = config_warnings(load_config(tree))
    return [line for line in lines if "NormalizeImage" in line or "channels are" in line]


def everywhere(keys: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return dict.fromkeys(PLACES, keys)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    "keys", [{"scale": 1.0}, {"mean": [0.5, 0.5, 0.5]}, {"std": [0.5, 0.5, 0.5]}, {"scale": "1.0/127.5"}]
)
def test_other_values_than_in_training_are_named(place: str, keys: dict[str, Any]) -> None:
    found = warnings({}, {place: keys})
    others = ["DataLoader.Eval: ", "Infer: "] if place == "Train" else [f"{place}: "]
    differing = [line for line in found if "set the same scale, mean and std" in line]
    assert len(differing) == len(others)
    assert all(name in line for name, line in zip(others, differing, strict=True))


@pytest.mark.parametrize("place", PLACES[1:])
def test_another_order_of_channels_is_named(place: str) -> None:
    (line,) = warnings({place: {"to_rgb": False}}, {})
    assert f"{place}: the channels are blue, green, red, but red, green, blue in DataLoader.Train" in line


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ({"mean": [123.675, 116.28, 103.53], "std": [58.395, 57.12, 57.375]}, "hardly differ"),
        ({"std": [58.395, 57.12, 57.375]}, "hardly differ"),
        ({"scale": 1.0}, "far from the usual range"),
        ({"mean": [123.675, 116.28, 103.53]}, "far from the usual range"),
    ],
)
def test_mean_and_std_in_other_units_than_scale_are_named(keys: dict[str, Any], text: str) -> None:
    (line,) = warnings({}, everywhere(keys))
    assert text in line
    assert "mean and std are in units of pixel * scale" in line


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"mean": [0.5, 0.5, 0.5], "std": [0.5, 0.5, 0.5]},
        {"scale": 1.0, "mean": [123.675, 116.28, 103.53], "std": [58.395, 57.12, 57.375]},
        {"scale": 1.0, "mean": [0.0, 0.0, 0.0], "std": [1.0, 1.0, 1.0]},
        {"mean": [0.0, 0.0, 0.0], "std": [1.0, 1.0, 1.0]},
    ],
)
def test_usual_values_cause_no_warning(keys: dict[str, Any]) -> None:
    assert warnings({}, everywhere(keys)) == []


def test_equal_values_in_other_units_cause_no_warning() -> None:
    same = {"scale": 1.0, "mean": [123.675, 116.28, 103.53], "std": [58.395, 57.12, 57.375]}
    assert warnings({}, {"Infer": same}) == []


@pytest.mark.parametrize("path", sorted((ROOT / "configs").glob("*.yaml")), ids=lambda path: path.stem)
def test_configs_of_ppcls_cause_no_warning(path: Any) -> None:
    if path.stem == "finetune":  # needs a folder
        return
    assert [line for line in config_warnings(load_config(path)) if "NormalizeImage" in line] == []
