"""The table of architectures: its columns, size limits and published weights."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from ppcls.zoo import ZOO, architecture, cached_file, families_with, weights_url

SWIN = "SwinTransformer_tiny_patch4_window7_224"
SERVER = "https://paddle-imagenet-models-name.bj.bcebos.com/dygraph"


def test_rows_are_complete_and_plausible() -> None:
    for name, entry in ZOO.items():
        assert entry.parameters > 50_000, name
        assert entry.flops > 100_000, name
        assert all(top1 is None or 40 < top1 < 90 for top1 in entry.top1.values()), name
        if name.endswith(("_224", "_384")) and entry.family != "LeViT":  # whose names end with a width
            assert entry.side == int(name[-3:])
        if "patch16" in name or "patch32" in name:
            assert entry.patch == int(name.partition("patch")[2][:2])


def test_zoo_row_has_the_published_values() -> None:
    entry = ZOO["ResNet50_vd"]
    assert (entry.parameters, entry.flops) == (25_576_264, 4_328_824_832)
    assert entry.top1 == {"plain": 79.12, "ssld": 83.0}
    assert entry.builder == "ppcls.arch.families.resnet:ResNet50_vd"
    assert ZOO["EfficientNetB7"].input_shape == (3, 600, 600)
    assert ZOO["LeNet"].input_shape == (1, 28, 28)
    assert families_with("img_size") == [
        "ViT",
        "DeiT",
        "DINOv2",
        "DINOv3",
        "CLIP",
        "SigLIP",
        "LeViT",
        "TNT",
    ]


def test_registered_name_without_row_has_defaults() -> None:
    entry = architecture("Mine")
    assert (entry.input_shape, entry.options, entry.size_problem((1, 1))) == ((3, 224, 224), (), "")


@pytest.mark.parametrize(
    ("name", "img_size", "size", "text"),
    [
        ("ViT_base_patch16_224", None, (224, 224), ""),
        (
            "LeViT_192",
            None,
            (384, 384),
            "384 x 384, but Arch.name=LeViT_192 accepts only 224 x 224; set Arch.img_size=384, "
            "or change the size",
        ),
        (
            "ViT_base_patch16_224",
            None,
            (384, 384),
            "384 x 384, but Arch.name=ViT_base_patch16_224 accepts only 224 x 224; "
            "set Arch.name=ViT_base_patch16_384, or change the size",
        ),
        (
            "ViT_base_patch16_224",
            None,
            (240, 320),
            "240 x 320, but Arch.name=ViT_base_patch16_224 accepts only 224 x 224; make them square",
        ),
        (
            "ViT_base_patch16_224",
            None,
            (250, 250),
            "250 x 250, but Arch.name=ViT_base_patch16_224 accepts only 224 x 224; change the size",
        ),
        (
            "ViT_base_patch16_224",
            None,
            (64, 64),
            "64 x 64, but Arch.name=ViT_base_patch16_224 accepts only 224 x 224; "
            "set Arch.img_size=64, or change the size",
        ),
        ("ViT_base_patch16_224", 64, (64, 64), ""),
        ("ConvNeXt_tiny", None, (32, 40), ""),
        (
            "ConvNeXt_tiny",
            None,
            (31, 40),
            "31 x 40, but Arch.name=ConvNeXt_tiny needs at least 32 x 32, or a smaller Arch.patch_size",
        ),
        ("googlenet", None, (189, 236), ""),
        (
            "googlenet",
            None,
            (188, 224),
            "188 x 224, but Arch.name=googlenet accepts sides of 189 to 236 pixels; change the size",
        ),
        (
            "LeNet",
            None,
            (28, 32),
            "28 x 32, but Arch.name=LeNet accepts sides of 28 to 31 pixels; change the size",
        ),
        (SWIN, None, (1, 500), ""),
        ("ResNet50", None, (1, 1), ""),
    ],
)
def test_size_problem_names_limit_and_fix(
    name: str, img_size: int | None, size: tuple[int, int], text: str
) -> None:
    assert ZOO[name].size_problem(size, img_size) == text


def test_smaller_patches_accept_smaller_images() -> None:
    convnext = ZOO["ConvNeXt_tiny"]
    assert convnext.size_problem((16, 20), patch_size=2) == ""
    assert "needs at least 16 x 16" in convnext.size_problem((15, 20), patch_size=2)
    assert "set Arch.img_size=28" in ZOO["DeiT_tiny_patch16_224"].size_problem((28, 28), patch_size=4)


@pytest.mark.parametrize(
    ("name", "ssld", "branched", "file"),
    [
        ("ResNet50_vd", False, False, "ResNet50_vd"),
        ("ResNet50_vd", True, False, "ResNet50_vd_ssld"),
        ("ResNet18", False, True, "ResNet18_dbb"),
        ("PPHGNet_base", False, False, "PPHGNet_base_ssld"),
        ("PPHGNetV2_B0", False, False, "PPHGNetV2_B0_ssld_stage1"),
        ("PPHGNetV2_B0", True, False, "PPHGNetV2_B0_ssld_stage1"),
        (SWIN.replace("tiny", "large"), False, False, f"{SWIN.replace('tiny', 'large')}_22kto1k"),
        (SWIN.replace("tiny", "large"), True, False, f"{SWIN.replace('tiny', 'large')}_22kto1k"),
        ("resnet18", False, False, "resnet18"),
    ],
)
def test_weights_file_follows_published_kinds(name: str, ssld: bool, branched: bool, file: str) -> None:
    found = ZOO[name].weights_file(ssld=ssld, branched=branched)
    assert found == Path.home() / ".paddleclas" / "weights" / f"{file}_pretrained.pdparams"


def test_weights_url_knows_published_files_only() -> None:
    file = "ResNet50_vd_ssld_pretrained.pdparams"
    assert weights_url(file) == f"{SERVER}/legendary_models/{file}"
    assert weights_url("ResNet50_vc_pretrained.pdparams") == f"{SERVER}/ResNet50_vc_pretrained.pdparams"
    assert weights_url("ResNet50_ssld_pretrained.pdparams") is None


def test_import_does_not_load_paddle() -> None:
    code = "import sys, ppcls.zoo; print('paddle' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


SMALLEST = {
    entry.family: entry.name for entry in sorted(ZOO.values(), key=lambda each: each.parameters, reverse=True)
}


@pytest.mark.table
@pytest.mark.parametrize("name", SMALLEST.values())
def test_parameters_and_flops_are_those_of_the_model(name: str) -> None:
    from ppcls.arch.build import build_model
    from ppcls.arch.cost import measure

    entry = ZOO[name]
    build = partial(build_model, name, input_image_channel=entry.channels)
    assert measure(build, entry.input_shape) == (entry.parameters, entry.flops)


@pytest.mark.parametrize("home", ["locked", "missing", None])
def test_weights_are_searched_without_a_usable_home(
    home: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without weights, not with an error, as in a container whose HOME belongs to another user."""
    (tmp_path / "locked").mkdir()
    monkeypatch.delenv("PPCLS_HOME", raising=False)
    if home is None:
        monkeypatch.delenv("HOME")
        monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # a user without an entry in passwd
    else:
        monkeypatch.setenv("HOME", str(tmp_path / home))
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path).name != "locked")  # tests may run as root
    expected = tmp_path / "missing" if home == "missing" else Path("/nonexistent")
    assert cached_file("x.pdparams") == expected / ".paddleclas" / "weights" / "x.pdparams"
