"""Selects the golden samples of a bundle, computes their expected outputs, and measures the tolerances."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ppcls.data.images.decode import decode
from ppcls.data.images.read_header import read_header
from ppcls.data.transforms.numpy_ops import run_on_pixels
from ppcls.data.transforms.specs import DecodeImage, NormalizeImage, Op
from ppcls.deploy.bundle.compare import select_classes
from ppcls.deploy.bundle.engines import StageModel
from ppcls.deploy.bundle.schema import Decision, GoldenSample, Tolerances
from ppcls.deploy.export.samples import ImageSamples
from ppcls.deploy.models.description import Precision
from ppcls.deploy.models.rejection import KNOWN_SCORE, RejectionRule
from ppcls.errors import DecodeError, UserError

Array = NDArray[Any]

GOLDEN = "golden"
_MAX_BYTES = 1 << 27  # of all decoded golden samples
# Largest and mean difference between decoders of JPEG, in levels. Decoders may round differently, but must
# use an accurate DCT and smooth upsampling of colors. On 130 JPEG files (benchmarks/bundle_runners.py),
# libjpeg-turbo's float DCT differs from its integer DCT by 3 levels, and by 0.10 on average of an image.
# Its fast DCT differs by 18 and 2.1, and upsampling without smoothing by 52 and 3.6: both are rejected.
_LOSSY = (8.0, 0.5)
# Largest and mean difference after resizing, in levels. All engines that we measured prepare equal pixels.
# This allows the rounding of other programs, but no other interpolation.
_LEVELS = (1.0, 0.01)
# Smallest tolerance of a probability. In float32, runners differed by at most 1.3e-5 from the trained model;
# 1e-4 is one unit of the last digit of a printed percentage. In float16 and bfloat16, the tolerance is about
# two units in the last place of a probability near 1 (2^-11 and 2^-8), and in int8 one of 127 levels.
_FLOOR = {"float32": 1e-4, "float16": 1e-3, "bfloat16": 1e-2, "int8": 1e-2}
# Smallest tolerance of a logit and of the score for the answer unknown, as a share of the largest value
_RELATIVE_FLOOR = {"float32": 1e-3, "float16": 1e-2, "bfloat16": 1e-1, "int8": 1e-2}
# Factor by which tolerances exceed the differences between engines, which the export measures on one CPU.
# There, runners differed by at most 1.2 times as much as the export measured with OpenVINO (docs/deploy.md).
# Other versions of an engine round differently, and other CPUs sum in other orders.
_MARGIN = 4.0
# Smallest tolerance in int8, of a probability and as a share of the largest logit, if the export could not
# measure OpenVINO, which is not installed. ResNet18 of the quick start differs by 0.0065 between ONNX Runtime
# with and without optimization, but by 0.027 in OpenVINO (logits of up to 7.0 by 0.04 and 0.16). For three
# larger models, the margin of differences in ONNX Runtime is enough.
_INT8_WITHOUT_OPENVINO = 5e-2
# Factor for engines that also round activations to float16, which we cannot run on a CPU. The difference from
# the trained model, which only the weights cause, shows how much such rounding changes this model. In int8,
# the model itself says how activations are rounded, so this difference does not matter.
_ROUNDED_ACTIVATIONS = {"float32": 0.0, "float16": 2.0, "bfloat16": 2.0, "int8": 0.0}


@dataclass(frozen=True)
class StageOutputs:
    """Outputs of all stages for one image; see `GoldenSample`.

    Attributes:
        suffix: Suffix of the file: ``.jpg`` or ``.png``.
        encoded: Content of the file.
    """

    suffix: str
    encoded: bytes
    decoded: Array
    prepared: Array | None
    logits: Array | None
    probabilities: Array
    known_score: float | None = None


@dataclass(frozen=True)
class MeasuredDifferences:
    """Largest differences over all golden samples.

    Attributes:
        logits: Between engines, of a logit.
        probabilities: Between engines, of a probability.
        known_score: Between engines, of the score for the answer unknown; 0 without this output.
        trained: Between the bundle and the trained model, of a probability; None without a trained model.
        has_openvino: Whether OpenVINO is one of the engines.
    """

    logits: float
    probabilities: float
    known_score: float
    trained: float | None
    has_openvino: bool


def read_images(samples: ImageSamples, count: int, skipped: list[str]) -> Iterator[tuple[str, bytes, Array]]:
    """Yields up to ``count`` images: suffix and content of the file, and its pixels [H, W, 3] uint8.

    Runners read only JPEG and PNG files, so other images are stored as PNG.

    Args:
        samples: Images to choose from.
        count: Number of images to choose.
        skipped: List to which the reasons are added why chosen images are skipped: they cannot be decoded, or
            would make the bundle too large.
    """
    spec = DecodeImage()
    total = 0
    for read in samples.spread(count).readers:
        try:
            data = bytes(read())
            header = read_header(data)
            pixels = np.ascontiguousarray(decode(spec, data, header))
        except (DecodeError, ValueError) as error:
            skipped.append(f"{read}: {error}")
            continue
        if total + pixels.size > _MAX_BYTES:
            skipped.append(
                f"{read}: {pixels.shape[1]} x {pixels.shape[0]} pixels exceed the limit of "
                f"{_MAX_BYTES // 3:,} pixels of all golden samples"
            )
            continue
        total += pixels.size
        # Decoders differ for CMYK, and many cut 16-bit samples instead of rounding them.
        portable = header.colours != "CMYK" and header.bits <= 8
        if header.format == "JPEG" and portable:
            yield ".jpg", data, pixels
        elif header.format == "PNG" and portable:
            yield ".png", data, pixels
        else:
            file = io.BytesIO()
            Image.fromarray(pixels).save(file, "PNG")
            yield ".png", file.getvalue(), pixels


def compute_outputs(
    images: Iterator[tuple[str, bytes, Array]],
    ops: Sequence[Op],
    model: StageModel,
    reference: Callable[[Array], Array] | None,
    *,
    is_exact: bool,
) -> tuple[list[StageOutputs], float | None]:
    """Returns the outputs of all stages, and the largest difference from the reference.

    Args:
        images: Result of `read_images`.
        ops: Transforms that prepare the input of the network.
        model: Model of the bundle.
        reference: Function of the trained model from prepared images to probabilities; None if there is none.
        is_exact: Whether to expect the probabilities of the reference. Otherwise, those of the model of the
            bundle are expected.

    Raises:
        UserError: The model of the bundle prepares an image differently.
    """
    outputs = []
    differences = []
    for suffix, encoded, pixels in images:
        values = {name: rows[0] for name, rows in model.run(pixels[None]).items()}
        prepared = run_on_pixels(ops, pixels).astype(np.float32)
        if not np.array_equal(prepared, values["prepared"]):
            apart = float(np.abs(prepared - values["prepared"]).max())
            raise UserError(
                f"the model of the bundle prepares an image differently from Infer.transforms: the largest "
                f"difference is {apart:.1e}, expected 0; nothing was written"
            )
        probabilities = values["probabilities"]
        if reference is not None:
            trained = reference(prepared[None])[0]
            differences.append(_apart(trained, probabilities))
            probabilities = trained if is_exact else probabilities
        known = float(values[KNOWN_SCORE]) if KNOWN_SCORE in values else None
        logits = values.get("logits")
        outputs.append(StageOutputs(suffix, encoded, pixels, prepared, logits, probabilities, known))
    return outputs, max(differences) if differences else None


Differences = tuple[float, float, float]


def measure_engines(outputs: Sequence[StageOutputs], models: Sequence[StageModel]) -> Differences:
    """Returns the largest differences of a logit, a probability and a score for the answer unknown."""
    logits = [0.0]
    probabilities = [0.0]
    known = [0.0]
    for model in models:
        for expected in outputs:
            values = model.run(expected.decoded[None])
            probabilities.append(_apart(values["probabilities"][0], expected.probabilities))
            if expected.logits is not None:
                logits.append(_apart(values["logits"][0], expected.logits))
            if expected.known_score is not None:
                known.append(abs(float(values[KNOWN_SCORE][0]) - expected.known_score))
    return max(logits), max(probabilities), max(known)


def choose_tolerances(
    differences: MeasuredDifferences, outputs: Sequence[StageOutputs], ops: Sequence[Op], precision: Precision
) -> Tolerances:
    """Returns the tolerances of a bundle."""
    floor = _FLOOR[precision]
    scale = max(
        [1.0, *(float(np.abs(sample.logits).max()) for sample in outputs if sample.logits is not None)]
    )
    relative = _RELATIVE_FLOOR[precision]
    if precision == "int8" and not differences.has_openvino:
        floor = _INT8_WITHOUT_OPENVINO
        relative = _INT8_WITHOUT_OPENVINO
    rounded = _ROUNDED_ACTIVATIONS[precision] * (differences.trained or 0.0)
    level = pixel_level(ops)
    known = [abs(sample.known_score) for sample in outputs if sample.known_score is not None]
    known_floor = relative * max([1.0, *known]) if known else 0.0
    return Tolerances(
        decoding=_LOSSY,
        resizing=(_round_up(_LEVELS[0] * level * 1.01), _round_up(_LEVELS[1] * level)),
        logits=_round_up(max(relative * scale, _MARGIN * differences.logits)),
        probabilities=_round_up(max(floor, _MARGIN * differences.probabilities, rounded)),
        known_score=_round_up(max(known_floor, _MARGIN * differences.known_score)) if known else 0.0,
    )


def pixel_level(ops: Sequence[Op]) -> float:
    """Returns the largest difference in the input of the network that one level of a pixel makes."""
    for op in ops:
        if isinstance(op.spec, NormalizeImage):
            return float(op.spec.scale) / min(op.spec.std)
    return 1.0


def write_samples(
    folder: Path, outputs: Sequence[StageOutputs], decision: Decision, rejection: RejectionRule | None
) -> list[GoldenSample]:
    """Writes golden samples to the folder of a bundle.

    Raises:
        OSError: A file cannot be written.
    """
    (folder / GOLDEN).mkdir()
    samples = []
    width = max(2, len(str(len(outputs) - 1)))
    for number, output in enumerate(outputs):
        stem = f"{GOLDEN}/{number:0{width}}"

        def write(kind: str, values: Array | None, dtype: str, stem: str = stem) -> str | None:
            if values is None:
                return None
            name = f"{stem}.{kind}.bin"
            (folder / name).write_bytes(np.ascontiguousarray(values, dtype).tobytes())
            return name

        (folder / f"{stem}{output.suffix}").write_bytes(output.encoded)
        samples.append(
            GoldenSample.model_validate(
                {
                    "image": f"{stem}{output.suffix}",
                    "height": output.decoded.shape[0],
                    "width": output.decoded.shape[1],
                    "decoded": write("decoded", output.decoded, "u1"),
                    "prepared": write("prepared", output.prepared, "<f4"),
                    "logits": write("logits", output.logits, "<f4"),
                    "probabilities": write("probabilities", output.probabilities, "<f4"),
                    "classes": select_classes(output.probabilities, decision),
                    **_judge(output, rejection),
                }
            )
        )
    return samples


def _judge(output: StageOutputs, rule: RejectionRule | None) -> dict[str, Any]:
    if rule is None:
        return {}
    score = rule.score_of(output.probabilities, output.known_score)
    return {"unknown": score < rule.limit_of(output.probabilities), "known_score": score}


def _apart(first: Array, second: Array) -> float:
    return float(np.abs(first.astype(np.float64) - second).max())


def _round_up(value: float) -> float:
    """Returns a number with two digits that is not smaller."""
    exponent = int(np.floor(np.log10(value))) - 1
    return float(f"{np.ceil(round(value / 10.0**exponent, 6)) * 10.0**exponent:.1e}")
