"""The command ``ppcls export``, and its script in tools/."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ppcls.cli.command import Arguments, command
from ppcls.cli.infer import read_source
from ppcls.cli.options import parse_model_arguments
from ppcls.config.load import load_config
from ppcls.deploy.models.source import check_path, find_source, find_weights
from ppcls.deploy.results import printable
from ppcls.errors import UserError
from ppcls.runtime.launch import check_single_process
from ppcls.weights.store import BEST

if TYPE_CHECKING:  # export imports Paddle
    from ppcls.deploy.export.export import ExportResult
    from ppcls.recipe.settings import Global


@command
def export(argv: Arguments = None) -> None:
    """Exports a model for other programs to ``Global.save_inference_dir``."""
    arguments = parse_model_arguments("export", argv)
    if arguments.pdparams or arguments.safetensors:
        _export_weights(arguments)
        return
    source = read_source(arguments)
    if source is None:
        return
    folder = check_path("Global.save_inference_dir", _find_folder(arguments, source.run))
    from ppcls.runtime import start as runtime

    check_single_process("ppcls export")
    run = runtime.start(source.run)
    from ppcls.deploy.export.export import PrecisionSettings, export_model
    from ppcls.deploy.export.parity import BATCHES

    settings = PrecisionSettings(
        arguments.precision,
        arguments.calibration,
        arguments.calibration_images,
        tuple(arguments.calibration_data),
        arguments.evaluation_images,
        arguments.max_accuracy_loss,
    )
    exported = export_model(
        source, folder, arguments.format, preprocess=arguments.preprocess, settings=settings, runtime=run
    )
    tensor = exported.description.Input
    files = exported.files
    size = sum(files.values()) / 1e6
    sys.stdout.write(
        f"[Export] {printable(source.file)} -> {folder}: {', '.join(files)}, {size:.1f} MB; "
        f"input {list(tensor.shape)} {tensor.dtype} {tensor.layout}, any batch size\n"
    )
    if exported.difference is not None:
        kinds = {"l2_norm": "embeddings", "none": "outputs"}
        outputs = kinds.get(exported.description.Output.activation, "logarithms of the scores")
        batches = ", ".join(map(str, BATCHES))
        sys.stdout.write(
            f"[Export] checked: the relative difference between the {outputs} of the exported and the "
            f"trained model is at most {exported.difference:.1e}, for batches of {batches} random images\n"
        )
    sys.stdout.writelines(f"[Export] {line}\n" for line in _describe_precision(exported))


def _find_folder(arguments: argparse.Namespace, settings: Global) -> str:
    """Returns the folder to write. By default it is in the folder of the run, even if the run was moved."""
    folder = settings.save_inference_dir
    output = settings.output_dir
    chosen = any(override.path.strip() == "Global.save_inference_dir" for override in arguments.override)
    if arguments.model is None or chosen or not folder.startswith(f"{output}/"):
        return folder
    model = Path(arguments.model)
    run = next((place for place in (model, model.parent) if (place / BEST).is_symlink()), None)
    return folder if run is None else f"{run}{folder.removeprefix(output)}"


def _describe_precision(exported: ExportResult) -> Iterator[str]:
    """Yields lines that describe the precision and the accuracy of an exported model."""
    record = exported.description.Export
    if exported.quantized is not None:
        assert record is not None
        assert record.calibration is not None
        int8 = ", ".join(f"{count} {name}" for name, count in exported.quantized.int8.items())
        yield (
            f"int8: {int8}; float32: {', '.join(exported.quantized.float32) or 'nothing'}; calibrated by "
            f"{record.calibration.method} on {record.calibration.images:,} images of "
            f"{printable(Path(record.calibration.source))}"
        )
    if record is None or record.comparison is None:
        if exported.no_evaluation is not None:
            yield f"not compared on evaluation images: there are none ({exported.no_evaluation})"
        return
    comparison = record.comparison
    images = f"{record.comparison.images:,}"
    where = f"{images} images of {printable(Path(comparison.source))}"
    if exported.no_evaluation is not None:
        where = f"{images} random images, because there are no evaluation images ({exported.no_evaluation})"
    accuracy = ""
    before = comparison.trained_accuracy
    after = comparison.exported_accuracy
    if before is not None and after is not None:
        accuracy = f"accuracy {before:.4f} trained, {after:.4f} exported, "
    yield (
        f"compared on {where}: {accuracy}agreement {comparison.agreement:.4f}, "
        f"largest difference {comparison.largest_difference:.1e}"
    )


def _export_weights(arguments: argparse.Namespace) -> None:
    option = "pdparams" if arguments.pdparams else "safetensors"
    path = Path(arguments.pdparams or arguments.safetensors)
    if path.suffix != f".{option}" or path.exists():
        raise UserError(f"--{option} {path}: expected a new file whose name ends in .{option}")
    if arguments.model is not None:
        source = find_source(Path(arguments.model), arguments.override)
        if source.config is None:
            raise UserError(
                f"{arguments.model}: this model is already exported; expected a checkpoint folder"
            )
        weights = source.file
        config = source.config
    else:
        config = load_config(arguments.config, arguments.override)
        weights = find_weights(config.Global)
    if not path.parent.is_dir():
        raise UserError(f"--{option} {path}: the folder {path.parent} does not exist")
    from ppcls.runtime import start as runtime

    check_single_process("ppcls export")
    runtime.start(config.Global)
    if arguments.pdparams:
        from ppcls.engine.checkpoint.paddleclas import write_pdparams
        from ppcls.engine.core.networks import read_inferred

        write_pdparams(path, read_inferred(config, weights))
    else:
        from ppcls.deploy.export.timm import write_timm

        write_timm(path, config, weights)
    sys.stdout.write(
        f"[Export] {printable(weights)} -> {printable(path)}: {path.stat().st_size / 1e6:.1f} MB\n"
    )
