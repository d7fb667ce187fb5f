"""Sets the size of images that all have one size, before the validation of a config.

A list of transforms without ResizeImage or a crop leaves images as large as they are. They can form a batch
only if all have the same size, which their headers show.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from pydantic import TypeAdapter, ValidationError

from ppcls.config.base.choices import Keyed, Tagged
from ppcls.config.base.tree import Tree, mapping_at
from ppcls.data.index.base import Dataset
from ppcls.data.transforms.base import ChainError, Transform, check_chain
from ppcls.errors import DecodeError, UserError, counted
from ppcls.registry import DATASETS, TRANSFORMS

if TYPE_CHECKING:  # --help must not wait for NumPy
    from ppcls.data.index.protocol import Index

# Data sets that `Infer.transforms` takes the size from come first.
_SPLITS = ("Eval", "Eval.Query", "Eval.Gallery", "Train", "UnLabelTrain")
_LARGE = 8192  # side of images for which a list of transforms is tried; all crops should be smaller
_SPECS: TypeAdapter[tuple[Transform, ...]] = TypeAdapter(tuple[Annotated[Transform, Keyed(TRANSFORMS)], ...])
_DATASET: TypeAdapter[Dataset] = TypeAdapter(Annotated[Dataset, Tagged(DATASETS)])


class _Chain(NamedTuple):
    """A list of transforms that needs images of one known size.

    Attributes:
        place: Key of the list.
        items: The list as plain data.
        specs: The transforms.
        problem: Why the list is invalid for images of unknown size.
    """

    place: str
    items: list[Any]
    specs: tuple[Transform, ...]
    problem: str

    def set_size(self, size: tuple[int, int]) -> None:
        """Sets the size (width, height) that the decoder expects, in the plain data."""
        ((name, keys),) = (
            {self.items[0]: None}.items() if isinstance(self.items[0], str) else self.items[0].items()
        )
        self.items[0] = {name: {**(keys or {}), "expected_size": list(size)}}


def fill_image_sizes(tree: Tree) -> list[str]:
    """Sets ``expected_size`` of decoders, in place, where no transform sets the size of the images.

    Args:
        tree: The YAML, which may be invalid.

    Returns:
        One line per size that was set.

    Raises:
        UserError: The images have different sizes, or can't be read.
    """
    notes = []
    infer = mapping_at(tree, "Infer")
    for split in _SPLITS:
        section = mapping_at(tree, f"DataLoader.{split}")
        data = mapping_at(section, "dataset")
        chains = [
            *_open_chains(f"DataLoader.{split}.dataset.transform_ops", data.get("transform_ops")),
            *_open_chains(f"DataLoader.{split}.transform_ops_strong", section.get("transform_ops_strong")),
            *_open_chains("Infer.transforms", infer.get("transforms") if data else None),
        ]
        if not chains:
            continue
        try:
            dataset = _DATASET.validate_python({**data, "transform_ops": chains[0].specs})
        except ValidationError:
            continue  # reported by the validation of the config
        notes.append(_fill(chains, dataset))
    return notes


def _fill(chains: list[_Chain], dataset: Dataset) -> str:
    """Sets the size of all images of a data set in lists of transforms, and returns a line about it."""
    places = " and ".join(chain.place for chain in chains)
    for chain in chains:
        chain.set_size((_LARGE, _LARGE))  # after an error, the validation should not report the list again
    try:
        index = dataset.read(None)
    except UserError as error:
        raise UserError(
            f"{places}: no transform sets the size of the images, and their own size can't be read: {error}"
        ) from None
    size = _common_size(index, chains)
    for chain in chains:
        chain.set_size(size)
    width, height = size
    return (
        f"{places}: no transform sets the size, and all {counted(len(index), 'image')} of {index.source} "
        f"have {width}x{height} pixels; images of another size will be rejected (expected_size)"
    )


def _open_chains(place: str, items: Any) -> Iterator[_Chain]:
    """Yields a list of transforms if it is valid for images of one size and invalid for other images."""
    if not isinstance(items, list) or not items:
        return
    try:
        specs = _SPECS.validate_python(items)
    except ValidationError:
        return
    try:
        check_chain(specs)
    except ChainError as error:
        problem = str(error)
    else:
        return
    if getattr(specs[0], "expected_size", ()) is not None:  # no decoder, or the user set the size
        return
    fixed = (specs[0].model_copy(update={"expected_size": (_LARGE, _LARGE)}), *specs[1:])
    try:
        check_chain(fixed)
    except ChainError:
        return
    yield _Chain(place, items, fixed, problem)


def _common_size(index: Index, chains: list[_Chain]) -> tuple[int, int]:
    """Returns the width and height of all images. Skips unreadable images, which the loader reports.

    Raises:
        UserError: Two images have different sizes, or no image can be read.
    """
    from ppcls.data.images.sizes import read_size
    from ppcls.data.index.protocol import sample_name

    decoder = chains[0].specs[0]
    first: tuple[int, tuple[int, int]] | None = None
    reason = ""
    for position in range(len(index)):
        try:
            size = read_size(decoder, index.read(position))
        except DecodeError as error:
            reason = reason or f"{index.name(position)}: {error}"
            continue
        if first is None:
            first = (position, size)
        elif size != first[1]:
            names = " and ".join(
                f"{sample_name(index, at)} has {width}x{height} pixels"
                for at, (width, height) in (first, (position, size))
            )
            problem, _, fix = (
                chains[0].problem.replace("of unknown size", "of different sizes").partition(";")
            )
            raise UserError(f"{chains[0].place}: {problem}: {names};{fix}")
    if first is None:
        raise UserError(f"{chains[0].place}: {chains[0].problem}; no image can be read: {reason}")
    return first[1]
