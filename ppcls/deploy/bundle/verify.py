"""Runs the golden samples of a bundle, and names the first stage whose output differs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ppcls.data.images.decode import decode
from ppcls.data.transforms.specs import DecodeImage
from ppcls.deploy.bundle.compare import (
    STAGES,
    Stage,
    StageDifference,
    compare_classes,
    compare_pixels,
    compare_prepared,
    compare_unknown,
    compare_values,
    select_classes,
)
from ppcls.deploy.bundle.engines import EngineName, StageModel, load_stages
from ppcls.deploy.bundle.schema import (
    Bundle,
    GoldenSample,
    check_files,
    find_file,
    read_bundle_file,
    read_values,
)
from ppcls.errors import DecodeError, UserError, counted
from ppcls.files import one_line, read_regular

Array = NDArray[Any]

# Outputs of the stages in names of files, such as 00.decoded.npy
_KINDS: Mapping[Stage, str] = {
    "decoding": "decoded",
    "resizing": "prepared",
    "network": "logits",
    "post-processing": "probabilities",
}


class VerificationError(UserError):
    """Raised if a golden sample differs from its expected output. The exit code is 3."""

    code = 3


@dataclass(frozen=True)
class SampleReport:
    """Result of one golden sample.

    Attributes:
        image: Name of its file.
        differences: Difference of each stage that was checked, in order.
        probability: Largest difference of a probability, from the file to the probabilities; None if they
            were not compared.
    """

    image: str
    differences: tuple[StageDifference, ...]
    probability: float | None

    @property
    def first_failure(self) -> StageDifference | None:
        """First stage whose output differs; None if all are as expected."""
        return next((each for each in self.differences if not each.passed), None)


@dataclass(frozen=True)
class VerificationReport:
    """Result of all golden samples.

    Attributes:
        samples: Results, one per sample.
    """

    samples: tuple[SampleReport, ...]

    @property
    def failed(self) -> tuple[SampleReport, ...]:
        """Samples that differ."""
        return tuple(sample for sample in self.samples if sample.first_failure is not None)

    @property
    def passed(self) -> bool:
        """Whether there are samples, and all are as expected."""
        return bool(self.samples) and not self.failed

    def __str__(self) -> str:
        total = len(self.samples)
        failed = self.failed
        if not failed:
            compared = [sample.probability for sample in self.samples if sample.probability is not None]
            if not compared:
                return f"PASS: {total} of {total}; no probabilities were compared"
            return f"PASS: {total} of {total}, largest difference {max(compared):.1e}"
        stages = {sample.first_failure.stage for sample in failed if sample.first_failure is not None}
        first = next(stage for stage in STAGES if stage in stages)
        worst = [
            sample
            for sample in failed
            if sample.first_failure is not None and sample.first_failure.stage == first
        ]
        sample = worst[0]
        return (
            f"FAIL: {total - len(failed)} of {total}; first stage that differs: {first} "
            f"({counted(len(worst), 'sample')})\n{sample.image}: {sample.first_failure}"
        )

    def lines(self) -> Iterator[str]:
        """Yields one line per stage with its largest difference."""
        for stage in STAGES:
            checked = [
                [each for each in sample.differences if each.stage == stage] for sample in self.samples
            ]
            checked = [differences for differences in checked if differences]
            if checked:
                passed = sum(all(each.passed for each in differences) for differences in checked)
                largest = max(each.largest for differences in checked for each in differences)
                yield f"{stage}: {passed} of {len(checked)}, largest difference {largest:.1e}"


@dataclass(frozen=True)
class ExpectedOutputs:
    """Expected outputs of one golden sample; see `GoldenSample`."""

    decoded: Array
    prepared: Array | None
    logits: Array | None
    probabilities: Array


def read_expected(folder: Path, bundle: Bundle, sample: GoldenSample) -> ExpectedOutputs:
    """Returns the expected outputs of a golden sample.

    Raises:
        UserError: A file is missing or has another size.
    """
    classes = (len(bundle.classes),)
    prepared = None
    if sample.prepared is not None:
        assert bundle.prepared_shape is not None  # checked by Bundle
        prepared = read_values(folder, sample.prepared, bundle.prepared_shape, "float32")
    return ExpectedOutputs(
        read_values(folder, sample.decoded, (sample.height, sample.width, 3), "uint8"),
        prepared,
        None if sample.logits is None else read_values(folder, sample.logits, classes, "float32"),
        read_values(folder, sample.probabilities, classes, "float32"),
    )


def verify_model(
    folder: Path, bundle: Bundle, model: StageModel, stages: Sequence[Stage] = STAGES
) -> VerificationReport:
    """Runs a model on the golden samples. Each stage receives the expected output of the stage before.

    Args:
        folder: Folder of the bundle.
        bundle: Content of its ``bundle.json``.
        model: The model.
        stages: Stages to check.

    Raises:
        UserError: A file of the bundle cannot be read, or it has no expected output of the stages.
    """
    spec = DecodeImage()

    def run_sample(sample: GoldenSample) -> SampleReport:
        expected = read_expected(folder, bundle, sample)
        try:
            decoded = decode(spec, read_regular(find_file(folder, sample.image)))
        except (DecodeError, OSError) as error:
            raise UserError(f"{folder / sample.image}: cannot be decoded: {error}") from None
        outputs = _first_rows(model.run(expected.decoded[None]))
        names = bundle.model
        actual: dict[Stage, Any] = {
            "decoding": decoded,
            "resizing": outputs.get(names.prepared or ""),
            "network": outputs.get(names.logits or ""),
            "post-processing": outputs[names.probabilities],
        }
        known = None if names.known_score is None else float(outputs[names.known_score])
        differences = (
            *compare_sample(bundle, sample, expected, actual, stages),
            *_compare_known_score(bundle, sample, expected, (outputs[names.probabilities], known), stages),
        )
        whole = outputs
        if not np.array_equal(decoded, expected.decoded):
            whole = _first_rows(model.run(decoded[None]))
        return SampleReport(sample.image, differences, _largest(whole[names.probabilities], expected))

    samples = tuple(map(run_sample, bundle.golden))
    if samples and not any(sample.differences for sample in samples):
        raise UserError(
            f"{one_line(folder)}: no expected outputs of the stage {', '.join(stages)}; check another stage"
        )
    return VerificationReport(samples)


def verify_folder(folder: Path, engine: EngineName = "onnxruntime") -> VerificationReport:
    """Checks the files of a bundle, and runs its golden samples.

    Raises:
        UserError: The bundle cannot be read, or is damaged.
        VerificationError: An output differs.
    """
    bundle = read_bundle_file(folder)
    check_files(folder, bundle)
    model = load_stages(find_file(folder, bundle.model.file), bundle.model, engine)
    report = verify_model(folder, bundle, model)
    if not report.passed:
        raise VerificationError(f"{folder}: {report}")
    return report


def verify_outputs(
    folder: Path, bundle: Bundle, outputs: Path, stages: Sequence[Stage] = STAGES
) -> VerificationReport:
    """Compares the outputs that another program wrote with the expected outputs.

    Args:
        folder: Folder of the bundle.
        bundle: Content of its ``bundle.json``.
        outputs: Folder of ``.npy`` files: for the sample ``golden/00.jpg``, ``00.decoded.npy``,
            ``00.prepared.npy``, ``00.logits.npy`` and ``00.probabilities.npy``. Missing files are not
            checked.
        stages: Stages to check.

    Raises:
        UserError: There are no such files, or one cannot be read.
    """
    reports = []
    for sample in bundle.golden:
        stem = Path(sample.image).stem
        actual = {stage: _read_array(outputs / f"{stem}.{kind}.npy") for stage, kind in _KINDS.items()}
        if all(actual[stage] is None for stage in stages):
            continue
        expected = read_expected(folder, bundle, sample)
        differences = compare_sample(bundle, sample, expected, actual, stages)
        if not differences:
            continue
        scores = actual["post-processing"]
        difference = None if scores is None else _largest(scores, expected)
        reports.append(SampleReport(sample.image, differences, difference))
    if not reports:
        stem = Path(bundle.golden[0].image).stem if bundle.golden else "00"
        names = ", ".join(f"{stem}.{_KINDS[stage]}.npy" for stage in stages)
        raise UserError(
            f"{one_line(outputs)}: no output that can be compared: expected files such as {names}"
        )
    return VerificationReport(tuple(reports))


def compare_sample(
    bundle: Bundle,
    sample: GoldenSample,
    expected: ExpectedOutputs,
    actual: Mapping[Stage, Array | None],
    stages: Sequence[Stage],
) -> tuple[StageDifference, ...]:
    """Returns the differences of the stages that are checked and have an output."""
    limits = bundle.tolerances
    lossless = not sample.image.endswith((".jpg", ".jpeg"))

    def compare(stage: Stage, values: Array) -> Iterator[StageDifference]:
        if stage == "decoding":
            yield compare_pixels(values, expected.decoded, (0, 0) if lossless else limits.decoding)
        elif stage == "resizing" and expected.prepared is not None:
            yield compare_prepared(values, expected.prepared, limits.resizing)
        elif stage == "network" and expected.logits is not None:
            yield compare_values(stage, values, expected.logits, limits.logits)
        elif stage == "post-processing":
            yield compare_values(stage, values, expected.probabilities, limits.probabilities)
            if values.shape == expected.probabilities.shape:
                selected = select_classes(values, bundle.decision)
                other = compare_classes(
                    selected, sample.classes, expected.probabilities, bundle.decision, limits.probabilities
                )
                yield from [] if other is None else [other]

    return tuple(
        difference
        for stage in stages
        if (values := actual[stage]) is not None
        for difference in compare(stage, values)
    )


def _compare_known_score(
    bundle: Bundle,
    sample: GoldenSample,
    expected: ExpectedOutputs,
    actual: tuple[Array, float | None],
    stages: Sequence[Stage],
) -> Iterator[StageDifference]:
    """Yields the difference of the score for the answer unknown, and another answer.

    Args:
        bundle: Content of ``bundle.json``.
        sample: The golden sample.
        expected: Its expected outputs.
        actual: Probabilities [C], and the score if the model returns it.
        stages: Stages to check.
    """
    rule = bundle.rejection
    probabilities, known = actual
    if rule is None or "post-processing" not in stages or probabilities.shape != expected.probabilities.shape:
        return
    assert sample.known_score is not None  # checked by Bundle
    score = rule.score_of(probabilities, known)
    allowed = bundle.tolerances.known_score if rule.needs_output else bundle.tolerances.probabilities
    apart = abs(score - sample.known_score)
    hint = "" if apart <= allowed else f"the score for the answer unknown is {score:.4g}"
    yield StageDifference("post-processing", apart, apart, (allowed, allowed), hint)
    limit = rule.limit_of(probabilities)
    expected_limit = rule.limit_of(expected.probabilities)
    if compare_unknown((score, limit), (sample.known_score, expected_limit), allowed):
        hint = f"expected unknown {sample.unknown}, got {score < limit}"
        yield StageDifference("post-processing", float("inf"), float("inf"), (0, 0), hint)


def _first_rows(outputs: Mapping[str, Array]) -> dict[str, Array]:
    return {name: values[0] for name, values in outputs.items()}


def _largest(probabilities: Array, expected: ExpectedOutputs) -> float:
    if probabilities.shape != expected.probabilities.shape:
        return float("inf")
    return float(np.abs(probabilities - expected.probabilities).max())


def _read_array(file: Path) -> Array | None:
    """Returns the array in a file, without an axis of length 1 for the batch; None if it does not exist."""
    if not file.exists():
        return None
    try:
        values = np.load(file, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise UserError(f"{one_line(file)}: not an array: {error}; write it with numpy.save") from None
    if not isinstance(values, np.ndarray) or values.dtype.kind not in "fiu":
        raise UserError(f"{one_line(file)}: expected an array of numbers")
    return values[0] if values.ndim in (2, 4) and len(values) == 1 else values
