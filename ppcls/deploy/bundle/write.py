"""Writes a bundle: an exported model with its preprocessing, golden samples and runners."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ppcls.deploy.bundle.archive import write_zip
from ppcls.deploy.bundle.card import write_card
from ppcls.deploy.bundle.engines import EngineName, OnnxStages, StageModel, load_stages
from ppcls.deploy.bundle.golden import (
    MeasuredDifferences,
    choose_tolerances,
    compute_outputs,
    measure_engines,
    read_images,
    write_samples,
)
from ppcls.deploy.bundle.graph import INPUT, LOGITS, PREPARED, PROBABILITIES, AddScore, join_models
from ppcls.deploy.bundle.known_score import add_distance, add_energy
from ppcls.deploy.bundle.runners import write_runners
from ppcls.deploy.bundle.schema import (
    FORMAT,
    VERSION,
    Bundle,
    BundleModel,
    Decision,
    write_bundle_file,
)
from ppcls.deploy.bundle.verify import VerificationReport, verify_model
from ppcls.deploy.export.convert import convert
from ppcls.deploy.export.export import PrecisionSettings, export_model, read_evaluation, save_program
from ppcls.deploy.export.formats import convert_to_onnx
from ppcls.deploy.export.samples import ImageSamples, read_files
from ppcls.deploy.in_graph.layer import PreprocessingLayer
from ppcls.deploy.models.description import DESCRIPTION, ModelDescription
from ppcls.deploy.models.rejection import KNOWN_SCORE, read_means
from ppcls.deploy.models.source import ONNX, ModelSource
from ppcls.deploy.predictor import Predictor
from ppcls.errors import UserError
from ppcls.files import new_folder, write_text
from ppcls.postprocess.methods import MultiLabelThreshOutput, ThreshOutput, Topk
from ppcls.runtime.start import Runtime
from ppcls.weights.manifest import read_record

Array = NDArray[Any]
_TOLERANCE = 1e-4  # of probabilities between the bundle and the trained model in float32


@dataclass(frozen=True)
class BundleSettings:
    """Settings of a bundle.

    Attributes:
        precision: Precision of the network, and the allowed loss of accuracy.
        samples: Number of golden samples.
        sample_data: Files, folders and patterns of images for the golden samples; empty to use the evaluation
            images of the config.
        runners: Languages of the runners.
    """

    precision: PrecisionSettings = field(default_factory=PrecisionSettings)
    samples: int = 20
    sample_data: tuple[Path, ...] = ()
    runners: Sequence[str] = ("python",)


@dataclass(frozen=True)
class BundleResult:
    """Result of `write_bundle`.

    Attributes:
        archive: Zip file of the bundle.
        bundle: Content of its ``bundle.json``.
        differences: Largest differences over all golden samples.
        report: Result of the verification of the written bundle.
        skipped: Reasons why images are no golden samples, one per image.
    """

    archive: Path
    bundle: Bundle
    differences: MeasuredDifferences
    report: VerificationReport
    skipped: tuple[str, ...]


def write_bundle(
    source: ModelSource, folder: Path, settings: BundleSettings, runtime: Runtime | None = None
) -> BundleResult:
    """Writes a bundle to a new folder, and to a zip file beside it.

    Args:
        source: Trained or exported classifier.
        folder: Folder of the bundle, which is created when it is complete and verified.
        settings: Precision, golden samples and runners.
        runtime: Device of the trained model; a CPU by default.

    Raises:
        UserError: The folder or the zip file exists or cannot be written; the model is no classifier, or
            cannot be exported; there are no images for golden samples; or the outputs of the bundle differ
            from those of the trained model.
    """
    runtime = runtime or Runtime()
    archive = folder.with_name(f"{folder.name}.zip")
    _check_new(folder, archive)
    original = source.description
    decision = describe_decision(source)
    samples = _read_samples(source, settings)
    ops = original.chain()
    try:
        with new_folder(folder) as temporary:
            description = _write_model(source, temporary, settings.precision, runtime)
            file = temporary / ONNX
            model = _describe_model(description, file)
            stages = load_stages(file, model, "onnxruntime")
            reference = _reference(source, runtime)
            exact = description.precision == "float32"
            skipped: list[str] = []
            images = read_images(samples, settings.samples, skipped)
            outputs, trained = compute_outputs(images, ops, stages, reference, is_exact=exact)
            if not outputs:
                raise UserError(
                    f"{samples.source}: no image can be a golden sample: {skipped[0]}; pass other images "
                    "with --golden-data"
                )
            if description.precision == "float32" and trained is not None and trained > _TOLERANCE:
                raise UserError(
                    f"the probabilities of the bundle differ by {trained:.1e} from those of the trained "
                    f"model, expected at most {_TOLERANCE:.0e}; nothing was written"
                )
            apart = measure_engines(outputs, _other_engines(file, model))
            differences = MeasuredDifferences(*apart, trained, _has_openvino())
            prepared = outputs[0].prepared
            names = original.names or tuple(map(str, range(len(outputs[0].probabilities))))
            content = {
                "format": FORMAT,
                "version": VERSION,
                "model": model,
                "classes": names,
                "decision": decision,
                "prepared_shape": None if prepared is None else prepared.shape,
                "tolerances": choose_tolerances(differences, outputs, ops, description.precision),
                "rejection": original.Rejection,
                "golden": write_samples(temporary, outputs, decision, original.Rejection),
            }
            write_text(temporary / DESCRIPTION, description.as_yaml())
            content["files"] = {
                path.relative_to(temporary).as_posix(): read_record(path)
                for path in sorted(temporary.rglob("*"))
                if path.is_file()
            }
            bundle = Bundle.model_validate(content)
            write_bundle_file(temporary, bundle)
            report = verify_model(temporary, bundle, stages)
            if not report.passed:
                raise UserError(f"the bundle does not pass its own verification: {report}")
            write_runners(temporary, settings.runners)
            write_card(temporary, bundle, description, differences, settings.runners)
        write_zip(folder, archive)
    except OSError as error:
        raise UserError(
            f"{folder}: cannot write the bundle: {error.strerror or error}; choose another --output"
        ) from None
    return BundleResult(archive, bundle, differences, report, tuple(skipped))


def describe_decision(source: ModelSource) -> Decision:
    """Returns the rule that selects classes.

    Raises:
        UserError: The model is no classifier, or its post-processing is not supported.
    """
    method = source.description.postprocess
    if isinstance(method, Topk):
        return Decision(method="topk", topk=method.topk)
    if isinstance(method, ThreshOutput):
        return Decision(method="binary", threshold=method.threshold)
    if isinstance(method, MultiLabelThreshOutput):
        return Decision(method="multi_label", threshold=method.threshold)
    actual = "embeddings" if method is None else method.kind
    raise UserError(
        f"{source.file}: --format bundle needs a classifier with Topk, ThreshOutput or "
        f"MultiLabelThreshOutput, got {actual}; use --format onnx"
    )


def _check_new(folder: Path, archive: Path) -> None:
    for path in (folder, archive):
        if os.path.lexists(path):
            raise UserError(
                f"{path}: exists already and is not overwritten; delete it, or choose another --output"
            )


def _read_samples(source: ModelSource, settings: BundleSettings) -> ImageSamples:
    if settings.sample_data:
        return read_files(settings.sample_data)
    reason: str | None = "an exported model has no evaluation images"
    samples = None
    if source.config is not None:
        config = source.config
        samples, reason = read_evaluation(
            config.DataLoader, config.Arch, source.file, settings.samples, source.unread
        )
    if samples is None:
        raise UserError(
            f"--format bundle needs images for golden samples: {reason}; pass some with --golden-data FOLDER"
        )
    return samples


def _write_model(
    source: ModelSource, folder: Path, settings: PrecisionSettings, runtime: Runtime
) -> ModelDescription:
    """Writes the joined model to a folder, and returns its description."""
    parts = folder / "parts"
    if source.config is None:
        parts.mkdir()
        exported, _ = convert(source, parts, runtime)
    else:
        # The score for the answer unknown is added below.
        plain = replace(source, description=source.description.with_rejection(None))
        exported = export_model(plain, parts, "onnx", settings=settings, runtime=runtime).description
    network = (parts / ONNX).read_bytes()
    shutil.rmtree(parts)
    pixels = exported.with_pixel_input("all")
    specs = [op.spec for op in exported.chain()]
    save = partial(save_program, PreprocessingLayer(specs), pixels)
    preprocessing = convert_to_onnx(save, folder, exported.Global.model_name)
    joined = join_models(preprocessing, network, exported.Global.model_name, _score_function(source))
    file = folder / ONNX
    file.write_bytes(joined.model)
    assert exported.Export is not None
    record = exported.Export.model_copy(update={"files": {file.name: read_record(file)}})
    described = pixels.with_input_name(INPUT).with_record(record)
    return described.with_rejection(source.description.Rejection)


def _score_function(source: ModelSource) -> AddScore | None:
    """Returns the function that adds the score of the model's rule to a graph; None without such a rule."""
    rule = source.description.Rejection
    if rule is None or not rule.needs_output:
        return None
    if rule.score == "energy":
        return add_energy
    description = source.description
    means = read_means(source.file, description.width)
    return partial(add_distance, means=means, name=description.Global.model_name)


def _describe_model(description: ModelDescription, file: Path) -> BundleModel:
    outputs = OnnxStages(file).outputs
    return BundleModel(
        file=file.name,
        name=description.Global.model_name,
        input=INPUT,
        probabilities=PROBABILITIES,
        logits=LOGITS if LOGITS in outputs else None,
        prepared=PREPARED if PREPARED in outputs else None,
        known_score=KNOWN_SCORE if KNOWN_SCORE in outputs else None,
        activation=description.Output.activation,
        temperature=description.Output.temperature,
        precision=description.precision,
    )


def _reference(source: ModelSource, runtime: Runtime) -> Callable[[Array], Array] | None:
    """Returns the function of the trained model. On a GPU, it may compute in TF32 and is not compared."""
    if runtime.device != "cpu":
        return None
    predictor = Predictor(source, runtime=runtime)
    width = source.description.width  # a further column is the score for the answer unknown
    return lambda images: predictor.check_outputs(np.asarray(predictor.model.run(images)))[:, :width]


def _other_engines(file: Path, model: BundleModel) -> list[StageModel]:
    engines: list[StageModel] = [OnnxStages(file, optimize=False)]
    others: list[EngineName] = ["openvino"] if _has_openvino() else []
    return [*engines, *(load_stages(file, model, name) for name in others)]


def _has_openvino() -> bool:
    return find_spec("openvino") is not None
