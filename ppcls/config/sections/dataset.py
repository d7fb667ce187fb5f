"""Where the samples are, and what happens to them: ``DataLoader.<split>.dataset``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field, ValidationError, model_validator
from typing_extensions import Self

from ppcls.config.base.fields import Count, Index, Keyed, Part, Spec, problem
from ppcls.config.sections.transform import BatchTransforms, ChainError, Transform, check_chain
from ppcls.registry import SOURCES, TRANSFORMS, nearest


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
    """Labelled images."""

    transform_ops: Chain = Field(description="what happens to each image, in order")
    batch_transform_ops: BatchTransforms = Field(
        (), description="how each image of a training batch is mixed with its neighbour: at most one of these"
    )

    on_error: Literal["raise", "skip"] = Field(
        "raise", description="end the run at a bad image, or go on without it and list it in bad_images.txt"
    )
    max_errors: Count | None = Field(
        None, description="with skip: the most bad images of all data sets; by default any number"
    )
    bad_images: str | None = Field(
        None, description="with skip: a list by tools/dataset.py check, of images to leave out from the start"
    )

    @model_validator(mode="after")
    def _check_skipping(self) -> Self:
        for name in ("max_errors", "bad_images"):
            if self.on_error == "raise" and getattr(self, name) is not None:
                raise ValueError(f"{name} is for on_error: skip, and on_error is raise")
        return self

    @property
    def place(self) -> str:
        """Where the images are, for people."""
        raise NotImplementedError(f"{self.kind} does not say where its images are")


class FileDataset(Dataset):
    """Images that are files of their own."""

    image_root: str = Field(description="folder of the images")
    follow_links: bool = Field(
        False, description="take images that symbolic links lead to, out of `image_root`"
    )

    @property
    def place(self) -> str:
        """The folder."""
        return self.image_root


class ImageNetDataset(FileDataset):
    """Images named in a list file: one ``path label`` a line, the path below ``image_root``."""

    cls_label_path: str = Field(description="the list file")
    delimiter: str = Field(" ", min_length=1, description="between path and label; a path may contain it")


class MultiScaleDataset(ImageNetDataset):
    """PaddleClas's name of ImageNetDataset whose images' size is its sampler's, MultiScaleSampler."""


class MultiLabelDataset(FileDataset):
    """Images of several classes each, or none, in a list: ``path 0,1,1`` a line, a 0 or 1 for each class."""

    cls_label_path: str = Field(description="the list file")
    delimiter: str = Field("\t", min_length=1, description="between path and labels; a path may contain it")
    label_ratio: bool = Field(
        False, description="count each class's share of positives, for MultiLabelLoss's weight_ratio"
    )


class ImageFolderDataset(FileDataset):
    """One sub-folder a class, as torchvision reads it; labels follow the folders' sorted names."""

    extensions: tuple[str, ...] = Field(IMAGE_EXTENSIONS, description="endings of image files, in lower case")
    part: Literal["train", "val"] | None = Field(
        None,
        description="which images of `image_root`: those of its folder of that name, where it has both, "
        "train and val; else those that `val_share` gives this part. By default all. DataLoader.Eval with a "
        "part has DataLoader.Train's image_root unless it gives one",
    )
    val_share: Part = Field(
        0.2, description="share of each class's images that part val has, and train has not"
    )
    split_seed: Index = Field(0, description="another number gives another choice of these images")

    @model_validator(mode="after")
    def _check_part(self) -> Self:
        for name in ("val_share", "split_seed"):
            if self.part is None and getattr(self, name) != type(self).model_fields[name].default:
                raise ValueError(f"{name} is for part: train and part: val, and part is not given")
        return self


class RecordDataset(Dataset):
    """Images in the files of a container, with their labels."""

    paths: tuple[str, ...] = Field(
        min_length=1,
        description="files, or patterns such as `train-*.tar`, taken in the order of their names",
    )

    @property
    def place(self) -> str:
        """The files."""
        return ", ".join(self.paths)


class IndexedDataset(RecordDataset):
    """A container that needs an index file for each of its files; `tools/dataset.py index` writes them."""

    index_paths: tuple[str, ...] | None = Field(
        None, description="DALI's index files, in the order of `paths`; by default beside, ending in `.idx`"
    )


class WebDataset(IndexedDataset):
    """Tar files of images and labels, ``0007.jpg`` beside ``0007.cls``."""

    extensions: tuple[str, ...] = Field(IMAGE_EXTENSIONS, description="endings of image files, in lower case")


class TFRecordDataset(IndexedDataset):
    """TFRecord files with ``image/encoded`` and ``image/class/label``, as TensorFlow's ImageNet has them."""

    first_label: Index = Field(0, description="label of the first class; 1 in TensorFlow's ImageNet")


class RecordIODataset(IndexedDataset):
    """MXNet's RecordIO files with image headers, as im2rec writes them."""


class LMDBDataset(RecordDataset):
    """LMDB folders as Caffe2 fills them: an encoded image and an int32 label a key."""

    elsewhere: ClassVar[Mapping[str, str]] = {"index_paths": "LMDB needs no index files; remove it"}


def _known_source(name: str) -> str:
    if name not in SOURCES:
        raise ValueError(
            f"unknown Python source '{name}'{nearest(name, list(SOURCES))}; "
            "ppcls.data.index.python_source.register_source makes it known, before the config is loaded"
        )
    return name


class PythonDataset(Dataset):
    """Images of a Python object, see ``examples/python_source.py``."""

    source: Annotated[str, AfterValidator(_known_source)] = Field(
        description="name that the object's factory is registered under"
    )

    @property
    def place(self) -> str:
        """The name."""
        return self.source
