"""The section ``Arch``: the model, and what of it can be chosen."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field, ValidationInfo, field_validator
from typing_extensions import Self

from ppcls.config.base.fields import Count, CountOrAuto, Decay, NonNegative, Positive, Section, show
from ppcls.registry import ARCHITECTURES, VISION_MODELS, nearest

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


_WITH_DROPOUT = ("MobileNetV3_", "PPLCNet_")


def _known_architecture(name: str) -> str:
    if name not in ARCHITECTURES:
        known = [*ARCHITECTURES, "DistillationModel", "RecModel"]
        hint = nearest(name, known, "`python tools/models.py list` has all")
        raise ValueError(f"unknown architecture '{name}'{hint}")
    return name


class Arch(Section):
    """The model."""

    elsewhere: ClassVar[Mapping[str, str]] = {
        "return_patterns": "only the models of a DistillationModel have it, for its losses",
        "return_stages": "write return_patterns, with the layers' names",
    }
    name: Annotated[str, AfterValidator(_known_architecture)]
    class_num: CountOrAuto = Field(
        1000,
        description="auto: as many as DataLoader.Train.dataset (ImageFolderDataset) has class folders; where "
        "that is not there, as output_dir/label_list.txt has names",
    )
    data_format: Literal["NCHW", "NHWC"] = "NCHW"
    input_image_channel: Count = Field(3, validate_default=True)
    pretrained: str | bool = Field(
        False,
        description="weights to start from: .pdparams, .safetensors or a checkpoint folder. True for those "
        "that PaddleClas publishes: they are taken from ~/.paddleclas/weights, where it puts them, and never "
        "downloaded. Global.pretrained_model goes before it",
    )
    use_ssld: bool = Field(
        False, description="with pretrained: True, the weights that PaddleClas distilled (SSLD)"
    )
    img_size: Count | None = Field(
        None, description="ViT, DeiT: side of the images; by default the one in the name"
    )
    drop_path_rate: Decay | None = Field(
        None, description="how often the last block is left out, the others less; by default PaddleClas's"
    )
    drop_rate: Decay | None = Field(None, description="dropout of tokens and layers; by default 0")
    attn_drop_rate: Decay | None = Field(None, description="dropout of attention weights; by default 0")
    layer_scale_init_value: NonNegative | None = Field(
        None, description="ConvNeXt: first factor on each block's channels, 0 for none; by default 1e-6"
    )
    head_init_scale: Positive | None = Field(
        None, description="ConvNeXt: factor on the classifier's first weights; by default 1"
    )
    layer_type: Literal["ConvBNLayer", "DiverseBranchBlock"] | None = Field(
        None,
        description="ResNet18, ResNet34: DiverseBranchBlock trains several branches for each of the blocks' "
        "convolutions, which are one convolution in inference (Ding et al. 2021); by default ConvBNLayer",
    )
    use_first_short_conv: bool | None = Field(
        None,
        description="ResNet18, ResNet34: whether the first block has a convolution in its shortcut; by "
        "default True",
    )
    dropout_prob: Decay | None = Field(
        0.2, description="MobileNetV3, PP-LCNet: dropout before the classifier; null for none"
    )
    use_fused_attn: Literal[False] | None = Field(
        None, description="read for PaddleClas; attention is made of plain operators"
    )
    use_fused_linear: Literal[False] | None = Field(
        None, description="read for PaddleClas; linear layers are Paddle's own"
    )

    @property
    def margin(self) -> None:
        """What a loss asks for beyond the best logit: nothing."""
        return None

    @property
    def exported(self) -> Arch:
        """The model that is evaluated, saved and exported: this one."""
        return self

    @property
    def weights(self) -> str | None:
        """The file or folder that it starts from by itself; None for fresh weights."""
        if self.pretrained is True:
            branched = "_dbb" if self.layer_type == "DiverseBranchBlock" else ""
            return published_weights(self.name + branched, self.use_ssld)
        return self.pretrained or None

    @field_validator("pretrained", mode="before")
    @classmethod
    def _a_file(cls, value: object) -> object:
        if not isinstance(value, (str, bool)):
            raise ValueError(f"expected True, False or a file, got {show(value)}")
        return value

    def with_data_format(self, data_format: Literal["NCHW", "NHWC"]) -> Self:
        """Returns the same model for images of another layout."""
        return self.model_copy(update={"data_format": data_format})

    @property
    def architectures(self) -> tuple[Arch, ...]:
        """All models that there are."""
        return (self,)

    @property
    def options(self) -> dict[str, float | str]:
        """What is set of the options that this architecture takes beside those of all."""
        values = {key: getattr(self, key) for key in options(self.name) if not key.startswith("use_fused")}
        if self.name.startswith(_WITH_DROPOUT):
            values["dropout_prob"] = self.dropout_prob or 0.0
        return {key: value for key, value in values.items() if value is not None}

    @field_validator(*ALL_OPTIONS)
    @classmethod
    def _taken(cls, value: float | str | None, info: ValidationInfo) -> float | str | None:
        name = info.data.get("name")
        if value is not None and name is not None:
            assert info.field_name is not None
            check_option(name, info.field_name)
            if info.field_name == "img_size":
                check_side(name, int(value))
        return value

    @field_validator("dropout_prob")
    @classmethod
    def _dropped(cls, value: float | None, info: ValidationInfo) -> float | None:
        name = info.data.get("name")
        if value != cls.model_fields["dropout_prob"].default and not (name or "").startswith(_WITH_DROPOUT):
            raise ValueError(f"{name} has no such option, only {'*, '.join(_WITH_DROPOUT)}*; remove it")
        return value

    @field_validator("data_format", "input_image_channel")
    @classmethod
    def _fits(cls, value: str | int, info: ValidationInfo) -> str | int:
        name = info.data.get("name")
        if name in VISION_MODELS:
            own = "NCHW" if info.field_name == "data_format" else 1 if name == "LeNet" else 3
            if value != own:
                ours = next((each for each in ARCHITECTURES if each.lower() == name and each != name), None)
                hint = f"; Arch.name={ours} takes others" if ours else ""
                raise ValueError(f"paddle.vision.models' {name} takes {own} only, got {value}{hint}")
        return value
