"""The file ``bundle.json``, which describes a bundle to programs in any language. docs/deploy.md explains it.

A bundle may come from a stranger, so all names of files are relative, and lead to files in its folder.
"""

from __future__ import annotations

import json
import math
import os
import re
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, Field, FiniteFloat, ValidationError, model_validator
from typing_extensions import Self

from ppcls.config.base.errors import ConfigError, describe_problems
from ppcls.config.base.fields import MAX_SIDE, Bound, Count, Fraction, NonNegative
from ppcls.config.base.problems import find_line_breaks, show
from ppcls.config.base.section import Section
from ppcls.deploy.models.description import Activation, Precision
from ppcls.deploy.models.rejection import RejectionRule
from ppcls.errors import UserError
from ppcls.files import open_regular
from ppcls.weights.manifest import FileRecord, find_difference

BUNDLE = "bundle.json"
FORMAT = "ppcls-bundle"
VERSION = 1
MAX_BUNDLE_BYTES = 1 << 26  # size of bundle.json: 100,000 classes with long names need 10 MB
_MAX_SAMPLES = 1000
_MAX_CLASSES = 1_000_000
_FLOAT32 = 4  # bytes
_NAME = re.compile(r"\w[\w.-]{0,127}(/\w[\w.-]{0,127}){0,4}", re.ASCII)
# Names that Windows reserves, with any extension
_RESERVED = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.IGNORECASE)


def check_name(name: str) -> str:
    """Returns the relative path of a file in a bundle.

    Raises:
        ValueError: The path could lead out of the bundle, or is not portable.
    """
    if not _NAME.fullmatch(name) or any(_RESERVED.fullmatch(part) for part in name.split("/")):
        raise ValueError(
            f"expected the path of a file in the bundle, such as golden/00.jpg, of letters, digits, '_', '.' "
            f"and '-', got {name[:200]!r}"
        )
    return name


FilePath = Annotated[str, AfterValidator(check_name)]
_Side = Annotated[int, Bound(ge=1, le=MAX_SIDE)]


class BundleModel(Section):
    """The ONNX model of a bundle, and its input and outputs."""

    file: FilePath
    name: str
    """Name of the architecture."""
    input: str
    """Input: RGB pixels [N, height, width, 3] uint8, upright, all of one size."""
    probabilities: str
    """Output: scores of the classes, [N, classes] float32."""
    logits: str | None
    """Output: input of the last activation, divided by the temperature, [N, classes] float32; null if the
    model ends in another operator."""
    prepared: str | None
    """Output: input of the network, [N, ...] float32; null if the model prepares no images."""
    known_score: str | None = None
    """Output: score for the answer unknown, [N] float32; null if the probabilities determine it."""
    activation: Activation
    temperature: Annotated[float, Bound(ge=1e-3, le=1e3)] = 1.0
    precision: Precision


class Decision(Section):
    """Rule that selects the classes of an image from its probabilities."""

    method: Literal["topk", "binary", "multi_label"]
    """topk: the classes with the highest scores; binary: the second class if its score reaches the threshold,
    else the first; multi_label: all classes whose scores reach the threshold."""
    topk: Count = 5
    threshold: Fraction | tuple[Fraction, ...] = 0.5
    """For binary and multi_label: smallest score. For multi_label, one for all classes or one per class."""


class Tolerances(Section):
    """Largest allowed differences from the expected outputs.

    Each pair is the largest difference of one value, and the largest mean difference of an image.
    """

    decoding: tuple[NonNegative, NonNegative]
    """Pixels 0 to 255 of JPEG files. Pixels of PNG files must be equal."""
    resizing: tuple[NonNegative, NonNegative]
    """Input of the network."""
    logits: NonNegative
    probabilities: NonNegative
    known_score: NonNegative = 0.0
    """Score for the answer unknown; 0 if the probabilities determine it."""


class GoldenSample(Section):
    """An image of the evaluation set with the expected output of each stage.

    The outputs are files of raw little-endian values without a header.
    """

    image: FilePath
    height: _Side
    """Of the upright image."""
    width: _Side
    decoded: FilePath
    """RGB pixels of the upright image, [height, width, 3] uint8."""
    prepared: FilePath | None
    """Input of the network, ``prepared_shape`` float32."""
    logits: FilePath | None
    """[classes] float32."""
    probabilities: FilePath
    """[classes] float32."""
    classes: tuple[Annotated[int, Bound(ge=0)], ...]
    """Numbers of the selected classes, in descending order of their scores."""
    unknown: bool | None = None
    """Whether the image belongs to no class; null without a rule."""
    known_score: FiniteFloat | None = None
    """Score that the rule compares with its threshold; null without a rule."""


class Bundle(Section):
    """Content of ``bundle.json``."""

    format: Literal["ppcls-bundle"]
    version: Literal[1]
    model: BundleModel
    classes: Annotated[tuple[str, ...], Field(min_length=1, max_length=_MAX_CLASSES)]
    """Names of the classes; their numbers if they have no names."""
    decision: Decision
    rejection: RejectionRule | None = None
    """Rule for the answer unknown; null for none."""
    prepared_shape: tuple[_Side, _Side, _Side] | None
    """Shape of the network's input for one image."""
    tolerances: Tolerances
    golden: Annotated[tuple[GoldenSample, ...], Field(max_length=_MAX_SAMPLES)]
    files: dict[FilePath, FileRecord]
    """Size and SHA-256 of all files of the model and of the golden samples."""

    def _sizes_of(self, sample: GoldenSample) -> dict[str, int]:
        """Returns the sizes of the expected outputs of a golden sample, in bytes."""
        sizes = {
            sample.decoded: sample.height * sample.width * 3,
            sample.probabilities: len(self.classes) * _FLOAT32,
        }
        if sample.prepared is not None and self.prepared_shape is not None:
            sizes[sample.prepared] = math.prod(self.prepared_shape) * _FLOAT32
        if sample.logits is not None:
            sizes[sample.logits] = len(self.classes) * _FLOAT32
        return sizes

    @model_validator(mode="after")
    def _check_files(self) -> Self:
        used = [self.model.file]
        for sample in self.golden:
            used += [sample.image, sample.decoded, sample.probabilities]
            used += [name for name in (sample.prepared, sample.logits) if name is not None]
            if sample.classes and max(sample.classes) >= len(self.classes):
                raise ValueError(
                    f"golden: class {max(sample.classes)} of {sample.image}: expected a number below "
                    f"{len(self.classes)}"
                )
            if sample.prepared is not None and self.prepared_shape is None:
                raise ValueError(f"golden: {sample.prepared} needs prepared_shape, got null")
            for name, size in self._sizes_of(sample).items():
                if name in self.files and self.files[name].size != size:
                    raise ValueError(f"files: {name}: expected {size:,} bytes, got {self.files[name].size:,}")
        if missing := [name for name in used if name not in self.files]:
            raise ValueError(f"files: expected a record of {missing[0]}")
        threshold = self.decision.threshold
        if isinstance(threshold, tuple) and len(threshold) != len(self.classes):
            raise ValueError(
                f"decision.threshold: expected {len(self.classes)} values, one per class, got "
                f"{len(threshold)}"
            )
        limits = None if self.rejection is None else self.rejection.threshold
        if isinstance(limits, tuple) and len(limits) != len(self.classes):
            raise ValueError(
                f"rejection.threshold: expected {len(self.classes)} values, one per class, got {len(limits)}"
            )
        if self.rejection is not None and self.rejection.needs_output == (self.model.known_score is None):
            expected = "the name of an output" if self.rejection.needs_output else "null"
            raise ValueError(
                f"model.known_score: expected {expected} for the score {self.rejection.score}, got "
                f"{self.model.known_score}"
            )
        if self.rejection is not None and any(sample.known_score is None for sample in self.golden):
            raise ValueError("golden: expected known_score of each sample, because rejection is not null")
        if self.decision.method == "binary" and len(self.classes) != 2:
            raise ValueError(f"decision.method: binary needs two classes, got {len(self.classes)}")
        if self.decision.method == "binary" and isinstance(threshold, tuple):
            raise ValueError(f"decision.threshold: binary needs one number, got {len(threshold)}")
        return self


def write_bundle_file(folder: Path, bundle: Bundle) -> None:
    """Writes ``bundle.json``.

    Raises:
        OSError: The file cannot be written.
    """
    text = json.dumps(bundle.model_dump(mode="json"), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    (folder / BUNDLE).write_text(text, encoding="utf-8")


def read_bundle_file(folder: Path) -> Bundle:
    """Returns the content of ``bundle.json`` in a folder.

    Raises:
        UserError: The file is missing, a link, too large or not JSON.
        ConfigError: The file has errors, all of which the message lists.
    """
    path = folder / BUNDLE
    if path.is_symlink():  # as for all other files of a bundle, see `check_files`
        raise UserError(f"{path}: expected a file, found a link; replace it by its target")
    if not path.exists():
        raise UserError(
            f"{folder}: not a bundle: expected the file {BUNDLE}, which ppcls export --format bundle writes"
        )
    try:
        with open_regular(path) as file:
            data = file.read(MAX_BUNDLE_BYTES + 1)
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from None
    return parse_bundle(path, data)


def parse_bundle(path: Path, data: bytes) -> Bundle:
    """Returns the content of ``bundle.json``.

    Args:
        path: Name of the file, for messages.
        data: Content of the file.

    Raises:
        UserError: The file is too large, or is not JSON.
        ConfigError: The file has errors, all of which the message lists.
    """
    if len(data) > MAX_BUNDLE_BYTES:
        raise UserError(f"{path}: expected at most {MAX_BUNDLE_BYTES:,} bytes")
    try:
        tree = json.loads(data.decode("utf-8"), parse_constant=_reject_constant)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: not JSON: {error}; export the bundle again") from None
    if not isinstance(tree, dict) or tree.get("format") != FORMAT:
        raise UserError(f'{path}: expected a JSON object with "format": "{FORMAT}"; export the bundle again')
    if tree.get("version") != VERSION:
        raise UserError(
            f"{path}: expected version {VERSION}, got {show(tree.get('version'))}; install the version "
            "of ppcls that wrote the bundle, or export the bundle again"
        )
    if problems := list(find_line_breaks(tree)):
        raise ConfigError(path, problems)
    try:
        return Bundle.model_validate(tree)
    except ValidationError as error:
        raise ConfigError(path, describe_problems(tree, error)) from None


def check_files(folder: Path, bundle: Bundle) -> None:
    """Checks that the files of a bundle are complete and unchanged.

    Raises:
        UserError: A file is missing, is a link or has changed.
    """
    for name, record in bundle.files.items():
        path = find_file(folder, name)
        if (problem := find_difference(path, record, "damaged or changed")) is not None:
            raise UserError(f"{path}: {problem}, according to {BUNDLE}; export the bundle again")


def find_file(folder: Path, name: str) -> Path:
    """Returns the path of a file of a bundle.

    Args:
        folder: Folder of the bundle.
        name: Checked name; see `check_name`.

    Raises:
        UserError: The file, or a folder above it, is a link.
    """
    path = folder
    for part in name.split("/"):
        path = path / part
        if path.is_symlink():
            raise UserError(f"{path}: a bundle contains no links; replace it by its target")
    return path


def read_values(folder: Path, name: str, shape: tuple[int, ...], dtype: str) -> NDArray[Any]:
    """Returns an expected output of a golden sample.

    Args:
        folder: Folder of the bundle.
        name: Name of the file.
        shape: Shape of the values.
        dtype: Dtype of the values: ``uint8`` or ``float32``.

    Raises:
        UserError: The file cannot be read or has another size.
    """
    path = find_file(folder, name)
    kind = np.dtype(dtype).newbyteorder("<")
    expected = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
    try:
        with open_regular(path) as file:
            if (size := os.fstat(file.fileno()).st_size) != expected:
                raise UserError(
                    f"{path}: expected {expected:,} bytes, {list(shape)} {dtype}, found {size:,}; export the "
                    "bundle again"
                )
            return np.frombuffer(file.read(), kind).reshape(shape).astype(dtype)
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from None


def _reject_constant(text: str) -> float:
    raise ValueError(f"{text} is not a number")
