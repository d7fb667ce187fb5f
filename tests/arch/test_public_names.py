"""Names of networks in timm and torchvision: what a family can declare, and where declarations are found."""

from __future__ import annotations

import ast
from typing import ClassVar

import pytest
from paddle import nn
from paddle.vision import models
from paths import ROOT

from ppcls.arch.public.names import PublicNames, apply_rules
from ppcls.arch.public_names import public_names


class Network(nn.Layer):  # type: ignore[misc]
    """Three stages with 2, 1 and 2 blocks."""

    depths = (2, 1, 2)
    public_names: ClassVar[PublicNames] = PublicNames(
        timm={
            r"^block(\d+)\.": "stages.{stage}.{block}.",
            r"^up(\d)\.": r"level{2*\1+1}.",
            r"^pick(\d)\.": r"{\1:first second third}.",
            r"\.unit\.": (".conv.", ".norm."),
        },
        torchvision={"^head": "fc"},
    )


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("block0.weight", "stages.0.0.weight"),
        ("block2.weight", "stages.1.0.weight"),
        ("block4.weight", "stages.2.1.weight"),
        ("up3.bias", "level7.bias"),
        ("pick1.bias", "second.bias"),
        ("a.unit._conv.weight", "a.conv.weight"),
        ("a.unit._batch_norm.weight", "a.norm.weight"),
        ("other.weight", "other.weight"),
    ],
)
def test_templates_compute_names(name: str, expected: str) -> None:
    model = Network()
    assert apply_rules(public_names(model).timm_rules(model) or (), name) == expected


def test_torchvision_has_the_rules_of_timm_unless_it_has_its_own() -> None:
    model = Network()
    assert apply_rules(public_names(model).torchvision_rules(model), "head.weight") == "fc.weight"
    only_timm = PublicNames(timm={"^head": "fc"})
    assert apply_rules(only_timm.torchvision_rules(model), "head.weight") == "fc.weight"
    assert PublicNames(torchvision={}).timm_rules(model) is None


def test_starts_are_found_in_the_names_of_parameters() -> None:
    model = nn.LayerDict({"b0": nn.Linear(1, 1), "b3": nn.Linear(1, 1)})
    names = PublicNames(timm={r"^b(\d+)\.": "{stage}.{block}."}, starts=r"b(\d+)\.weight")
    assert apply_rules(names.timm_rules(model) or (), "b4.weight") == "1.1.weight"


def test_networks_of_paddle_and_unknown_networks_have_declarations() -> None:
    assert public_names(models.vgg11(num_classes=2)).timm
    assert public_names(nn.Linear(1, 1)) == PublicNames()


def test_weights_import_no_family() -> None:
    for path in (ROOT / "ppcls" / "weights").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                assert not (node.module or "").startswith("ppcls.arch.families"), path
