"""Images that all have one size need no ResizeImage, and others are named by the error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from small_tree import small_tree

from ppcls import build_loader
from ppcls.config.base.errors import ConfigError
from ppcls.errors import UserError
from ppcls.recipe.load import load_config

SIZE = (40, 32)
_EXIF_ORIENTATION = 274


def write_images(folder: Path, decoder: str) -> None:
    """Writes eight images of 40x32 pixels, two of which are stored rotated, and their list."""
    rng = np.random.default_rng(0)
    names = []
    for number in range(8):
        pixels = rng.integers(0, 256, (SIZE[1], SIZE[0], 3), np.uint8)
        names.append(f"{number}.{'npy' if decoder == 'DecodeNumpy' else 'png'}")
        if decoder == "DecodeNumpy":
            np.save(folder / names[-1], pixels)
        elif number % 4 == 0:
            names[-1] = f"{number}.jpg"
            exif = Image.Exif()
            exif[_EXIF_ORIENTATION] = 6  # turned by 90 degrees when it is shown
            Image.fromarray(pixels).transpose(Image.Transpose.ROTATE_90).save(folder / names[-1], exif=exif)
        else:
            Image.fromarray(pixels).save(folder / names[-1])
    (folder / "list.txt").write_text("".join(f"{name} {at % 4}\n" for at, name in enumerate(names)))


def tree_of(folder: Path, *chain: Any, use_dali: bool = False) -> dict[str, Any]:
    """Returns a config whose lists of transforms do not set a size."""
    tree = small_tree(folder, folder / "output")
    tree["Global"]["use_dali"] = use_dali
    normalize = {"NormalizeImage": {"mean": [0.5] * 3, "std": [0.5] * 3}}
    for split in tree["DataLoader"].values():
        split["dataset"]["cls_label_path"] = str(folder / "list.txt")
        split["dataset"]["transform_ops"] = [*chain, normalize]
        split["sampler"]["batch_size"] = 4
    tree["Infer"] = {"transforms": [*chain, normalize], "PostProcess": {"name": "Topk", "topk": 1}}
    return tree


@pytest.mark.parametrize(
    ("decoder", "crop", "use_dali"),
    [
        ("DecodeImage", None, False),
        ("DecodeImage", None, True),
        ("DecodeImage", "half", True),
        ("DecodeNumpy", None, True),
        ("DecodeNumpy", 16, True),
    ],
)
def test_images_of_one_size_need_no_resizing(
    tmp_path: Path, decoder: str, crop: int | str | None, use_dali: bool
) -> None:
    write_images(tmp_path, decoder)
    more = {None: [], 16: [{"CropImage": {"size": 16}}], "half": [{"ResizeImage": {"resize_short": 16}}]}
    config = load_config(tree_of(tmp_path, decoder, *more[crop], use_dali=use_dali))
    assert len(config.notes) == 2  # one per data set
    assert config.Infer is not None
    assert config.Infer.transforms[0].expected_size == SIZE
    (first, *_) = build_loader(config, "Train")
    expected = {None: (32, 40), 16: (16, 16), "half": (16, 20)}[crop]
    assert tuple(first.image.shape) == (4, 3, *expected)


@pytest.mark.parametrize("decoder", ["DecodeImage", "DecodeNumpy"])
@pytest.mark.parametrize("crop", [(), ({"CropImage": {"size": 8}},)])
def test_the_error_names_two_images_of_different_sizes(
    tmp_path: Path, decoder: str, crop: tuple[Any, ...]
) -> None:
    write_images(tmp_path, decoder)
    odd = tmp_path / ("5.npy" if decoder == "DecodeNumpy" else "5.png")
    if decoder == "DecodeNumpy":
        np.save(odd, np.zeros((20, 24, 3), np.uint8))
    else:
        Image.new("RGB", (24, 20)).save(odd)
    with pytest.raises(UserError) as caught:
        load_config(tree_of(tmp_path, decoder, *crop))
    text = str(caught.value)
    assert "different sizes" in text
    assert f"{tmp_path}/0.{'npy' if decoder == 'DecodeNumpy' else 'jpg'} has 40x32 pixels" in text
    assert f"{odd} has 24x20 pixels" in text


@pytest.mark.parametrize("use_dali", [False, True])
def test_images_of_another_size_are_rejected(tmp_path: Path, use_dali: bool) -> None:
    write_images(tmp_path, "DecodeImage")
    tree = tree_of(tmp_path, {"DecodeImage": {"expected_size": list(SIZE)}}, use_dali=use_dali)
    Image.new("RGB", (24, 20)).save(tmp_path / "5.png")
    config = load_config(tree)
    assert config.notes == ()  # the size is set, so no header was read
    with pytest.raises(UserError, match=r"5\.png.*expected 40x32 pixels.*found 24x20"):
        list(build_loader(config, "Train"))


def test_unreadable_images_are_left_to_the_loader_and_other_errors_to_the_validation(tmp_path: Path) -> None:
    write_images(tmp_path, "DecodeImage")
    (tmp_path / "0.jpg").write_bytes(b"no image")
    assert load_config(tree_of(tmp_path, "DecodeImage")).notes
    with pytest.raises(ConfigError, match=r"ToCHWImage.*HWC"):
        load_config(tree_of(tmp_path, "DecodeImage", "ToCHWImage", "ToCHWImage"))
    (tmp_path / "list.txt").unlink()
    with pytest.raises(UserError, match=r"no transform sets the size.*list\.txt"):
        load_config(tree_of(tmp_path, "DecodeImage"))
