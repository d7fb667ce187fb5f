"""What a config must know of architectures before Paddle is imported: their options and image sizes."""

from __future__ import annotations

import re
from pathlib import Path

from ppcls.registry import ARCHITECTURES

_RATES = ("drop_path_rate", "drop_rate", "attn_drop_rate")
_OF_BASIC_BLOCKS = ("layer_type", "use_first_short_conv")
_OPTIONS = {  # by the beginning of the name
    "ResNet18": _OF_BASIC_BLOCKS,
    "ResNet34": _OF_BASIC_BLOCKS,
    "ConvNeXt_": ("drop_path_rate", "layer_scale_init_value", "head_init_scale"),
    "ViT_": ("img_size", *_RATES),
    "DeiT_": ("img_size", *_RATES),
    "SwinTransformer_": (*_RATES, "use_fused_attn", "use_fused_linear"),
}
ALL_OPTIONS = tuple({option: None for taken in _OPTIONS.values() for option in taken})
_LEAST = {"ConvNeXt_": 32}  # of a side, where a smaller one leaves no pixel
# First and last side of those of Paddle whose linear layers take all pixels that the layers before leave.
_SIDES = {"alexnet": (223, 254), "googlenet": (189, 236), "LeNet": (28, 31)}
_ONLY_WEIGHTS = {"PPHGNetV2_": "_ssld_stage1", "SwinTransformer_large_": "_22kto1k"}  # of a family
_OF_PATCHES = re.compile(r"(?:ViT|DeiT)_.*patch(\d+)_(\d+)")
_MADE_FOR = re.compile(r"(?:ViT|DeiT|ConvNeXt|SwinTransformer)_.*_(\d+)")


def options(name: str) -> tuple[str, ...]:
    """Returns the options that architecture ``name`` takes beside those that all take."""
    return next((taken for family, taken in _OPTIONS.items() if name.startswith(family)), ())


def check_option(name: str, option: str) -> None:
    """Checks that architecture ``name`` takes ``option``.

    Raises:
        ValueError: It does not.
    """
    if option not in options(name):
        families = ", ".join(f"{family}*" for family, taken in _OPTIONS.items() if option in taken)
        raise ValueError(f"{name} has no such option, only {families}; remove it")


def check_side(name: str, side: int) -> None:
    """Checks that architecture ``name`` can be built for images of ``side``.

    Raises:
        ValueError: Its patches do not cover such an image.
    """
    if (match := _OF_PATCHES.fullmatch(name)) and side % int(match[1]):
        raise ValueError(f"expected a multiple of {match[1]}, the side of {name}'s patches, got {side}")


def published_weights(name: str, ssld: bool) -> str:
    """Returns where PaddleClas keeps its published weights of an architecture, once it has downloaded them.

    Args:
        name: The architecture.
        ssld: Whether those of its SSLD are meant, where it has both.
    """
    only = next((kind for family, kind in _ONLY_WEIGHTS.items() if name.startswith(family)), None)
    kind = only or ("_ssld" if ssld else "")
    return str(published_folder() / f"{name}{kind}_pretrained.pdparams")


def published_folder() -> Path:
    """Returns where PaddleClas puts what it downloads."""
    return Path.home() / ".paddleclas" / "weights"


def published_side(name: str) -> int | None:
    """Returns the side of the images in the architecture's name; None where it has none."""
    match = _MADE_FOR.fullmatch(name)
    return int(match[1]) if match else None


def wrong_size(name: str, img_size: int | None, size: tuple[int, int]) -> str:
    """Returns what is wrong with images of ``size`` [height, width] for an architecture; "" for nothing.

    Args:
        name: The architecture.
        img_size: Its option of this name.
        size: Of the images.
    """
    found = f"{size[0]} x {size[1]}"
    if _OF_PATCHES.fullmatch(name):
        side = img_size or published_side(name)
        if size == (side, side):
            return ""
        return f"{found}, but Arch.name={name} takes {side} x {side}{_cure(name, size)}"
    if name in _SIDES:
        first, last = _SIDES[name]
        if first <= min(size) and max(size) <= last:
            return ""
        return f"{found}, but Arch.name={name} takes sides of {first} to {last} pixels; change the size"
    least = next((side for family, side in _LEAST.items() if name.startswith(family)), 1)
    if min(size) >= least:
        return ""
    return f"{found}, but Arch.name={name} needs at least {least} x {least}"


def _cure(name: str, size: tuple[int, int]) -> str:
    stem = name.rpartition("_")[0]
    if size[0] != size[1]:
        return "; make them square"
    sister = f"{stem}_{size[0]}"
    if sister in ARCHITECTURES:
        return f"; set Arch.name={sister}, or change the size"
    try:
        check_side(name, size[0])
    except ValueError:
        return "; change the size"
    return f"; set Arch.img_size={size[0]}, or change the size"
