"""``ppcls index``: builds, searches and changes an index, a folder with the embeddings of images."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from ppcls.cli.arguments.options import argument, option, required
from ppcls.cli.command import CommandGroup, command, write_output
from ppcls.cli.shared_options import trust_option
from ppcls.errors import UserError, counted
from ppcls.files import check_writable, one_line, print_error

if TYPE_CHECKING:  # imported by the subcommand that needs it
    from ppcls.deploy.image_index import ImageIndex
    from ppcls.deploy.infer import FailedFile
    from ppcls.deploy.predictor import Array, Predictor
    from ppcls.runtime.start import Runtime


@dataclass(frozen=True, kw_only=True)
class _EmbeddingOptions:
    """Options of a command that embeds images."""

    index: Path = argument("folder of the index")
    images: tuple[Path, ...] = argument("image files, folders and patterns; put them before -o")
    model: str | None = option(
        None,
        "embedding model, in any form that ppcls infer accepts (default: the model that built the index)",
        metavar="PATH",
    )
    override: tuple[str, ...] = option(
        (), "set values of the model's config, such as Infer.batch_size=64", names=["-o"], metavar="KEY=VALUE"
    )
    trust: bool = trust_option()


@dataclass(frozen=True, kw_only=True)
class BuildIndexOptions(_EmbeddingOptions):
    """Embed images and write a new index."""

    examples: ClassVar[Sequence[str]] = (
        "ppcls index build catalogue.index catalogue/ --model output/best_model",
        "ppcls index build catalogue.index 'photos/**/*.jpg' --model output/inference --kind hnsw",
    )

    model: str = required("embedding model, in any form that ppcls infer accepts", metavar="PATH")
    kind: Literal["flat", "hnsw"] = option(
        "flat",
        "flat: exact search, which compares a query with all images; hnsw: approximate search for millions "
        "of images, needs FAISS",
    )


@dataclass(frozen=True, kw_only=True)
class AddToIndexOptions(_EmbeddingOptions):
    """Add images; replace the embeddings of images that are already in the index."""

    examples: ClassVar[Sequence[str]] = (
        "ppcls index add catalogue.index more/",
        "ppcls index add catalogue.index more/ --model output/inference",
    )


@dataclass(frozen=True, kw_only=True)
class SearchIndexOptions(_EmbeddingOptions):
    """Print the most similar images in the index for each image."""

    examples: ClassVar[Sequence[str]] = (
        "ppcls index search catalogue.index photo.jpg --nearest 5",
        "ppcls index search catalogue.index photos/ --rerank --json",
    )

    nearest: int = option(5, "number of nearest images", metavar="K", gt=0)
    rerank: bool = option(
        False,
        "re-rank the 100 nearest images by the neighbours that they and the query have in common "
        "(k-reciprocal re-ranking)",
    )
    json: bool = option(False, "print one line of JSON per image")


@dataclass(frozen=True, kw_only=True)
class RemoveFromIndexOptions:
    """Remove images."""

    examples: ClassVar[Sequence[str]] = (
        "ppcls index remove catalogue.index catalogue/old",
        "ppcls index remove catalogue.index catalogue/17.jpg catalogue/18.jpg",
    )

    index: Path = argument("folder of the index")
    paths: tuple[Path, ...] = argument(
        "paths of the images to remove, as they were added, or folders that contain such images"
    )


@command("build", BuildIndexOptions)
def _build(options: BuildIndexOptions) -> None:
    import numpy as np

    from ppcls.deploy.image_index import ImageIndex, probe_embedding
    from ppcls.deploy.index_folder import create_index
    from ppcls.runtime.signals import interruptible
    from ppcls.storage.models import model_path

    if options.index.exists():
        raise UserError(f"{options.index}: exists already; add images with ppcls index add, or delete it")
    check_writable(options.index)
    model = model_path(options.model)
    predictor, embeddings, failed = _embed(options, model)
    if not embeddings:
        raise UserError("no image could be read; the lines above give the reasons")
    probe = probe_embedding(predictor)
    vectors = np.stack(list(embeddings.values()))
    index = ImageIndex(tuple(embeddings), vectors, options.kind, str(model.absolute()), probe)
    with interruptible():  # so that SIGTERM leaves no temporary files
        create_index(options.index, index)
    _print_size(options.index)
    _fail_for(failed)


@command("add", AddToIndexOptions)
def _add_images(options: AddToIndexOptions) -> None:
    from ppcls.deploy.index_folder import add_images

    index = _load(options.index)
    predictor, embeddings, failed = _embed(options, _model_of(options, index))
    index.check_model(predictor)
    if embeddings:
        add_images(options.index, embeddings)
        _print_size(options.index)
    _fail_for(failed)


@command("remove", RemoveFromIndexOptions)
def _remove(options: RemoveFromIndexOptions) -> None:
    from ppcls.deploy.index_folder import remove_images

    remove_images(options.index, options.paths)
    _print_size(options.index)


@command("search", SearchIndexOptions)
def _search(options: SearchIndexOptions) -> None:
    import numpy as np

    from ppcls.deploy.infer import PredictedFile

    index = _load(options.index)
    model = _model_of(options, index)
    predictor, embeddings, failed = _embed(options, model, options.json)
    index.check_model(predictor)
    if embeddings:
        queries = np.stack(list(embeddings.values()))
        for file, nearest in zip(
            embeddings, index.nearest(queries, options.nearest, options.rerank), strict=True
        ):
            result = PredictedFile(file, nearest)
            write_output(f"{result.as_json() if options.json else result}\n")
    _fail_for(failed)


def _embed(
    options: _EmbeddingOptions, model: Path, as_json: bool = False
) -> tuple[Predictor, dict[Path, Array], Sequence[FailedFile]]:
    """Returns the model, the embeddings of the images, and the images that cannot be read."""
    from ppcls.data.images.paths import find_images
    from ppcls.deploy.infer import embed_files
    from ppcls.deploy.models.source import find_source
    from ppcls.deploy.predictor import Predictor

    files = find_images(options.images, print_error)
    source = find_source(model, options.override, trust=options.trust)
    run: Runtime | None = None
    if source.needs_paddle or source.by_dali:
        from ppcls.runtime import start as runtime

        run = runtime.start(source.run)
    predictor = Predictor(source, runtime=run)
    embeddings, failed = embed_files(predictor, files, run)
    write_output("".join(f"{bad.as_json() if as_json else bad}\n" for bad in failed))
    return predictor, embeddings, failed


def _model_of(options: _EmbeddingOptions, index: ImageIndex) -> Path:
    """Returns the path of the model: that of ``--model`` or, without it, that which the index names.

    Raises:
        UserError: It is a config, which may name modules to run, and the user does not trust the index; or
            it contains characters that control a terminal.
    """
    if options.model is not None:
        from ppcls.storage.models import model_path

        return model_path(options.model)
    shown = one_line(index.model)
    if shown != index.model:
        raise UserError(f"{options.index}: names the model {shown}; if this is the model, use --model")
    if not options.trust and Path(index.model).suffix in (".yaml", ".yml"):
        raise UserError(
            f"{options.index}: names the config {shown} as its model; if you trust it, use --model "
            f"{shlex.quote(shown)}"
        )
    # Not an address of object storage, nor an architecture: an index of a stranger starts no download.
    return Path(index.model).absolute()


def _load(path: Path) -> ImageIndex:
    from ppcls.deploy.index_folder import load_index

    return load_index(path)


def _print_size(path: Path) -> None:
    index = _load(path)
    write_output(f"{path}: {counted(len(index), 'image')}, searched with {index.engine}\n")


def _fail_for(failed: Iterable[FailedFile]) -> None:
    from ppcls.deploy.infer import NotAllPredictedError

    if count := len(list(failed)):
        raise NotAllPredictedError(
            f"{counted(count, 'image')} could not be read; the lines above give the reasons"
        )


main = CommandGroup(
    "index",
    "Search for similar images with an embedding model (RecModel). An index is a folder with the embeddings "
    "of images.\nExit code 3: some images could not be read; a line for each of them gives the reason.",
    (
        "ppcls index build catalogue.index catalogue/ --model output/best_model",
        "ppcls index search catalogue.index photo.jpg --nearest 5 --rerank",
    ),
    (_build, _add_images, _search, _remove),
)
