"""Data sets of persons for re-identification."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Literal

from ppcls.data.index.base import DECODER, FileDataset
from ppcls.data.index.files import read_named_files
from ppcls.data.index.protocol import Index


class PersonDataset(FileDataset, abstract=True):
    """Photographs of persons in a subfolder of `image_root`. File names start with identity and camera.

    Retrieval ignores gallery images with the identity and the camera of the query. If the name of the folder
    contains `train`, its identities are renumbered from 0.

    Attributes:
        folder: Folder of the data set in `image_root`.
        pattern: Regular expression that matches identity and camera at the start of a file name.
    """

    ignored: ClassVar[Mapping[str, str]] = DECODER
    folder: ClassVar[str]
    pattern: ClassVar[str] = r"(-?\d+)_c(\d+)"
    cls_label_path: str
    """Folder of the images, inside the folder of the data set, such as `bounding_box_train`."""
    follow_links: Literal[False] = False
    """Follow symbolic links that point outside the folder. Only False is supported."""

    def read(self, class_num: int | None) -> Index:
        """Returns the index of the images, with identities and cameras from the file names."""
        folder = Path(self.image_root) / self.folder / self.cls_label_path
        return read_named_files(folder, self.pattern, class_num, relabel="train" in self.cls_label_path)


class Market1501(PersonDataset):
    """Market-1501 (Zheng et al. 2015), in subfolder ``market1501/Market-1501-v15.09.15`` of `image_root`."""

    folder: ClassVar[str] = "market1501/Market-1501-v15.09.15"
    pattern: ClassVar[str] = r"(-?\d+)_c(\d)"


class DukeMTMC(PersonDataset):
    """DukeMTMC-reID (Zheng et al. 2017), in subfolder ``dukemtmc/DukeMTMC-reID`` of `image_root`."""

    folder: ClassVar[str] = "dukemtmc/DukeMTMC-reID"
