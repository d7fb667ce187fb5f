"""Data sets, ``DataLoader.<split>.dataset``: the location of the samples, and their transforms."""

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
    """Transforms to apply to each image, in this order."""
    batch_transform_ops: BatchTransforms = ()
    """Transform that mixes each image of a training batch with its neighbour; at most one item."""
    on_error: Literal["raise", "skip"] = "raise"
    """Action if an image can't be read: `raise` ends the run; `skip` adds the image to bad_images.txt and
    continues without it."""
    max_errors: Count | None = None
    """With `on_error: skip`, largest number of bad images in all data sets together. If there are more, the
    run ends. Default: no limit."""
    bad_images: str | None = None
    """With `on_error: skip`, file with a list of images to skip from the start, as `tools/dataset.py check`
    writes it; default: no file."""

    @model_validator(mode="after")
    def _check_skipping(self) -> Self:
        for name in ("max_errors", "bad_images"):
            if self.on_error == "raise" and getattr(self, name) is not None:
                raise ValueError(
                    f"{name} needs on_error: skip, but on_error is raise; set skip, or remove {name}"
                )
        return self

    @property
    def place(self) -> str:
        """Location of the images, for messages."""
        raise NotImplementedError(f"{self.kind} does not define where its images are")


class FileDataset(Dataset):
    """Images in separate files."""

    image_root: str
    """Folder of the images."""
    follow_links: bool = False
    """Follow symbolic links that point outside `image_root`, and use the images there."""

    @property
    def place(self) -> str:
        """Folder of the images."""
        return self.image_root


class ImageNetDataset(FileDataset):
    """Images from a list file. Each line has the path of an image below ``image_root``, and its label."""

    cls_label_path: str
    """List file, with one line `path label` per image."""
    delimiter: str = Field(" ", min_length=1)
    """Text between path and label. The path may contain it too."""
    relabel: bool = False
    """Renumber the labels from 0 in ascending order. Use it if the labels of the list have gaps."""


_DECODER = {"backend": "the loader chooses the decoder"}


class VeriWild(ImageNetDataset):
    """An ImageNetDataset whose labels are identities. A third value on a line is the number of the camera.

    If cameras are known, retrieval ignores gallery images with the identity and the camera of the query.
    """

    ignored: ClassVar[Mapping[str, str]] = _DECODER


class PersonDataset(FileDataset):
    """Photographs of persons in a subfolder of `image_root`. File names start with identity and camera.

    Retrieval ignores gallery images with the identity and the camera of the query. If the name of the folder
    contains `train`, its identities are renumbered from 0.

    Attributes:
        folder: Folder of the data set in `image_root`.
        pattern: Regular expression that matches identity and camera at the start of a file name.
    """

    ignored: ClassVar[Mapping[str, str]] = _DECODER
    folder: ClassVar[str]
    pattern: ClassVar[str] = r"(-?\d+)_c(\d+)"
    cls_label_path: str
    """Folder of the images, inside the folder of the data set, such as `bounding_box_train`."""
    follow_links: Literal[False] = False
    """Follow symbolic links that point outside the folder. Only False is supported."""


class Market1501(PersonDataset):
    """Market-1501 (Zheng et al. 2015), in subfolder ``market1501/Market-1501-v15.09.15`` of `image_root`."""

    folder: ClassVar[str] = "market1501/Market-1501-v15.09.15"
    pattern: ClassVar[str] = r"(-?\d+)_c(\d)"


class DukeMTMC(PersonDataset):
    """DukeMTMC-reID (Zheng et al. 2017), in subfolder ``dukemtmc/DukeMTMC-reID`` of `image_root`."""

    folder: ClassVar[str] = "dukemtmc/DukeMTMC-reID"


class CompCars(ImageNetDataset):
    """An ImageNetDataset of cars. Images can be cropped to bounding boxes."""

    bbox_crop: bool = False
    """Crop each image to its bounding box before all transforms."""
    label_root: str | None = None
    """Folder of the bounding boxes, required for `bbox_crop`. The box of the image `a/b.jpg` is the last line
    of the file `a/b.txt`: `left top right bottom`, in pixels."""

    @model_validator(mode="after")
    def _check_boxes(self) -> Self:
        if self.bbox_crop and self.label_root is None:
            raise error_at("missing; bbox_crop needs the folder of the bounding boxes", "label_root")
        return self


class ICartoonDataset(ImageNetDataset):
    """PaddleClas's name for an ImageNetDataset with tabs between path and label."""

    delimiter: str = Field("\t", min_length=1)


class MultiScaleDataset(ImageNetDataset):
    """PaddleClas's name for ImageNetDataset with MultiScaleSampler, which sets the image size."""


class MultiLabelDataset(FileDataset):
    """Images from a list file with any number of classes per image: ``path 0,1,1``, with 0 or 1 per class."""

    cls_label_path: str
    """List file, with one line `path labels` per image."""
    delimiter: str = Field("\t", min_length=1)
    """Text between path and labels. The path may contain it too."""
    label_ratio: bool = False
    """Compute the share of positive labels of each class, which `weight_ratio` of MultiLabelLoss needs."""


class CustomLabelDataset(FileDataset):
    """Images from a list file without labels. A random transform determines the label of each image."""

    sample_list_path: str
    """List file, with one path below `image_root` per line."""
    label_key: Literal["blur_image", "random_rot90_orientation"]
    """Transform that determines the labels: `blur_image` for BlurImage, `random_rot90_orientation` for
    RandomRot90."""
    delimiter: str | None = Field(None, min_length=1)
    """Text that ends the path. The rest of the line, such as a label, is ignored. Default: the whole line is
    the path."""

    @model_validator(mode="after")
    def _check_label(self) -> Self:
        if (count := sum(spec.label_key == self.label_key for spec in self.transform_ops)) != 1:
            raise error_at(
                f"expected one transform in transform_ops that determines this label, got {count}",
                "label_key",
            )
        return self

    @property
    def labelling(self) -> Transform:
        """The transform that determines the label."""
        return next(spec for spec in self.transform_ops if spec.label_key == self.label_key)


class ImageFolderDataset(FileDataset):
    """Images in one subfolder per class, as in torchvision. Labels are indices of the sorted folder names."""

    extensions: tuple[str, ...] = IMAGE_EXTENSIONS
    """File extensions of the images, in lower case. Other files are ignored."""
    part: Literal["train", "val"] | None = None
    """Part of the images to use; default: all images. If `image_root` has the subfolders `train` and `val`
    (or `valid`), the part is the subfolder of this name. Otherwise the images are split at random (see
    `val_share`). DataLoader.Eval with a part uses the image_root of DataLoader.Train unless it sets its
    own."""
    val_share: Part = 0.2
    """Share of the images of each class in part `val` of a random split. All other images are in part
    `train`."""
    split_seed: Index = 0
    """Seed of the random split into `train` and `val`."""

    @model_validator(mode="after")
    def _check_part(self) -> Self:
        for name in ("val_share", "split_seed"):
            if self.part is None and getattr(self, name) != type(self).model_fields[name].default:
                raise ValueError(
                    f"{name} needs part: train or part: val, but part is not set; set part, or remove {name}"
                )
        return self


class Cifar10(Dataset):
    """CIFAR-10 (Krizhevsky 2009) in its Python version. The reader does not execute code in the files."""

    ignored: ClassVar[Mapping[str, str]] = {
        "download": "nothing is downloaded; set data_file instead",
        "backend": "the loader chooses the decoder",
    }
    data_file: str = "~/.cache/paddle/dataset/cifar/cifar-10-python.tar.gz"
    """The file `cifar-10-python.tar.gz`, or the folder `cifar-10-batches-py` from it. The default is the path
    to which Paddle downloads the file."""
    mode: Literal["train", "test"] = "train"
    """Part of the images: `train` has 50,000 images, `test` has 10,000."""
    sample_per_label: Count | None = None
    """Number of images per class, selected at random; default: all images."""
    expand_labels: Count = 1
    """Number of times that each selected image occurs in an epoch. Needs `sample_per_label`."""
    sample_seed: Index = 0
    """Seed of the random selection of `sample_per_label` images per class."""

    @property
    def place(self) -> str:
        """File or folder of the data set."""
        return self.data_file


class RecordDataset(Dataset):
    """Images and labels in container files."""

    paths: tuple[str, ...] = Field(min_length=1)
    """Files, or patterns such as `train-*.tar`. Files of a pattern are read in the order of their names."""

    @property
    def place(self) -> str:
        """Paths of the files."""
        return ", ".join(self.paths)


class IndexedDataset(RecordDataset):
    """Container files with index files, which `tools/dataset.py index` writes."""

    index_paths: tuple[str, ...] | None = None
    """Index files in DALI's format, one per file, in the order of `paths`; default: the paths of the files
    with the extension `.idx`."""


class WebDataset(IndexedDataset):
    """Tar files with two entries per sample, image and label, such as ``0007.jpg`` and ``0007.cls``."""

    extensions: tuple[str, ...] = IMAGE_EXTENSIONS
    """File extensions of the images, in lower case."""


class TFRecordDataset(IndexedDataset):
    """TFRecord files with ``image/encoded`` and ``image/class/label``, as in TensorFlow's ImageNet."""

    first_label: Index = 0
    """Label of the first class in the files. Use 1 for TensorFlow's ImageNet."""


class RecordIODataset(IndexedDataset):
    """RecordIO files of MXNet with image headers, as MXNet's tool im2rec writes them."""


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
    """Images from a Python object; see ``examples/python_source.py``."""

    source: Annotated[str, AfterValidator(_check_source)]
    """Registered name of the function that creates the object."""

    @property
    def place(self) -> str:
        """Name of the source."""
        return self.source
