"""Where the samples are, and what happens to them: ``DataLoader.<split>.dataset``."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field, ValidationError

from ppcls.config.fields import Keyed, Spec, problem
from ppcls.config.mixing import BatchTransforms
from ppcls.config.transform import ChainError, Transform, check_chain
from ppcls.registry import TRANSFORMS


def _check(specs: tuple[Transform, ...]) -> tuple[Transform, ...]:
    try:
        check_chain(specs)
    except ChainError as error:
        place = () if error.position is None else (error.position, specs[error.position].kind)
        raise ValidationError.from_exception_data("chain", [problem(str(error), *place)]) from None
    return specs


Chain = Annotated[tuple[Annotated[Transform, Keyed(TRANSFORMS)], ...], AfterValidator(_check)]


def _check_fixed(specs: tuple[Transform, ...]) -> tuple[Transform, ...]:
    random = [
        problem("is random, and prediction takes each image as it is; remove it", position, spec.kind)
        for position, spec in enumerate(specs)
        if spec.draws
    ]
    if random:
        raise ValidationError.from_exception_data("chain", random)
    return specs


FixedChain = Annotated[Chain, AfterValidator(_check_fixed)]
IMAGE_EXTENSIONS = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff", ".jp2")


class Dataset(Spec):
    """Labelled images on disk."""

    image_root: str = Field(description="folder of the images")
    transform_ops: Chain = Field(description="what happens to each image, in order")
    batch_transform_ops: BatchTransforms = Field(
        (), description="what happens to each training batch as a whole: at most one of these"
    )


class ImageNetDataset(Dataset):
    """Images named in a list file: one ``path label`` a line, the path below ``image_root``."""

    cls_label_path: str = Field(description="the list file")
    delimiter: str = Field(" ", min_length=1, description="between path and label; a path may contain it")


class ImageFolderDataset(Dataset):
    """One sub-folder a class, as torchvision reads it; labels follow the folders' sorted names."""

    extensions: tuple[str, ...] = Field(IMAGE_EXTENSIONS, description="endings of image files, in lower case")
