"""The command line of ``tools/export.py``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from ppcls.cli.command import Arguments, command
from ppcls.cli.infer import MODEL_HELP, read_source
from ppcls.cli.options import config_parser, require_single_process
from ppcls.config.load import load_config
from ppcls.deploy.models.source import check_path, find_source, find_weights
from ppcls.deploy.results import printable
from ppcls.errors import UserError


@command
def export(argv: Arguments = None) -> None:
    """Exports a model for other programs to ``Global.save_inference_dir``."""
    options = config_parser(
        "Export a model for Paddle Inference or as ONNX, or its weights for PaddleClas.", model=MODEL_HELP
    )
    options.add_argument(
        "--format",
        choices=["paddle", "onnx"],
        default="paddle",
        help="paddle for Paddle Inference, or onnx, which is checked with onnxruntime (%(default)s)",
    )
    options.add_argument(
        "--pdparams", metavar="FILE", help="write only the weights, in PaddleClas's format, to FILE.pdparams"
    )
    options.add_argument(
        "--preprocess",
        action="store_true",
        help="make Infer.transforms part of the model, which then expects 8-bit RGB pixels [B, H, W, 3] of "
        "any size",
    )
    arguments = options.parse_args(argv)
    if arguments.pdparams:
        _export_weights(arguments)
        return
    source = read_source(arguments)
    if source is None:
        return
    folder = check_path("Global.save_inference_dir", source.run.save_inference_dir)
    from ppcls.runtime import start as runtime

    require_single_process(runtime.start(source.run))
    from ppcls.deploy.export.export import export_model
    from ppcls.deploy.export.parity import BATCHES

    exported = export_model(source, folder, arguments.format, preprocess=arguments.preprocess)
    tensor, files = exported.description.Input, exported.files
    size = sum(files.values()) / 1e6
    sys.stdout.write(
        f"[Export] {printable(source.file)} -> {folder}: {', '.join(files)}, {size:.1f} MB; "
        f"input {list(tensor.shape)} {tensor.dtype} {tensor.layout}, any batch size\n"
    )
    if exported.difference is not None:
        outputs = "embeddings" if exported.description.postprocess is None else "logarithms of the scores"
        batches = ", ".join(map(str, BATCHES))
        sys.stdout.write(
            f"[Export] checked: the {outputs} of the exported and the trained model differ by at most "
            f"{exported.difference:.1e}, relative, for batches of {batches} random images\n"
        )


def _export_weights(arguments: argparse.Namespace) -> None:
    path = Path(arguments.pdparams)
    if path.suffix != ".pdparams" or path.exists():
        raise UserError(f"--pdparams {path}: expected a new file whose name ends in .pdparams")
    if arguments.model is not None:
        source = find_source(Path(arguments.model), arguments.override)
        if source.config is None:
            raise UserError(f"{arguments.model}: is exported already; expected a checkpoint folder")
        weights, config = source.file, source.config
    else:
        config = load_config(arguments.config, arguments.override)
        weights = find_weights(config)
    if not path.parent.is_dir():
        raise UserError(f"--pdparams {path}: the folder {path.parent} does not exist")
    from ppcls.runtime import start as runtime

    require_single_process(runtime.start(config.Global))
    from ppcls.engine.checkpoint.paddleclas import write_pdparams
    from ppcls.engine.core.networks import read_inferred

    write_pdparams(path, read_inferred(config, weights))
    sys.stdout.write(
        f"[Export] {printable(weights)} -> {printable(path)}: {path.stat().st_size / 1e6:.1f} MB\n"
    )
