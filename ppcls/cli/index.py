"""``ppcls index``: builds, searches and changes an index, a file with the embeddings of images."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ppcls.cli.command import Arguments, command, write_output
from ppcls.cli.options import Subcommands, add_examples, add_override, add_subcommand, positive_int
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
    arguments = _parser().parse_args(argv)
    arguments.run(arguments)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description="Search for similar images with an embedding model (RecModel). An index is a file with "
        "the embeddings of images. Exit code 3: some images could not be read; a line for each of them "
        "gives the reason."
    )
    add_examples(
        parser,
        "ppcls index build catalogue.index catalogue/ --model output/best_model",
        "ppcls index search catalogue.index photo.jpg --nearest 5 --rerank",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    build = _add(
        commands,
        "build",
        "embed images and write a new index",
        ("catalogue/ --model output/best_model", "'photos/**/*.jpg' --model output/inference --kind hnsw"),
    )
    build.add_argument(
        "--kind",
        choices=["flat", "hnsw"],
        default="flat",
        help="flat: exact search, which compares a query with all images; hnsw: approximate search for "
        "millions of images, needs FAISS (default: %(default)s)",
    )
    build.set_defaults(run=_build)
    images = ("more/", "more/ --model output/inference")
    add = _add(
        commands, "add", "add images; replace the embeddings of images that are already in the index", images
    )
    add.set_defaults(run=_add_images)
    queries = ("photo.jpg --nearest 5", "photos/ --rerank --json")
    search = _add(commands, "search", "print the most similar images in the index for each image", queries)
    search.add_argument(
        "--nearest",
        type=positive_int,
        default=5,
        metavar="K",
        help="number of nearest images (default: %(default)s)",
    )
    search.add_argument(
        "--rerank",
        action="store_true",
        help="re-rank the 100 nearest images by the neighbours that they and the query have in common "
        "(k-reciprocal re-ranking)",
    )
    search.add_argument("--json", action="store_true", help="print one line of JSON per image")
    search.set_defaults(run=_search)
    removed = ("catalogue/old", "catalogue/17.jpg catalogue/18.jpg")
    remove = add_subcommand(commands, "remove", "remove images", _examples("remove", removed))
    remove.add_argument("index", type=Path, help="file of the index")
    remove.add_argument(
        "paths",
        nargs="+",
        type=Path,
        help="paths of the images to remove, as they were added, or folders that contain such images",
    )
    remove.set_defaults(run=_remove)
    return parser


def _examples(name: str, arguments: Sequence[str]) -> list[str]:
    return [f"ppcls index {name} catalogue.index {words}" for words in arguments]


def _add(commands: Subcommands, name: str, summary: str, examples: Sequence[str]) -> argparse.ArgumentParser:
    """Adds a subcommand that embeds images."""
    parser = add_subcommand(commands, name, summary, _examples(name, examples))
    parser.add_argument("index", type=Path, help="file of the index")
    parser.add_argument(
        "images", nargs="+", type=Path, help="image files, folders and patterns; put them before -o"
    )
    by_default = "" if name == "build" else " (default: the model that built the index)"
    parser.add_argument(
        "--model",
        metavar="PATH",
        required=name == "build",
        help=f"embedding model, in any form that ppcls infer accepts{by_default}",
    )
    add_override(parser, "set values of the model's config, such as Infer.batch_size=64")
    return parser


def _build(arguments: argparse.Namespace) -> None:
    import numpy as np

    from ppcls.deploy.image_index import ImageIndex, probe_embedding

    if arguments.index.exists():
        raise UserError(f"{arguments.index}: exists already; add images with ppcls index add, or delete it")
    check_writable(arguments.index)
    predictor, embeddings, failed = _embed(arguments, arguments.model)
    if not embeddings:
        raise UserError("no image could be read; the lines above give the reasons")
    model, probe = str(Path(arguments.model).absolute()), probe_embedding(predictor)
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

    files, source = find_images(arguments.images), find_source(Path(model), arguments.override)
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
