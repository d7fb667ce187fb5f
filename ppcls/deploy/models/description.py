"""Description of an exported model: ``inference.yml``, in the format of PaddleClas where it has one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import Field, ValidationError, model_validator
from typing_extensions import Self

from ppcls.config.base.errors import ConfigError, describe_problems
from ppcls.config.base.fields import MAX_SIDE, Bound, Count, Fraction, Positive, Section
from ppcls.config.load import read_tree
from ppcls.config.objectives.embedding import RecModel
from ppcls.config.schema import Config
from ppcls.config.sections.dataset import FixedChain
from ppcls.config.sections.infer import Infer, MultiLabelThreshOutput, ThreshOutput, Topk
from ppcls.config.sections.infer import PostProcess as PostprocessSpec
from ppcls.config.sections.transform import check_chain
from ppcls.data.transforms.specs import NormalizeImage, Op, plan_chain
from ppcls.errors import UserError

DESCRIPTION = "inference.yml"
INPUT = "x"
_MAX_INPUT = 1 << 28  # numbers of one image; 1 GiB in float32
_Length = Annotated[int, Bound(ge=-1, le=MAX_SIDE)]
Activation = Literal["softmax", "sigmoid", "l2_norm"]  # of the output; l2_norm is for embeddings
Precision = Literal["float32", "float16", "bfloat16", "int8"]


class _ModelName(Section):
    model_name: str


class _InputTensor(Section):
    """The input of the model. -1 is any length."""

    name: str
    shape: tuple[_Length, _Length, _Length, _Length]
    dtype: Literal["float32", "uint8"]
    layout: Literal["NCHW", "NHWC"]

    @model_validator(mode="after")
    def _check_shape(self) -> Self:
        if 0 in self.shape or math.prod(map(abs, self.shape[1:])) > _MAX_INPUT:
            raise ValueError(
                f"shape: expected lengths > 0, or -1, and at most {_MAX_INPUT} numbers per image, got "
                f"{list(self.shape)}"
            )
        return self


class _Preprocessing(Section):
    """Transforms of each image, in order."""

    transform_ops: FixedChain
    in_graph: bool = Field(
        False, description="whether the model contains all transforms except decoding and expects RGB pixels"
    )


class _OutputTensor(Section):
    shape: tuple[int, Annotated[int, Bound(ge=-1)]]
    dtype: Literal["float32"]
    activation: Activation
    temperature: Positive = Field(
        1.0, description="divisor of the logits before the activation, which ppcls calibrate found"
    )


class _TopkNames(Section):
    topk: Count
    label_list: tuple[str, ...] | None = None


class _ThresholdNames(Section):
    threshold: Fraction | tuple[Fraction, ...]
    label_list: tuple[str, ...] | None = None


class _Postprocessing(Section):
    """One of the three ways to choose classes."""

    Topk: _TopkNames | None = None
    ThreshOutput: _ThresholdNames | None = None
    MultiLabelThreshOutput: _ThresholdNames | None = None

    @model_validator(mode="after")
    def _check_one(self) -> Self:
        if sum(spec is not None for spec in (self.Topk, self.ThreshOutput, self.MultiLabelThreshOutput)) != 1:
            raise ValueError("expected one of Topk, ThreshOutput and MultiLabelThreshOutput")
        return self


class Calibration(Section):
    """The images that determined the ranges of an int8 model's activations."""

    method: Literal["percentile", "entropy", "minmax", "nncf"]
    images: Count
    source: str


class Comparison(Section):
    """How an exported model differs from the trained one on some images."""

    source: str = Field(description="list, folder or container of the images, or random")
    images: Count
    trained_accuracy: float | None = Field(
        description="top-1 accuracy; for several labels the share of right decisions; for embeddings the "
        "share of images whose nearest other image has the same label; null for images without labels"
    )
    exported_accuracy: float | None
    agreement: float = Field(description="share of equal decisions")
    largest_difference: float = Field(
        description="largest difference of two scores, or of two values of an embedding"
    )


class ExportRecord(Section):
    """How a model was exported."""

    precision: Precision
    calibration: Calibration | None = None
    comparison: Comparison | None = None


class ModelDescription(Section):
    """How to prepare the input of a model, and what its output means.

    ``PreProcess`` ends in the layout of the input. All transforms before the last one work on HWC.
    """

    Global: _ModelName
    Input: _InputTensor
    PreProcess: _Preprocessing
    Output: _OutputTensor
    PostProcess: _Postprocessing | None = Field(
        description="how classes are chosen from the scores; null for embeddings"
    )
    Export: ExportRecord | None = None

    @model_validator(mode="after")
    def _check_input(self) -> Self:
        if self.PreProcess.in_graph != (self.Input.dtype == "uint8"):
            raise ValueError(f"in_graph is {self.PreProcess.in_graph}, but the input is {self.Input.dtype}")
        return self

    @model_validator(mode="after")
    def _check_output(self) -> Self:
        names, postprocess, width = self.names, self.postprocess, self.width
        if names is not None and len(names) != width:
            raise ValueError(f"label_list has {len(names)} names, expected {width}, one per class")
        if postprocess is None:
            if self.Output.activation != "l2_norm":
                raise ValueError("PostProcess is null, but the model returns scores, not embeddings")
            return self
        if isinstance(postprocess, Topk) and postprocess.topk > width:
            raise ValueError(f"topk: expected at most {width}, the number of classes, got {postprocess.topk}")
        threshold = getattr(postprocess, "threshold", None)
        if isinstance(threshold, tuple) and len(threshold) != width:
            raise ValueError(f"threshold has {len(threshold)} values, expected {width}, one per class")
        if isinstance(postprocess, ThreshOutput) and width != 2:
            raise ValueError(f"ThreshOutput needs two classes, but the model has {width}")
        if postprocess.activation != self.Output.activation:
            needed, actual = postprocess.activation, self.Output.activation
            raise ValueError(f"{postprocess.kind} needs {needed}, but the model ends in {actual}")
        return self

    @property
    def names(self) -> tuple[str, ...] | None:
        """[class_num] names of the classes, or None if they are not known."""
        if self.PostProcess is None:
            return None
        ways = self.PostProcess
        chosen = ways.Topk or ways.ThreshOutput or ways.MultiLabelThreshOutput
        assert chosen is not None  # by _check_one
        return chosen.label_list

    @property
    def postprocess(self) -> PostprocessSpec | None:
        """How classes are chosen from the scores, or None for an embedding model."""
        if self.PostProcess is None:
            return None
        if self.PostProcess.Topk is not None:
            return Topk(topk=self.PostProcess.Topk.topk)
        if self.PostProcess.ThreshOutput is not None:
            return ThreshOutput(threshold=self.PostProcess.ThreshOutput.threshold)
        assert self.PostProcess.MultiLabelThreshOutput is not None  # by _check_one
        return MultiLabelThreshOutput(threshold=self.PostProcess.MultiLabelThreshOutput.threshold)

    @property
    def width(self) -> int:
        """Number of classes, or length of an embedding. -1 if only the model knows it."""
        return self.Output.shape[1]

    def chain(self) -> tuple[Op, ...]:
        """Returns the transforms that prepare the input."""
        specs = self.PreProcess.transform_ops
        if self.PreProcess.in_graph:
            return plan_chain([specs[0].model_copy(update={"to_rgb": True})], "HWC")
        return plan_chain(specs, "CHW" if self.Input.layout == "NCHW" else "HWC")

    def with_pixel_input(self) -> ModelDescription:
        """Returns the description of a model that prepares images of any size itself."""
        pixels = {"shape": (-1, -1, -1, 3), "dtype": "uint8", "layout": "NHWC"}
        return self.model_copy(
            update={
                "Input": self.Input.model_copy(update=pixels),
                "PreProcess": self.PreProcess.model_copy(update={"in_graph": True}),
            }
        )

    def with_width(self, width: int) -> ModelDescription:
        """Returns the description of a model with another number of outputs."""
        return self.model_copy(update={"Output": self.Output.model_copy(update={"shape": (-1, width)})})

    @property
    def precision(self) -> Precision:
        """Precision for which the model was exported. Its input and output are float32 in any case."""
        return "float32" if self.Export is None else self.Export.precision

    def with_record(self, record: ExportRecord) -> ModelDescription:
        """Returns the description with a record of its export."""
        return self.model_copy(update={"Export": record})

    def as_yaml(self) -> str:
        """Returns the text of ``inference.yml``."""
        tree = self.model_dump(mode="json")
        if self.Export is None:
            del tree["Export"]
        if self.Output.temperature == 1.0:
            del tree["Output"]["temperature"]
        if self.PostProcess is not None:
            tree["PostProcess"] = self.PostProcess.model_dump(mode="json", exclude_none=True)
        return yaml.safe_dump(tree, sort_keys=False, allow_unicode=True)


def describe_model(
    config: Config, settings: Infer, names: Sequence[str] | None, temperature: float = 1.0
) -> ModelDescription:
    """Returns the description of the model of a config.

    Args:
        config: The whole config.
        settings: Its section ``Infer``.
        names: [class_num] names of the classes, or None if they are not known.
        temperature: Divisor of the logits of a calibrated model.
    """
    arch, layout = config.Arch, config.Arch.data_format
    chain = [op.spec for op in plan_chain(settings.transforms, "CHW" if layout == "NCHW" else "HWC")]
    ops = [
        spec.model_copy(update={"order": ""}) if isinstance(spec, NormalizeImage) else spec for spec in chain
    ]
    state = check_chain(settings.transforms)
    channels, (height, width) = state.channels, state.size or (-1, -1)
    shape = [-1, height, width, channels] if layout == "NHWC" else [-1, channels, height, width]
    tree: dict[str, Any] = {
        "Global": {"model_name": arch.exported.name},
        "Input": {"name": INPUT, "shape": shape, "dtype": "float32", "layout": layout},
        "PreProcess": {"transform_ops": ops},
        "Output": {"shape": [-1, arch.class_num], "dtype": "float32"},
        "PostProcess": None,
    }
    if isinstance(arch, RecModel):
        tree["Output"] |= {"shape": [-1, arch.embedding_size or -1], "activation": "l2_norm"}
    else:
        tree["Output"] |= {"activation": settings.PostProcess.activation, "temperature": temperature}
        tree["PostProcess"] = dump_postprocess(settings.PostProcess, names)
    return ModelDescription.model_validate(tree)


def dump_postprocess(spec: PostprocessSpec, names: Sequence[str] | None) -> dict[str, Any]:
    """Returns ``PostProcess`` as plain data."""
    if (
        isinstance(spec, ThreshOutput)
        and names is None
        and spec.label_0 is not None
        and spec.label_1 is not None
    ):
        names = (spec.label_0, spec.label_1)
    excluded = {"class_id_map_file", "label_0", "label_1"}
    return {spec.kind: {**spec.model_dump(exclude=excluded), "label_list": names}}


def read_description(folder: Path) -> ModelDescription:
    """Reads the description of an exported model.

    Raises:
        UserError: If the folder has no readable ``inference.yml``.
        ConfigError: If the file has errors. It lists all of them.
    """
    path = folder / DESCRIPTION
    if not path.is_file():
        raise UserError(
            f"{folder}: not an exported model: expected the file {DESCRIPTION}, which ppcls export writes"
        )
    tree = read_tree(path)
    try:
        return ModelDescription.model_validate(tree)
    except ValidationError as error:
        raise ConfigError(path, describe_problems(tree, error)) from None
