"""Description of an exported model, in the file ``inference.yml``.

Sections that PaddleClas's ``inference.yml`` also has are in PaddleClas's format.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, ValidationError, model_validator
from typing_extensions import Self

from ppcls.config.base.errors import ConfigError, describe_problems
from ppcls.config.base.fields import MAX_SIDE, Bound, Count, Fraction, Positive, Section
from ppcls.config.base.yaml import dump_yaml, read_description_yaml
from ppcls.config.schema import Config
from ppcls.config.sections.infer import Infer, MultiLabelThreshOutput, ScoreOutput, ThreshOutput, Topk
from ppcls.config.sections.infer import PostProcess as PostprocessSpec
from ppcls.data.transforms.base import FixedChain, check_chain
from ppcls.data.transforms.specs import NormalizeImage, Op, plan_chain, split_chain
from ppcls.errors import UserError
from ppcls.weights.manifest import FileName, FileRecord, read_record

DESCRIPTION = "inference.yml"
INPUT = "x"
_MAX_INPUT = 1 << 28  # maximum number of values per image: 1 GiB in float32
_Length = Annotated[int, Bound(ge=-1, le=MAX_SIDE)]
# Last function of the model; l2_norm is for embeddings.
Activation = Literal["softmax", "sigmoid", "none", "l2_norm"]
Precision = Literal["float32", "float16", "bfloat16", "int8"]
Preprocess = Literal["all", "normalize"]  # transforms that an exported model contains


class _ModelName(Section):
    model_name: str


class _InputTensor(Section):
    """Input of the model. In the shape, -1 stands for any length."""

    name: str
    shape: tuple[_Length, _Length, _Length, _Length]
    dtype: Literal["float32", "uint8"]
    layout: Literal["NCHW", "NHWC"]

    @model_validator(mode="after")
    def _check_shape(self) -> Self:
        if 0 in self.shape or math.prod(map(abs, self.shape[1:])) > _MAX_INPUT:
            raise ValueError(
                f"shape: expected lengths > 0, or -1, and at most {_MAX_INPUT} values per image, got "
                f"{list(self.shape)}"
            )
        return self


class _Preprocessing(Section):
    """Transforms that are applied to each image, in order."""

    transform_ops: FixedChain
    in_graph: bool | Literal["normalize"] = False
    """Transforms that the model contains: true for all except decoding, normalize for NormalizeImage and the
    layout, false for none. The model expects RGB pixels unless it is false."""


class _OutputTensor(Section):
    shape: tuple[int, Annotated[int, Bound(ge=-1)]]
    dtype: Literal["float32"]
    activation: Activation
    temperature: Positive = 1.0
    """Divisor of the logits before the activation, computed by ppcls calibrate."""


class _TopkNames(Section):
    topk: Count
    label_list: tuple[str, ...] | None = None


class _ThresholdNames(Section):
    threshold: Fraction | tuple[Fraction, ...]
    label_list: tuple[str, ...] | None = None


class _ScoreNames(Section):
    decimal_places: Annotated[int, Bound(ge=0, le=15)]
    label_list: tuple[str, ...] | None = None


class _Postprocessing(Section):
    """Postprocessing of the outputs of a classifier. Exactly one of the fields is set."""

    Topk: _TopkNames | None = None
    ThreshOutput: _ThresholdNames | None = None
    MultiLabelThreshOutput: _ThresholdNames | None = None
    ScoreOutput: _ScoreNames | None = None

    @model_validator(mode="after")
    def _check_one(self) -> Self:
        if sum(getattr(self, kind) is not None for kind in type(self).model_fields) != 1:
            raise ValueError("expected one of Topk, ThreshOutput, MultiLabelThreshOutput and ScoreOutput")
        return self


class Calibration(Section):
    """Method and images from which the ranges of an int8 model's activations were computed."""

    method: Literal["percentile", "entropy", "minmax", "nncf"]
    images: Count
    source: str


class Comparison(Section):
    """Comparison of the outputs of an exported and the trained model on some images."""

    source: str
    """List file, folder or container of the images; or random."""
    images: Count
    trained_accuracy: float | None
    """Top-1 accuracy; for several labels per image, the share of correct decisions; for embeddings, the share
    of images whose nearest other image has the same label; null for images without labels."""
    exported_accuracy: float | None
    agreement: float
    """Share of decisions on which both models agree."""
    largest_difference: float
    """Largest difference of two scores, or of two values of an embedding."""


class ExportRecord(Section):
    """Record of an export: precision, calibration, comparison with the trained model, and files."""

    precision: Precision
    device: Literal["gpu"] | None = None
    """Gpu for a program whose operators only exist on GPUs; otherwise null."""
    calibration: Calibration | None = None
    comparison: Comparison | None = None
    files: dict[FileName, FileRecord] = Field(default_factory=dict)
    """All files except inference.yml."""


class ModelDescription(Section):
    """Preparation of a model's input, and meaning of its output.

    The last transform in ``PreProcess`` returns the layout of the input. All other transforms work on HWC.
    """

    Global: _ModelName
    Input: _InputTensor
    PreProcess: _Preprocessing
    Output: _OutputTensor
    PostProcess: _Postprocessing | None
    """Method that chooses classes from the scores; null for embeddings."""
    Export: ExportRecord | None = None

    @model_validator(mode="after")
    def _check_input(self) -> Self:
        if bool(self.PreProcess.in_graph) != (self.Input.dtype == "uint8"):
            raise ValueError(
                f"in_graph is {self.PreProcess.in_graph}, but the dtype of the input is {self.Input.dtype}; "
                "expected float32 if in_graph is False, otherwise uint8"
            )
        if self.PreProcess.in_graph == "normalize":
            split_chain(self.PreProcess.transform_ops)
        return self

    @model_validator(mode="after")
    def _check_output(self) -> Self:
        names = self.names
        postprocess = self.postprocess
        width = self.width
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
            needed = postprocess.activation
            actual = self.Output.activation
            raise ValueError(f"{postprocess.kind} needs {needed}, but the model ends in {actual}")
        return self

    @property
    def names(self) -> tuple[str, ...] | None:
        """Names of the classes, [class_num]; None if they are unknown."""
        if self.PostProcess is None:
            return None
        ways = self.PostProcess
        chosen = ways.Topk or ways.ThreshOutput or ways.MultiLabelThreshOutput or ways.ScoreOutput
        assert chosen is not None  # by _check_one
        return chosen.label_list

    @property
    def postprocess(self) -> PostprocessSpec | None:
        """Method that chooses classes from the scores; None for an embedding model."""
        if self.PostProcess is None:
            return None
        if self.PostProcess.Topk is not None:
            return Topk(topk=self.PostProcess.Topk.topk)
        if self.PostProcess.ThreshOutput is not None:
            return ThreshOutput(threshold=self.PostProcess.ThreshOutput.threshold)
        if self.PostProcess.ScoreOutput is not None:
            return ScoreOutput(decimal_places=self.PostProcess.ScoreOutput.decimal_places)
        assert self.PostProcess.MultiLabelThreshOutput is not None  # by _check_one
        return MultiLabelThreshOutput(threshold=self.PostProcess.MultiLabelThreshOutput.threshold)

    @property
    def width(self) -> int:
        """Number of classes, or length of an embedding; -1 if it is unknown until the model runs."""
        return self.Output.shape[1]

    @property
    def input_bytes(self) -> int:
        """Size of the input of one image in bytes; 0 if images have different sizes."""
        sizes = self.Input.shape[1:]
        return 0 if -1 in sizes else math.prod(sizes) * (1 if self.Input.dtype == "uint8" else 4)

    def chain(self) -> tuple[Op, ...]:
        """Returns the operations that prepare the input of the model."""
        specs = self.PreProcess.transform_ops
        match self.PreProcess.in_graph:
            case "normalize":
                return plan_chain(split_chain(specs)[0], "HWC")
            case True:
                return plan_chain([specs[0].model_copy(update={"to_rgb": True})], "HWC")
        return plan_chain(specs, "CHW" if self.Input.layout == "NCHW" else "HWC")

    def with_pixel_input(self, contained: Preprocess) -> ModelDescription:
        """Returns a copy for a model that contains transforms and expects RGB pixels.

        Args:
            contained: ``all`` for a model that prepares images of any size; ``normalize`` for a model that
                expects resized and cropped images.

        Raises:
            UserError: The transforms do not return 8-bit pixels before NormalizeImage.
        """
        height, width = self.Input.shape[2:] if self.Input.layout == "NCHW" else self.Input.shape[1:3]
        if contained == "all":
            height = -1
            width = -1
        pixels = {"shape": (-1, height, width, 3), "dtype": "uint8", "layout": "NHWC"}
        in_graph: bool | str = True
        if contained == "normalize":
            in_graph = contained
            try:
                split_chain(self.PreProcess.transform_ops)
            except ValueError as error:
                raise UserError(
                    f"--preprocess normalize: {error} in Infer.transforms; export without --preprocess"
                ) from None
        prepared = self.PreProcess.model_copy(update={"in_graph": in_graph})
        return self.model_copy(update={"Input": self.Input.model_copy(update=pixels), "PreProcess": prepared})

    def random_images(self, count: int, random: np.random.Generator) -> NDArray[Any]:
        """Returns random inputs of the model, [count, ...].

        Raises:
            UserError: The images have no fixed size.
        """
        shape = (count, *self.Input.shape[1:])
        if -1 in shape:
            raise UserError(
                f"{self.Global.model_name}: expected a model for images of a fixed size, got the input shape "
                f"{list(self.Input.shape)}; export without --preprocess all"
            )
        if self.Input.dtype == "uint8":
            return random.integers(0, 256, shape, np.uint8)
        return random.standard_normal(shape, np.float32)

    def with_width(self, width: int) -> ModelDescription:
        """Returns a copy for a model with ``width`` outputs per image."""
        return self.model_copy(update={"Output": self.Output.model_copy(update={"shape": (-1, width)})})

    @property
    def precision(self) -> Precision:
        """Precision for which the model was exported. Its input and output are always float32."""
        return "float32" if self.Export is None else self.Export.precision

    @property
    def needs_gpu(self) -> bool:
        """Whether the program contains operators that only exist on GPUs."""
        return self.Export is not None and self.Export.device == "gpu"

    def check_files(self, program: Path) -> None:
        """Checks that the files of an exported model were exported together with this description.

        Older exports, and exports of PaddleClas, do not list their files.

        Args:
            program: File of the exported model.

        Raises:
            UserError: A file is missing, has changed or is from another export.
        """
        expected = self.Export.files if self.Export is not None else {}
        if expected and program.name not in expected:
            raise UserError(
                f"{program}: from another export, because {DESCRIPTION} lists only {', '.join(expected)}; "
                "remove the file, or export the model again"
            )
        for name, record in expected.items():
            path = program.with_name(name)
            try:
                actual = read_record(path)
            except OSError as error:
                raise UserError(f"{path}: cannot be read: {error.strerror}; export the model again") from None
            if actual != record:
                raise UserError(
                    f"{path}: damaged or from another export: {DESCRIPTION} lists {record.size} bytes with "
                    f"SHA-256 {record.sha256}, found {actual.size} bytes with SHA-256 {actual.sha256}; "
                    f"export the model again, or remove Export.files from {DESCRIPTION} if you changed the "
                    "model yourself"
                )

    def with_record(self, record: ExportRecord) -> ModelDescription:
        """Returns a copy with a record of the export."""
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
        return dump_yaml(tree)


def describe_model(
    config: Config, settings: Infer, names: Sequence[str] | None, temperature: float = 1.0
) -> ModelDescription:
    """Returns the description of a config's model.

    Args:
        config: Complete config.
        settings: Section ``Infer`` of the config.
        names: Names of the classes, [class_num]; None if they are unknown.
        temperature: Divisor of the logits of a calibrated model.
    """
    arch = config.Arch
    layout = config.Arch.data_format
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
    if arch.embeds:
        tree["Output"] |= {"shape": [-1, arch.inferred.embedding_size or -1], "activation": "l2_norm"}
    else:
        tree["Output"] |= {"activation": settings.PostProcess.activation, "temperature": temperature}
        tree["PostProcess"] = dump_postprocess(settings.PostProcess, names)
    return ModelDescription.model_validate(tree)


def dump_postprocess(spec: PostprocessSpec, names: Sequence[str] | None) -> dict[str, Any]:
    """Returns the section ``PostProcess`` of a description as plain data."""
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
    """Returns the description of the exported model in a folder.

    Raises:
        UserError: The folder has no readable ``inference.yml``.
        ConfigError: The file has errors, all of which the message lists.
    """
    path = folder / DESCRIPTION
    if not path.is_file():
        raise UserError(
            f"{folder}: not an exported model: expected the file {DESCRIPTION}, which ppcls export writes"
        )
    tree = read_description_yaml(path)
    try:
        return ModelDescription.model_validate(tree)
    except ValidationError as error:
        raise ConfigError(path, describe_problems(tree, error)) from None
