"""Data sets: where the samples are and how they are transformed, ``DataLoader.<split>.dataset``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field, ValidationError, model_validator
from typing_extensions import Self

from ppcls.config.base.fields import Count, Index, Keyed, Part, Spec, error_at, problem
from ppcls.config.sections.transform import BatchTransforms, ChainError, Transform, check_chain
from ppcls.files import IMAGE_EXTENSIONS
from ppcls.registry import SOURCES, TRANSFORMS, suggest


def _check_transforms(specs: tuple[Transform, ...]) -> tuple[Transform, ...]:
    try:
        check_chain(specs)
    except ChainError as error:
        place = () if error.position is None else (error.position, specs[error.position].kind)
        raise error_at(str(error), *place) from None
    return specs


def _check_not_random(specs: tuple[Transform, ...]) -> tuple[Transform, ...]:
    random = [
        problem("is random, but prediction is deterministic; remove it", position, spec.kind)
        for position, spec in enumerate(specs)
        if spec.draws
    ]
    if random:
        raise ValidationError.from_exception_data("chain", random)
    return specs


Chain = Annotated[tuple[Annotated[Transform, Keyed(TRANSFORMS)], ...], AfterValidator(_check_transforms)]
FixedChain = Annotated[Chain, AfterValidator(_check_not_random)]


class Dataset(Spec):
    """Labelled images."""

    transform_ops: Chain
    """Transforms of each image, in order."""
    batch_transform_ops: BatchTransforms = ()
    """How each image of a training batch is mixed with its neighbour; at most one item."""
    on_error: Literal["raise", "skip"] = "raise"
    """`raise`: end the run at a bad image; `skip`: list it in bad_images.txt and continue without it."""
    max_errors: Count | None = None
    """With `skip`: largest number of bad images in all data sets; by default unlimited."""
    bad_images: str | None = None
    """With `skip`: list of images to skip from the start, written by `tools/dataset.py check`."""

    @model_validator(mode="after")
    def _check_skipping(self) -> Self:
        for name in ("max_errors", "bad_images"):
            if self.on_error == "raise" and getattr(self, name) is not None:
                raise ValueError(f"{name} needs on_error: skip, but on_error is raise")
        return self

    @property
    def place(self) -> str:
        """Where the images are, for messages."""
        raise NotImplementedError(f"{self.kind} does not define where its images are")


class FileDataset(Dataset):
    """Images in separate files."""

    image_root: str
    """Folder of the images."""
    follow_links: bool = False
    """Accept images that symbolic links lead to outside `image_root`."""

    @property
    def place(self) -> str:
        """Folder of the images."""
        return self.image_root


class ImageNetDataset(FileDataset):
    """Images in a list file with one line ``path label`` per image, with paths below ``image_root``."""

    cls_label_path: str
    """List file."""
    delimiter: str = Field(" ", min_length=1)
    """Separates path and label. A path may contain it."""
    relabel: bool = False
    """Renumber the labels from 0, in ascending order, for lists whose labels have gaps."""


_DECODER = {"backend": "the loader chooses the decoder"}


class VeriWild(ImageNetDataset):
    """An ImageNetDataset of identities, whose lines may end with the number of the camera.

    Retrieval then ignores images of a query's identity from its own camera.
    """

    ignored: ClassVar[Mapping[str, str]] = _DECODER


class PersonDataset(FileDataset):
    """Photographs of persons, whose names start with identity and camera, in a subfolder of `image_root`.

    Retrieval ignores images of a query's identity from its own camera. Identities of a folder whose name
    contains `train` are numbered from 0.

    Attributes:
        folder: Folder of the data set in `image_root`.
        pattern: Regular expression for the beginning of a file name: identity and camera.
    """

    ignored: ClassVar[Mapping[str, str]] = _DECODER
    folder: ClassVar[str]
    pattern: ClassVar[str] = r"(-?\d+)_c(\d+)"
    cls_label_path: str
    """Folder of the images, such as `bounding_box_train`."""
    follow_links: Literal[False] = False
    """Must be False."""


class Market1501(PersonDataset):
    """Market-1501 (Zheng et al. 2015), in ``market1501/Market-1501-v15.09.15`` of `image_root`."""

    folder: ClassVar[str] = "market1501/Market-1501-v15.09.15"
    pattern: ClassVar[str] = r"(-?\d+)_c(\d)"


class DukeMTMC(PersonDataset):
    """DukeMTMC-reID (Zheng et al. 2017), in ``dukemtmc/DukeMTMC-reID`` of `image_root`."""

    folder: ClassVar[str] = "dukemtmc/DukeMTMC-reID"


class CompCars(ImageNetDataset):
    """An ImageNetDataset of cars, which may be cropped to boxes."""

    bbox_crop: bool = False
    """Crop each image to its box before all transforms."""
    label_root: str | None = None
    """Folder of the boxes: `a/b.txt` for the image `a/b.jpg`; its last line is `left top right bottom`."""

    @model_validator(mode="after")
    def _check_boxes(self) -> Self:
        if self.bbox_crop and self.label_root is None:
            raise error_at("missing; bbox_crop needs the folder of the boxes", "label_root")
        return self


class ICartoonDataset(ImageNetDataset):
    """PaddleClas's name for an ImageNetDataset with tabs between path and label."""

    delimiter: str = Field("\t", min_length=1)


class MultiScaleDataset(ImageNetDataset):
    """PaddleClas's name for ImageNetDataset with MultiScaleSampler, which sets the image size."""


class MultiLabelDataset(FileDataset):
    """Images with any number of classes, in a list file: ``path 0,1,1``, a 0 or 1 for each class."""

    cls_label_path: str
    """List file."""
    delimiter: str = Field("\t", min_length=1)
    """Separates path and labels. A path may contain it."""
    label_ratio: bool = False
    """Count each class's share of positive labels, for `weight_ratio` of MultiLabelLoss."""


class ImageFolderDataset(FileDataset):
    """One subfolder per class, as in torchvision. Labels follow the sorted folder names."""

    extensions: tuple[str, ...] = IMAGE_EXTENSIONS
    """File extensions of images, in lower case."""
    part: Literal["train", "val"] | None = None
    """Part of the images in `image_root`: its subfolder of this name if it has both `train` and `val`, else a
    random share according to `val_share`. By default all images. DataLoader.Eval with a part uses the
    image_root of DataLoader.Train unless it sets its own."""
    val_share: Part = 0.2
    """Share of each class's images that belongs to part `val`; the rest belongs to `train`."""
    split_seed: Index = 0
    """Seed of the random split into `train` and `val`."""

    @model_validator(mode="after")
    def _check_part(self) -> Self:
        for name in ("val_share", "split_seed"):
            if self.part is None and getattr(self, name) != type(self).model_fields[name].default:
                raise ValueError(f"{name} needs part: train or part: val, but part is not set")
        return self


class Cifar10(Dataset):
    """CIFAR-10 (Krizhevsky 2009) in its files for Python, which are read without executing code from them."""

    ignored: ClassVar[Mapping[str, str]] = {
        "download": "nothing is downloaded; data_file is the key",
        "backend": "the loader chooses the decoder",
    }
    data_file: str = "~/.cache/paddle/dataset/cifar/cifar-10-python.tar.gz"
    """`cifar-10-python.tar.gz`, or its folder `cifar-10-batches-py`; by default where Paddle downloads it."""
    mode: Literal["train", "test"] = "train"
    """Which images: 50,000 for training or 10,000 for tests."""
    sample_per_label: Count | None = None
    """Number of images of each class, drawn by `sample_seed`; by default all images."""
    expand_labels: Count = 1
    """How often each of these images occurs in an epoch; only with `sample_per_label`."""
    sample_seed: Index = 0
    """Seed of the random selection of `sample_per_label` images per class."""

    @property
    def place(self) -> str:
        """File or folder of the data set."""
        return self.data_file


class RecordDataset(Dataset):
    """Images and labels in container files."""

    paths: tuple[str, ...] = Field(min_length=1)
    """Files, or patterns such as `train-*.tar`, which are read in the order of their names."""

    @property
    def place(self) -> str:
        """Paths of the files."""
        return ", ".join(self.paths)


class IndexedDataset(RecordDataset):
    """Containers that need an index file for each file. `tools/dataset.py index` writes them."""

    index_paths: tuple[str, ...] | None = None
    """DALI's index files, in the order of `paths`; by default next to them with the extension `.idx`."""


class WebDataset(IndexedDataset):
    """Tar files with an image and a label per sample, such as ``0007.jpg`` and ``0007.cls``."""

    extensions: tuple[str, ...] = IMAGE_EXTENSIONS
    """File extensions of images, in lower case."""


class TFRecordDataset(IndexedDataset):
    """TFRecord files with ``image/encoded`` and ``image/class/label``, as in TensorFlow's ImageNet."""

    first_label: Index = 0
    """Label of the first class; 1 in TensorFlow's ImageNet."""


class RecordIODataset(IndexedDataset):
    """MXNet's RecordIO files with image headers, as im2rec writes them."""


class LMDBDataset(RecordDataset):
    """LMDB folders in the format of Caffe2, with an encoded image and an int32 label per key."""

    key_hints: ClassVar[Mapping[str, str]] = {"index_paths": "LMDB needs no index files; remove it"}


def _check_source(name: str) -> str:
    if name not in SOURCES:
        raise ValueError(
            f"unknown Python source '{name}'{suggest(name, list(SOURCES))}; register it with "
            "ppcls.data.index.python_source.register_source before loading the config"
        )
    return name


class PythonDataset(Dataset):
    """Images from a Python object, see ``examples/python_source.py``."""

    source: Annotated[str, AfterValidator(_check_source)]
    """Registered name of the function that creates the object."""

    @property
    def place(self) -> str:
        """Name of the source."""
        return self.source
