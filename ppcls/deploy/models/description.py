"""Description of an exported model, in the file ``inference.yml``.

Sections that PaddleClas's ``inference.yml`` also has are in PaddleClas's format.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, PlainSerializer, PlainValidator, TypeAdapter, ValidationError, model_validator
from typing_extensions import Self

from ppcls.arch.distillation_model import AnyArch
from ppcls.arch.rec_model import RecModel
from ppcls.arch.section import Arch as PlainArch
from ppcls.config.base.choices import Keyed, Variants
from ppcls.config.base.errors import ConfigError, describe_problems
from ppcls.config.base.fields import MAX_SIDE, Bound, Count, Positive
from ppcls.config.base.problems import (
    error_at,
    expected,
    explain,
    find_line_breaks,
    located,
    problem,
    show,
)
from ppcls.config.base.section import Section
from ppcls.config.base.yaml import dump_yaml, read_description_yaml
from ppcls.data.transforms.base import FixedChain, ImageState, check_chain
from ppcls.data.transforms.specs import NormalizeImage, Op, plan_chain, split_chain
from ppcls.data.transforms.specs.chain import TransformsOfModel
from ppcls.deploy.models.path_keys import remove_paths
from ppcls.deploy.models.rejection import REJECTION_FILE, RejectionRule
from ppcls.errors import UserError, counted
from ppcls.postprocess import base
from ppcls.postprocess.section import Infer
from ppcls.registry import POSTPROCESSES
from ppcls.weights.manifest import FileName, FileRecord, find_difference
from ppcls.zoo import architecture

DESCRIPTION = "inference.yml"
INPUT = "x"
_SHORTEST = 1e-12  # minimum length of an embedding before it is scaled to length 1
_MAX_INPUT = 1 << 28  # maximum number of values per image: 1 GiB in float32
_Length = Annotated[int, Bound(ge=-1, le=MAX_SIDE)]
# Last function of the model; l2_norm is for embeddings.
Activation = Literal["softmax", "sigmoid", "none", "l2_norm"]
Precision = Literal["float32", "float16", "bfloat16", "int8"]
# Keys of an exported network. A student in distillation has more keys, and the head of an embedding model
# only classifies the training classes.
_ARCH_KEYS = {*PlainArch.model_fields, *RecModel.model_fields} - {"Head"}
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
    normalized: bool = True
    """Whether the model returns probabilities, or embeddings of length 1. Otherwise, ppcls applies the
    activation to its outputs. PaddleClas exports embeddings of any length, and other tools often logits."""


@dataclass(frozen=True)
class DescribedPostProcess:
    """Post-processing of the outputs of a classifier, and the names of its classes.

    In YAML it is ``{Topk: {topk: 5, label_list: [cat, dog]}}``, as in PaddleClas's files.

    Attributes:
        method: Post-processing method.
        names: Names of the classes, [class_num]; None if they are unknown.
    """

    method: base.PostProcess
    names: tuple[str, ...] | None

    def as_tree(self) -> dict[str, Any]:
        """Returns plain data for YAML, without keys that are not set."""
        keys = self.method.model_dump(mode="json", exclude=set(self.method.not_exported), exclude_none=True)
        names = {} if self.names is None else {"label_list": list(self.names)}
        return {self.method.kind: {**keys, **names}}


_METHOD: TypeAdapter[base.PostProcess] = TypeAdapter(Annotated[base.PostProcess, Keyed(POSTPROCESSES)])
_NAMES: TypeAdapter[tuple[str, ...] | None] = TypeAdapter(tuple[str, ...] | None)


def _read_postprocess(value: Any) -> DescribedPostProcess:
    if isinstance(value, DescribedPostProcess):
        return value
    if not isinstance(value, dict) or len(value) != 1:
        raise expected("one post-processing method as 'Name: parameters'", value)
    ((kind, keys),) = value.items()
    if not isinstance(keys, dict):
        raise error_at(f"expected a mapping of its parameters, got {show(keys)}", kind)
    method = _METHOD.validate_python({kind: {key: keys[key] for key in keys if key != "label_list"}})
    if forbidden := sorted(method.not_exported & keys.keys()):
        raise error_at("not supported in the description of a model; remove this key", kind, forbidden[0])
    try:
        names = _NAMES.validate_python(keys.get("label_list"))
    except ValidationError as error:
        problems = (problem(explain(details), *details["loc"]) for details in error.errors(include_url=False))
        where = (kind, "label_list")
        raise ValidationError.from_exception_data("label_list", [*located(problems, *where)]) from None
    return DescribedPostProcess(method, names)


Described = Annotated[
    DescribedPostProcess, PlainValidator(_read_postprocess), PlainSerializer(DescribedPostProcess.as_tree)
]


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
    PostProcess: Described | None
    """Method that chooses classes from the scores; null for embeddings."""
    Rejection: RejectionRule | None = None
    """Rule for the answer unknown, computed by ppcls calibrate; null for none."""
    Export: ExportRecord | None = None
    Arch: Annotated[PlainArch | RecModel, Variants(PlainArch, {"RecModel": RecModel})] | None = None
    """Architecture of a model that ppcls exported for itself, whose file contains only weights; null for
    other formats."""

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
            raise ValueError(f"label_list has {counted(len(names), 'name')}, expected {width}, one per class")
        if postprocess is None:
            if self.Output.activation != "l2_norm":
                raise ValueError("PostProcess is null, but the model returns scores, not embeddings")
            return self
        if self.Rejection is not None and self.Output.activation != "softmax":
            raise ValueError(f"Rejection needs softmax, but the model ends in {self.Output.activation}")
        limits = None if self.Rejection is None else self.Rejection.threshold
        if isinstance(limits, tuple) and len(limits) != width:
            raise ValueError(
                f"Rejection.threshold: expected {width} values, one per class, got {len(limits)}"
            )
        if problems := list(postprocess.class_problems(width)):
            where = ("PostProcess", postprocess.kind)
            raise ValidationError.from_exception_data("PostProcess", [*located(problems, *where)])
        if postprocess.activation != self.Output.activation:
            needed = postprocess.activation
            actual = self.Output.activation
            raise ValueError(f"{postprocess.kind} needs {needed}, but the model ends in {actual}")
        return self

    @model_validator(mode="after")
    def _check_arch(self) -> Self:
        if self.Arch is not None and (text := next(self._network_problems(self.Arch), None)) is not None:
            raise ValueError(text)
        return self

    def _network_problems(self, arch: PlainArch | RecModel) -> Iterator[str]:
        """Yields contradictions between the description and the network that ppcls builds from ``arch``.

        For other formats, the file of the model determines these properties, and its engine checks them.
        """
        for path in remove_paths(_plain(arch)):
            yield f"Arch.{path}: not supported in the description of a model; remove this key"
        if self.precision == "int8":
            yield "Export.precision is int8, but a model with Arch can be float32, float16 or bfloat16"
        if self.PreProcess.in_graph:
            yield f"in_graph is {self.PreProcess.in_graph}, expected False for a model with Arch"
        if not self.Output.normalized:
            yield "Output.normalized is False, expected True for a model with Arch"
        if self.Rejection is not None and self.Rejection.needs_output:
            yield f"Rejection.score is {self.Rejection.score}, expected max_probability for an exported model"
        prepared = check_chain(self.PreProcess.transform_ops)
        if prepared.channels != arch.input_image_channel:
            yield (
                f"transform_ops return {counted(prepared.channels, 'channel')}, but Arch.input_image_channel "
                f"is {arch.input_image_channel}"
            )
        network = arch.exported
        size = prepared.size or (-1, -1)
        if text := architecture(network.name).size_problem(size, network.img_size, network.patch_size):
            yield f"transform_ops return images of {text}"
        shape = _input_shape(prepared, arch.data_format)
        if (self.Input.shape, self.Input.layout) != (shape, arch.data_format):
            yield (
                f"Input is {list(self.Input.shape)} {self.Input.layout}, expected {list(shape)} "
                f"{arch.data_format}, according to transform_ops and Arch"
            )
        if arch.embeds != (self.postprocess is None):
            kind = "returns embeddings" if arch.embeds else "is a classifier"
            yield f"PostProcess is {'null' if self.postprocess is None else 'set'}, but Arch {kind}"
        if not arch.embeds and arch.class_num != self.width:
            yield f"Arch has {counted(arch.class_num, 'class')}, but Output.shape has {self.width}"

    def normalize(self, outputs: NDArray[Any]) -> NDArray[Any]:
        """Returns probabilities, or embeddings of length 1, for outputs of the model, [B, K] float32."""
        if self.Output.normalized:
            return outputs
        if self.postprocess is None:
            lengths = np.linalg.norm(outputs, axis=1, keepdims=True)
            return np.asarray(outputs / np.maximum(lengths, _SHORTEST), outputs.dtype)
        if self.Output.activation == "sigmoid":
            return np.asarray(1 / (1 + np.exp(-outputs)), outputs.dtype)
        shares = np.exp(outputs - outputs.max(axis=1, keepdims=True))
        return np.asarray(shares / shares.sum(axis=1, keepdims=True), outputs.dtype)

    @property
    def names(self) -> tuple[str, ...] | None:
        """Names of the classes, [class_num]; None if they are unknown."""
        return None if self.PostProcess is None else self.PostProcess.names

    @property
    def postprocess(self) -> base.PostProcess | None:
        """Method that chooses classes from the scores; None for an embedding model."""
        return None if self.PostProcess is None else self.PostProcess.method

    @property
    def width(self) -> int:
        """Number of classes, or length of an embedding; -1 if it is unknown until the model runs."""
        return self.Output.shape[1]

    @property
    def output_width(self) -> int:
        """Number of values per image that `InferenceModel.run` returns; -1 if it is unknown."""
        extra = self.Rejection is not None and self.Rejection.needs_output
        return self.width + 1 if extra else self.width

    @property
    def image_size(self) -> tuple[int, int]:
        """Height and width of the model's input; -1 for images of different sizes."""
        height, width = self.Input.shape[2:] if self.Input.layout == "NCHW" else self.Input.shape[1:3]
        return height, width

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
                decoder = specs[0].model_copy(update={"to_rgb": True})
                return plan_chain([decoder, TransformsOfModel(specs=specs[1:])], "HWC")
        return plan_chain(specs, "CHW" if self.Input.layout == "NCHW" else "HWC")

    @property
    def can_contain_normalization(self) -> bool:
        """Whether a model that expects prepared images could normalize 8-bit RGB pixels itself."""
        if self.PreProcess.in_graph:
            return False
        try:
            split_chain(self.PreProcess.transform_ops)
        except ValueError:
            return False
        return True

    def with_pixel_input(self, contained: Preprocess) -> ModelDescription:
        """Returns a copy for a model that contains transforms and expects RGB pixels.

        Args:
            contained: ``all`` for a model that prepares images of any size; ``normalize`` for a model that
                expects resized and cropped images.

        Raises:
            UserError: The transforms do not return 8-bit pixels before NormalizeImage.
        """
        height, width = self.image_size
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
            if (problem := find_difference(path, record, "damaged or from another export")) is not None:
                raise UserError(
                    f"{path}: {problem}, according to {DESCRIPTION}; export the model again, or remove "
                    f"Export.files from {DESCRIPTION} if you changed the model yourself"
                )

    def with_input_name(self, name: str) -> ModelDescription:
        """Returns a copy for a model whose input has another name."""
        return self.model_copy(update={"Input": self.Input.model_copy(update={"name": name})})

    def with_temperature(self, temperature: float) -> ModelDescription:
        """Returns a copy whose logits are divided by another temperature.

        A threshold of the post-processing is not changed, so it remains one for the previous temperature.
        """
        output = self.Output.model_copy(update={"temperature": temperature})
        return self.model_copy(update={"Output": output})

    def with_rejection(self, rule: RejectionRule | None) -> ModelDescription:
        """Returns a copy with a rule for the answer ``unknown``.

        Raises:
            UserError: The model has no softmax.
        """
        if rule is not None and self.Output.activation != "softmax":
            raise UserError(
                f"{self.Global.model_name}: the answer unknown needs a model with one label per image, but "
                f"it ends in {self.Output.activation}; delete {REJECTION_FILE}"
            )
        return self.model_copy(update={"Rejection": rule})

    def with_arch(self, arch: PlainArch | RecModel) -> ModelDescription:
        """Returns a copy for a model whose file contains only the weights of an architecture.

        The copy contains neither the head of an embedding model nor paths and initial weights.
        """
        tree = arch.model_dump(mode="json", include=_ARCH_KEYS, exclude_defaults=True)
        remove_paths(tree)
        kind = RecModel if arch.embeds else PlainArch
        return self.model_copy(update={"Arch": kind.model_validate(tree)})

    def with_record(self, record: ExportRecord) -> ModelDescription:
        """Returns a copy with a record of the export."""
        return self.model_copy(update={"Export": record})

    def as_yaml(self) -> str:
        """Returns the text of ``inference.yml``."""
        tree = self.model_dump(mode="json")
        for optional in ("Export", "Rejection", "Arch"):
            if tree[optional] is None:
                del tree[optional]
        if self.Arch is not None:
            # With default values, because later versions may have others.
            tree["Arch"] = self.Arch.model_dump(mode="json", exclude_none=True)
            remove_paths(tree["Arch"])
        if self.Output.temperature == 1.0:
            del tree["Output"]["temperature"]
        if self.Output.normalized:
            del tree["Output"]["normalized"]
        return dump_yaml(tree)


def _plain(arch: PlainArch | RecModel) -> dict[str, Any]:
    """Returns a section as plain data, without default values."""
    return arch.model_dump(mode="json", exclude_defaults=True)


def describe_model(
    arch: AnyArch, settings: Infer, names: Sequence[str] | None, temperature: float = 1.0
) -> ModelDescription:
    """Returns the description of a trained model.

    Args:
        arch: Section ``Arch`` of the config.
        settings: Section ``Infer`` of the config.
        names: Names of the classes, [class_num]; None if they are unknown.
        temperature: Divisor of the logits of a calibrated model.
    """
    layout = arch.data_format
    chain = [op.spec for op in plan_chain(settings.transforms, "CHW" if layout == "NCHW" else "HWC")]
    ops = [
        spec.model_copy(update={"order": ""}) if isinstance(spec, NormalizeImage) else spec for spec in chain
    ]
    shape = _input_shape(check_chain(settings.transforms), layout)
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
        # The predicted classes of a calibrated model are those of the model without the temperature.
        tree["PostProcess"] = describe_postprocess(settings.PostProcess.calibrated(temperature), names)
    return ModelDescription.model_validate(tree)


def _input_shape(prepared: ImageState, layout: Literal["NCHW", "NHWC"]) -> tuple[int, int, int, int]:
    """Returns the shape of batches of prepared images; -1 for any length."""
    height, width = prepared.size or (-1, -1)
    if layout == "NHWC":
        return -1, height, width, prepared.channels
    return -1, prepared.channels, height, width


def describe_postprocess(method: base.PostProcess, names: Sequence[str] | None) -> DescribedPostProcess:
    """Returns the section ``PostProcess`` of a description.

    Args:
        method: Post-processing method of the config.
        names: Names of the classes, [class_num]; None if they are unknown.
    """
    known = method.default_names if names is None else tuple(names)
    return DescribedPostProcess(method.for_export(), known)


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
    if problems := list(find_line_breaks(tree)):
        raise ConfigError(path, problems)
    try:
        return ModelDescription.model_validate(tree)
    except ValidationError as error:
        raise ConfigError(path, describe_problems(tree, error)) from None
