"""What an exported folder says of itself: ``inference.yml``, in PaddleClas's form where that has one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import Field, ValidationError, model_validator
from typing_extensions import Self

from ppcls.config.base.errors import ConfigError
from ppcls.config.base.errors import describe as describe_errors
from ppcls.config.base.fields import Bound, Count, Fraction, Section
from ppcls.config.load import read_tree
from ppcls.config.objectives.embedding import RecModel
from ppcls.config.schema import Config
from ppcls.config.sections.dataset import FixedChain
from ppcls.config.sections.infer import Infer, MultiLabelThreshOutput, Topk
from ppcls.config.sections.infer import PostProcess as Choice
from ppcls.data.transforms.specs import NormalizeImage, Op, plan_chain
from ppcls.errors import UserError

DESCRIPTION = "inference.yml"
INPUT = "x"
Ending = Literal["softmax", "sigmoid", "l2_norm"]  # what the output is made by; l2_norm of embeddings


class _About(Section):
    model_name: str


class _Input(Section):
    """The tensor that the model takes; -1 is any length."""

    name: str
    shape: tuple[int, int, int, int]
    dtype: Literal["float32", "uint8"]
    layout: Literal["NCHW", "NHWC"]


class _PreProcess(Section):
    """What happens to each image, in order."""

    transform_ops: FixedChain
    in_graph: bool = Field(False, description="all but decoding is part of the model, which takes RGB pixels")


class _Output(Section):
    shape: tuple[int, Annotated[int, Bound(ge=-1)]]
    dtype: Literal["float32"]
    activation: Ending


class _Topk(Section):
    topk: Count
    label_list: tuple[str, ...] | None = None


class _Thresh(Section):
    threshold: Fraction
    label_list: tuple[str, ...] | None = None


class _PostProcess(Section):
    """One of the two."""

    Topk: _Topk | None = None
    MultiLabelThreshOutput: _Thresh | None = None

    @model_validator(mode="after")
    def _check_one(self) -> Self:
        if (self.Topk is None) == (self.MultiLabelThreshOutput is None):
            raise ValueError("expected either Topk or MultiLabelThreshOutput")
        return self


class Description(Section):
    """How an exported model's input is made, and what its output means.

    ``PreProcess`` ends in the layout of the input, so each transform sees HWC but the last.
    """

    Global: _About
    Input: _Input
    PreProcess: _PreProcess
    Output: _Output
    PostProcess: _PostProcess | None = Field(description="what is told of the scores; null of embeddings")

    @model_validator(mode="after")
    def _check_input(self) -> Self:
        if self.PreProcess.in_graph != (self.Input.dtype == "uint8"):
            raise ValueError(f"in_graph is {self.PreProcess.in_graph}, and the input is {self.Input.dtype}")
        return self

    @model_validator(mode="after")
    def _check_names(self) -> Self:
        names = self.names
        if names is not None and len(names) != self.width:
            raise ValueError(f"label_list names {len(names)} of {self.width} classes")
        told = self.told
        if told is None:
            if self.Output.activation != "l2_norm":
                raise ValueError("PostProcess is null, but the model gives scores, no embeddings")
            return self
        if isinstance(told, Topk) and told.topk > self.width:
            raise ValueError(f"topk is {told.topk}, of {self.width} classes; expected {self.width} at most")
        if told.activation != self.Output.activation:
            raise ValueError(f"{told.kind} needs a {told.activation}, and the model ends in another")
        return self

    @property
    def names(self) -> tuple[str, ...] | None:
        """[class_num] names of the classes; None where nobody named them."""
        if self.PostProcess is None:
            return None
        given = self.PostProcess.Topk or self.PostProcess.MultiLabelThreshOutput
        assert given is not None  # by _check_one
        return given.label_list

    @property
    def told(self) -> Choice | None:
        """Which classes of an image are told; None of a model that gives embeddings."""
        if self.PostProcess is None:
            return None
        if self.PostProcess.Topk is not None:
            return Topk(topk=self.PostProcess.Topk.topk)
        assert self.PostProcess.MultiLabelThreshOutput is not None  # by _check_one
        return MultiLabelThreshOutput(threshold=self.PostProcess.MultiLabelThreshOutput.threshold)

    @property
    def width(self) -> int:
        """Number of classes, or of an embedding's numbers; -1 where only the model knows."""
        return self.Output.shape[1]

    def chain(self) -> tuple[Op, ...]:
        """Returns the transforms that make the input."""
        specs = self.PreProcess.transform_ops
        if self.PreProcess.in_graph:
            return plan_chain([specs[0].model_copy(update={"to_rgb": True})], "HWC")
        return plan_chain(specs, "CHW" if self.Input.layout == "NCHW" else "HWC")

    def with_pixels(self) -> Description:
        """Returns the description of a model that prepares images of any size itself."""
        pixels = {"shape": (-1, -1, -1, 3), "dtype": "uint8", "layout": "NHWC"}
        return self.model_copy(
            update={
                "Input": self.Input.model_copy(update=pixels),
                "PreProcess": self.PreProcess.model_copy(update={"in_graph": True}),
            }
        )

    def with_width(self, width: int) -> Description:
        """Returns the description of a model that gives so many numbers."""
        return self.model_copy(update={"Output": self.Output.model_copy(update={"shape": (-1, width)})})

    def as_yaml(self) -> str:
        """Returns the file's text."""
        tree = self.model_dump(mode="json")
        if self.PostProcess is not None:
            tree["PostProcess"] = self.PostProcess.model_dump(mode="json", exclude_none=True)
        return yaml.safe_dump(tree, sort_keys=False, allow_unicode=True)


def input_shape(config: Config) -> list[int]:
    """Returns the exported model's input shape, [-1, C, H, W] or [-1, H, W, C]; -1 is any batch size."""
    channels, height, width = config.Global.image_shape
    if config.Arch.data_format == "NHWC":
        return [-1, height, width, channels]
    return [-1, channels, height, width]


def describe(config: Config, settings: Infer, names: Sequence[str] | None) -> Description:
    """Describes the model of a config.

    Args:
        config: The whole config.
        settings: Its section ``Infer``.
        names: [class_num] of the classes; None where nothing tells them.
    """
    arch, layout = config.Arch, config.Arch.data_format
    chain = [op.spec for op in plan_chain(settings.transforms, "CHW" if layout == "NCHW" else "HWC")]
    ops = [
        spec.model_copy(update={"order": ""}) if isinstance(spec, NormalizeImage) else spec for spec in chain
    ]
    tree: dict[str, Any] = {
        "Global": {"model_name": arch.exported.name},
        "Input": {"name": INPUT, "shape": input_shape(config), "dtype": "float32", "layout": layout},
        "PreProcess": {"transform_ops": ops},
        "Output": {"shape": [-1, arch.class_num], "dtype": "float32"},
        "PostProcess": None,
    }
    if isinstance(arch, RecModel):
        tree["Output"] |= {"shape": [-1, arch.embedding_size or -1], "activation": "l2_norm"}
    else:
        tree["Output"] |= {"activation": settings.PostProcess.activation}
        tree["PostProcess"] = post_process(settings.PostProcess, names)
    return Description.model_validate(tree)


def post_process(told: Choice, names: Sequence[str] | None) -> dict[str, Any]:
    """Returns the file's ``PostProcess``."""
    return {told.kind: {**told.model_dump(exclude={"class_id_map_file"}), "label_list": names}}


def read_description(folder: Path) -> Description:
    """Reads what an exported folder says of itself.

    Raises:
        UserError: It has no ``inference.yml``, or one that can't be read.
        ConfigError: All that is wrong in it.
    """
    path = folder / DESCRIPTION
    if not path.is_file():
        raise UserError(
            f"{folder}: not an exported model: it has no {DESCRIPTION}, which says how images are prepared; "
            "tools/export.py writes it"
        )
    tree = read_tree(path)
    try:
        return Description.model_validate(tree)
    except ValidationError as error:
        raise ConfigError(path, describe_errors(tree, error)) from None
