"""``ppcls index``: builds, searches and changes an index, a file with the embeddings of images."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ppcls.cli.command import Arguments, command, write_output
from ppcls.cli.options import build_parser
from ppcls.errors import UserError
from ppcls.files import check_writable

if TYPE_CHECKING:  # imported by the subcommand that needs it
    from ppcls.deploy.image_index import ImageIndex
    from ppcls.deploy.infer import FailedFile
    from ppcls.deploy.predictor import Array, Predictor
    from ppcls.runtime.start import Runtime


@command
def main(argv: Arguments = None) -> None:
    """Builds, searches or changes an index of images. Fails at the end if images could not be read."""
    arguments = build_parser("index").parse_args(argv)
    commands = {"build": _build, "add": _add_images, "search": _search, "remove": _remove}
    commands[arguments.command](arguments)


def _build(arguments: argparse.Namespace) -> None:
    import numpy as np

    from ppcls.deploy.image_index import ImageIndex, probe_embedding

    if arguments.index.exists():
        raise UserError(f"{arguments.index}: exists already; add images with ppcls index add, or delete it")
    check_writable(arguments.index)
    predictor, embeddings, failed = _embed(arguments, arguments.model)
    if not embeddings:
        raise UserError("no image could be read; the lines above give the reasons")
    model = str(Path(arguments.model).absolute())
    probe = probe_embedding(predictor)
    vectors = np.stack(list(embeddings.values()))
    index = ImageIndex(tuple(embeddings), vectors, arguments.kind, model, probe)
    _save(index, arguments.index)
    _fail_for(failed)


def _add_images(arguments: argparse.Namespace) -> None:
    index = _load(arguments.index)
    predictor, embeddings, failed = _embed(arguments, arguments.model or index.model)
    index.check_model(predictor)
    if embeddings:
        _save(index.added(embeddings), arguments.index)
    _fail_for(failed)


def _remove(arguments: argparse.Namespace) -> None:
    _save(_load(arguments.index).without(arguments.paths), arguments.index)


def _search(arguments: argparse.Namespace) -> None:
    import numpy as np

    from ppcls.deploy.infer import PredictedFile

    index = _load(arguments.index)
    predictor, embeddings, failed = _embed(arguments, arguments.model or index.model)
    index.check_model(predictor)
    if embeddings:
        queries = np.stack(list(embeddings.values()))
        for file, nearest in zip(
            embeddings, index.nearest(queries, arguments.nearest, arguments.rerank), strict=True
        ):
            result = PredictedFile(file, nearest)
            write_output(f"{result.as_json() if arguments.json else result}\n")
    _fail_for(failed)


def _embed(
    arguments: argparse.Namespace, model: str
) -> tuple[Predictor, dict[Path, Array], Sequence[FailedFile]]:
    """Returns the model, the embeddings of the images, and the images that cannot be read."""
    from ppcls.data.images.paths import find_images
    from ppcls.deploy.infer import embed_files
    from ppcls.deploy.models.source import find_source
    from ppcls.deploy.predictor import Predictor

    files = find_images(arguments.images)
    source = find_source(Path(model), arguments.override)
    run: Runtime | None = None
    if source.needs_paddle or source.by_dali:
        from ppcls.runtime import start as runtime

        run = runtime.start(source.run)
    predictor = Predictor(source, runtime=run)
    embeddings, failed = embed_files(predictor, files, run)
    json = getattr(arguments, "json", False)
    write_output("".join(f"{bad.as_json() if json else bad}\n" for bad in failed))
    return predictor, embeddings, failed


def _load(file: Path) -> ImageIndex:
    from ppcls.deploy.image_index import load_index

    return load_index(file)


def _save(index: ImageIndex, file: Path) -> None:
    index.save(file)
    write_output(f"{file}: {len(index.files)} images, searched with {index.engine}\n")


def _fail_for(failed: Iterable[FailedFile]) -> None:
    from ppcls.deploy.infer import NotAllPredictedError

    if count := len(list(failed)):
        raise NotAllPredictedError(f"{count} images could not be read; their lines give the reasons")
