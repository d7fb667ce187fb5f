"""The commands ``ppcls export``, with its script in tools/, and ``ppcls verify``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from ppcls.cli.arguments.options import Exclusive, argument, option
from ppcls.cli.command import command, write_output
from ppcls.cli.infer import SOURCE, ModelOptions, read_source
from ppcls.cli.shared_options import Device, device_option
from ppcls.cli.short_options import model_overrides
from ppcls.deploy.export.formats import EXPORTERS
from ppcls.errors import UserError, counted
from ppcls.files import one_line, print_error

if TYPE_CHECKING:  # export imports Paddle
    from ppcls.config.base.overrides import Override
    from ppcls.deploy.export.export import ExportResult, PrecisionSettings
    from ppcls.deploy.models.source import ModelSource
    from ppcls.runtime.start import Runtime

_FORMATS = {
    **{name: exporter.description for name, exporter in EXPORTERS.items()},
    "bundle": "an ONNX model with its preprocessing, and images with expected outputs for ppcls verify",
}
_WEIGHTS = Exclusive()  # write only the weights
_COARSE = 0.1  # tolerance of a probability above which a bundle proves little
_BUNDLE = "bundle"  # default folder of a bundle, in the folder of the run
_OUTPUT = "--output (Global.save_inference_dir)"
_INFERENCE = "inference"  # default folder of an exported model, in the folder of the run


@dataclass(frozen=True, kw_only=True)
class ExportOptions(ModelOptions):
    """Export a model as a bundle, for Paddle Inference, ppcls, ONNX or OpenVINO, or only its weights."""

    examples: ClassVar[Sequence[str]] = (
        "ppcls export --model runs/pets --trust --format bundle --runners python,cpp",
        "ppcls export --model runs/pets --format onnx --output onnx",
        "ppcls export --from PP-LCNet_x1_0_infer --format onnx --output onnx",
    )

    model: str | None = option(
        None,
        "output folder of a run; checkpoint folder; architecture with published weights; or, for --format "
        "onnx and bundle, a folder that PaddleClas or PaddleX exported, or an .onnx file of any tool",
        names=["--from"],
        metavar="PATH",
        exclusive=SOURCE,
    )

    format: str = option(
        "paddle",
        "; ".join(f"{name}: {description}" for name, description in _FORMATS.items()),
        choices=tuple(_FORMATS),
    )
    runners: str = option(
        "python",
        "for a bundle: comma-separated languages of the programs that run it: python, cpp, js, web, java",
        metavar="LANGUAGES",
    )
    golden: int = option(
        20,
        "for a bundle: number of evaluation images that it contains with their expected outputs",
        ge=1,
        le=1000,
    )
    golden_data: tuple[Path, ...] = option(
        (),
        "for a bundle: folder, file or pattern of images to use instead of DataLoader.Eval; can be repeated",
        metavar="PATH",
        repeated=True,
    )
    pdparams: Path | None = option(
        None,
        "write only the weights, in PaddleClas's format, to a new file FILE that ends in .pdparams",
        metavar="FILE",
        exclusive=_WEIGHTS,
    )
    safetensors: Path | None = option(
        None,
        "write only the weights, with timm's names and layouts, to a new file FILE that ends in .safetensors",
        metavar="FILE",
        exclusive=_WEIGHTS,
    )
    preprocess: Literal["all", "normalize"] | None = option(
        None,
        "include transforms of Infer.transforms in the model, which then expects 8-bit RGB images [B, H, W, "
        "3]. all: all transforms, so images can have any size; normalize: only NormalizeImage, in any "
        "precision",
        without_value="all",
    )
    precision: Literal["float32", "float16", "bfloat16", "int8"] = option(
        "float32",
        "precision in which the exported model computes; docs/deploy.md lists the devices and formats of "
        "each precision",
    )
    calibration: Literal["percentile", "entropy", "minmax"] = option(
        "percentile", "for int8 in ONNX: method that chooses the range of each tensor's values"
    )
    int8_activations: Literal["unsigned", "signed"] = option(
        "unsigned",
        "for int8 in ONNX: type of the activations. unsigned: twice as many levels after a ReLU; signed: "
        "symmetric, as TensorRT needs",
    )
    calibration_images: int = option(
        256,
        "for int8: number of training images from which the ranges are computed",
        ge=16,
        le=100_000,
    )
    calibration_data: tuple[Path, ...] = option(
        (),
        "for int8: folder, file or pattern of images to use instead of DataLoader.Train; can be repeated",
        metavar="PATH",
        repeated=True,
    )
    evaluation_images: int = option(
        1000,
        "number of images of DataLoader.Eval on which the exported model is compared with the trained model",
        gt=0,
    )
    max_accuracy_loss: float = option(
        0.5,
        "maximum loss of accuracy on these images, in percentage points; after a larger loss, nothing is "
        "written",
        metavar="POINTS",
        ge=0,
        le=100,
    )
    output: str | None = option(
        None,
        "new folder for the exported model (default: the folder inference or bundle in the run's folder, or "
        "in the current folder if the run is in object storage)",
        metavar="FOLDER",
        key="Global.save_inference_dir",
    )
    device: Device | None = device_option()


@command("export", ExportOptions)
def export(options: ExportOptions) -> None:
    """Exports a model for other programs to ``Global.save_inference_dir``."""
    from ppcls.runtime.signals import interruptible

    with interruptible():  # so that SIGTERM leaves no temporary files
        _export(options)


def _export(options: ExportOptions) -> None:
    weights = options.pdparams or options.safetensors
    if weights is not None:
        _export_weights(options, weights)
        return
    overrides = model_overrides(options)
    source = read_source(options, options.model, overrides)
    if source is None:
        return
    from ppcls.deploy.models.source import check_path
    from ppcls.runtime import start as runtime
    from ppcls.runtime.launch import check_single_process

    if source.config is None:
        _check_converted(options, source)
    folder = check_path("Global.save_inference_dir", str(_find_folder(options, overrides, source)))
    check_single_process("ppcls export")
    run = runtime.start(source.run)
    from ppcls.deploy.export.export import PrecisionSettings, export_model

    settings = PrecisionSettings(
        options.precision,
        options.calibration,
        options.calibration_images,
        options.calibration_data,
        options.evaluation_images,
        options.max_accuracy_loss,
        options.int8_activations,
    )
    if options.format == "bundle":
        _export_bundle(options, source, folder, settings, run)
        return
    if source.config is None:
        from ppcls.deploy.export.convert import export_converted

        converted = export_converted(source, folder, run)
        write_output("".join(f"[Export] {line}\n" for line in _describe_export(source, folder, converted)))
        return
    exported = export_model(
        source, folder, options.format, preprocess=options.preprocess, settings=settings, runtime=run
    )
    write_output("".join(f"[Export] {line}\n" for line in _describe_export(source, folder, exported)))


def _check_converted(options: ExportOptions, source: ModelSource) -> None:
    """Checks the options for a model that is exported already."""
    if options.format not in ("onnx", "bundle") or source.builds_network:
        others = "" if source.builds_network else "use --format onnx or --format bundle, or "
        raise UserError(
            f"{source.file}: this model is already exported; {others}start from its checkpoint folder"
        )
    for name, value, default in (
        ("--precision", options.precision, "float32"),
        ("--preprocess", options.preprocess, None),
    ):
        if value != default:
            raise UserError(
                f"{name} {value}: needs a checkpoint, but {source.file} is already exported; remove {name}"
            )


def _describe_export(source: ModelSource, folder: Path, exported: ExportResult) -> Iterator[str]:
    """Yields lines that describe the files of an exported model, its input, and how it was checked."""
    from ppcls.deploy.export.parity import BATCHES

    tensor = exported.description.Input
    files = exported.files
    size = sum(files.values()) / 1e6
    yield (
        f"{one_line(source.file)} -> {folder}: {', '.join(files)}, {size:.1f} MB; "
        f"input {list(tensor.shape)} {tensor.dtype} {tensor.layout}, any batch size"
    )
    if exported.difference is not None:
        kinds = {"l2_norm": "embeddings", "none": "outputs"}
        outputs = kinds.get(exported.description.Output.activation, "logarithms of the scores")
        batches = ", ".join(map(str, BATCHES))
        original = "original" if source.config is None else "trained"
        yield (
            f"checked: the relative difference between the {outputs} of the exported and the {original} "
            f"model is at most {exported.difference:.1e}, for batches of {batches} random images"
        )
    yield from _describe_precision(exported)


def _export_bundle(
    options: ExportOptions, source: ModelSource, folder: Path, precision: PrecisionSettings, run: Runtime
) -> None:
    from ppcls.deploy.bundle.runners import parse_runners
    from ppcls.deploy.bundle.write import BundleSettings, write_bundle

    if options.preprocess == "normalize":
        raise UserError("--preprocess normalize: a bundle always contains all transforms; remove this option")
    runners = parse_runners(options.runners)
    settings = BundleSettings(precision, options.golden, options.golden_data, runners)
    result = write_bundle(source, folder, settings, run)
    size = result.archive.stat().st_size / 1e6
    allowed = result.bundle.tolerances.probabilities
    apart = result.differences
    trained = "" if apart.trained is None else f"{apart.trained:.1e} from the trained model, "
    write_output(
        f"[Export] {one_line(source.file)} -> {folder} and {result.archive} ({size:.1f} MB): "
        f"{result.bundle.model.precision}, {counted(len(result.bundle.golden), 'golden sample')}, runners: "
        f"{', '.join(runners) or 'none'}\n"
        f"[Export] largest difference of a probability: {trained}{apart.probabilities:.1e} between engines; "
        f"allowed: {allowed:.1e}\n"
        f"[Export] verified: {result.report}\n"
    )
    if result.skipped:
        total = len(result.skipped) + len(result.bundle.golden)
        print_error(
            f"warning: {len(result.skipped)} of {counted(total, 'image')} cannot be golden samples: "
            f"{one_line(result.skipped[0])}"
        )
    if allowed > _COARSE:
        name = result.bundle.model.precision
        advice = "another --calibration, or --precision float16" if name == "int8" else "--precision float32"
        print_error(
            f"warning: {folder}: this model is so sensitive to rounding in {name} that the bundle allows "
            f"probabilities to differ by {allowed:.2g}; try {advice}"
        )


def _find_folder(options: ExportOptions, overrides: Sequence[Override], source: ModelSource) -> Path:
    """Returns the folder to write. By default it is in the folder of the run, even if the run was moved.

    Raises:
        UserError: It is an address in object storage.
    """
    from ppcls.deploy.models.source import run_folder
    from ppcls.files.outputs import local_output
    from ppcls.files.urls import is_url, local_path
    from ppcls.storage.models import model_path

    default = _BUNDLE if options.format == "bundle" else _INFERENCE
    folder = source.run.save_inference_dir
    output = source.run.output_dir
    chosen = any(override.path.strip() == "Global.save_inference_dir" for override in overrides)
    if options.model is not None and is_url(options.model) and not chosen:
        return Path(default)  # the folder of the run is a copy, whose files are not uploaded
    run = None if options.model is None or chosen else run_folder(model_path(options.model))
    if run is None:
        inside = folder.removeprefix(f"{output}/")
        if is_url(output) and inside != folder and not chosen:
            return local_path(output) / inside
        return local_output(_OUTPUT, folder)
    if not source.trust or options.format == "bundle":  # a folder that the config names is not used
        return run / default
    inside = folder.removeprefix(f"{output}/")
    return local_output(_OUTPUT, folder) if inside == folder else run / inside


def _describe_precision(exported: ExportResult) -> Iterator[str]:
    """Yields lines that describe the precision and the accuracy of an exported model."""
    record = exported.description.Export
    if exported.quantized is not None:
        assert record is not None
        assert record.calibration is not None
        int8 = ", ".join(f"{count} {name}" for name, count in exported.quantized.int8.items())
        yield (
            f"int8: {int8}; float32: {', '.join(exported.quantized.float32) or 'nothing'}; calibrated by "
            f"{record.calibration.method} on {counted(record.calibration.images, 'image')} of "
            f"{one_line(Path(record.calibration.source))}"
        )
    if record is None or record.comparison is None:
        if exported.no_evaluation is not None:
            yield f"not compared on evaluation images: there are none ({exported.no_evaluation})"
        return
    comparison = record.comparison
    where = f"{counted(comparison.images, 'image')} of {one_line(Path(comparison.source))}"
    if exported.no_evaluation is not None:
        where = (
            f"{counted(comparison.images, 'random image')}, because there are no evaluation images "
            f"({exported.no_evaluation})"
        )
    accuracy = ""
    before = comparison.trained_accuracy
    after = comparison.exported_accuracy
    if before is not None and after is not None:
        accuracy = f"accuracy {before:.4f} trained, {after:.4f} exported, "
    yield (
        f"compared on {where}: {accuracy}agreement {comparison.agreement:.4f}, "
        f"largest difference {comparison.largest_difference:.1e}"
    )


def _export_weights(options: ExportOptions, path: Path) -> None:
    """Writes the weights of a model to a new file, in the format of PaddleClas or timm."""
    from ppcls.deploy.models.source import find_source, find_weights
    from ppcls.recipe.load import load_config
    from ppcls.storage.models import model_path

    option = "pdparams" if options.pdparams is not None else "safetensors"
    overrides = model_overrides(options)
    if path.suffix != f".{option}" or path.exists():
        raise UserError(f"--{option} {path}: expected a new file whose name ends in .{option}")
    if options.model is not None:
        source = find_source(model_path(options.model), overrides, trust=options.trust)
        if source.config is None:
            raise UserError(f"{options.model}: this model is already exported; expected a checkpoint folder")
        weights = source.file
        config = source.config
    else:
        assert options.config is not None  # one of the two is required
        config = load_config(options.config, overrides)
        weights = find_weights(config.Global)
    if not path.parent.is_dir():
        raise UserError(f"--{option} {path}: the folder {path.parent} does not exist")
    from ppcls.runtime import start as runtime
    from ppcls.runtime.launch import check_single_process

    check_single_process("ppcls export")
    runtime.start(config.Global)
    if option == "pdparams":
        from ppcls.engine.checkpoint.paddleclas import write_pdparams
        from ppcls.engine.core.networks import read_inferred

        write_pdparams(path, read_inferred(config.Arch, config.Loss.Train, weights))
    else:
        from ppcls.deploy.export.timm import write_timm

        write_timm(path, config.Arch, config.Loss.Train, weights)
    write_output(f"[Export] {one_line(weights)} -> {one_line(path)}: {path.stat().st_size / 1e6:.1f} MB\n")


@dataclass(frozen=True, kw_only=True)
class VerifyOptions:
    """Run the golden samples of a bundle, and name the first stage whose output differs.

    The stages are decoding, resizing (with crop and normalization), network and post-processing. Exit code 0:
    all outputs are as expected. Exit code 3: an output differs. Exit code 2: the bundle cannot be read.
    """

    examples: ClassVar[Sequence[str]] = (
        "ppcls verify runs/pets/bundle",
        "ppcls verify bundle.zip --engine openvino",
        "ppcls verify bundle --outputs outputs_of_my_program",
    )

    bundle: Path = argument("folder or zip file that ppcls export --format bundle wrote")
    engine: Literal["onnxruntime", "openvino"] = option(
        "onnxruntime", "engine that runs the model on the CPU"
    )
    stage: Literal["decoding", "resizing", "network", "post-processing"] | None = option(
        None, "check only this stage (default: all)"
    )
    outputs: Path | None = option(
        None,
        "instead of running the model, check the outputs of another program in FOLDER: for each sample, "
        "such as golden/00.jpg, the arrays 00.decoded.npy, 00.prepared.npy, 00.logits.npy and "
        "00.probabilities.npy. Missing files are not checked",
        metavar="FOLDER",
    )
    extract: Path | None = option(
        None,
        "extract the zip file to the new folder FOLDER, after checking its names and sizes",
        metavar="FOLDER",
    )


@command("verify", VerifyOptions)
def verify(options: VerifyOptions) -> None:
    """Checks a bundle, and prints the result."""
    from ppcls.deploy.bundle.archive import extract, opened_bundle
    from ppcls.runtime.signals import interruptible

    with interruptible():  # so that SIGTERM leaves no temporary files
        if options.extract is not None:
            if options.bundle.is_dir():
                raise UserError(f"--extract: {options.bundle} is a folder; expected a zip file")
            extract(options.bundle, options.extract)
            _verify(options, options.extract)
            return
        with opened_bundle(options.bundle) as folder:
            _verify(options, folder)


def _verify(options: VerifyOptions, folder: Path) -> None:
    from ppcls.deploy.bundle.compare import STAGES
    from ppcls.deploy.bundle.engines import load_stages
    from ppcls.deploy.bundle.schema import check_files, find_file, read_bundle_file
    from ppcls.deploy.bundle.verify import VerificationError, verify_model, verify_outputs

    bundle = read_bundle_file(folder)
    check_files(folder, bundle)
    stages = STAGES if options.stage is None else (options.stage,)
    if options.outputs is not None:
        report = verify_outputs(folder, bundle, options.outputs, stages)
        engine = f"outputs in {options.outputs}"
    else:
        file = find_file(folder, bundle.model.file)
        model = load_stages(file, bundle.model, options.engine)
        report = verify_model(folder, bundle, model, stages)
        engine = model.name
    name = one_line(bundle.model.name)
    lines = "".join(f"[Verify] {line}\n" for line in (f"{name}, {engine}", *report.lines()))
    write_output(lines)
    if not report.passed:
        raise VerificationError(str(report))
    write_output(f"{report}\n")
