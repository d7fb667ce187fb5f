"""Images from the user's own Python object, registered in code and named in the YAML."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ppcls.data.index.labels import check_labels
from ppcls.data.transforms.numpy_ops import DecodeError
from ppcls.errors import UserError
from ppcls.registry import SOURCES


class PythonSource(Protocol):
    """What a factory makes: labelled images by position.

    Samples are asked for in any order, again every epoch, from several threads (DALI) or in forked
    processes (paddle.io).

    Attributes:
        labels: [N] whole numbers, 0..class_num - 1.
    """

    labels: Any

    def __len__(self) -> int:
        """Returns N."""

    def __getitem__(self, position: int) -> bytes:
        """Returns an encoded image: the bytes of a JPEG, PNG … file.

        Raises:
            OSError: It can't be read; the run ends and names the sample.
        """


def register_source(name: str, factory: Callable[[], PythonSource]) -> None:
    """Lets ``PythonDataset`` find a source by its name; to be called before the config is loaded.

    Args:
        name: The dataset's ``source``.
        factory: Makes the source; called once a loader.

    Raises:
        ValueError: The name is taken.
    """
    SOURCES.register(name, factory)


class PythonIndex:
    """A `ppcls.data.index.read.Index` of a Python source.

    Args:
        name: What it is registered as.
        samples: The source.
        labels: Its labels, [N] int64.
    """

    def __init__(self, name: str, samples: PythonSource, labels: NDArray[np.int64]) -> None:
        self.source, self.labels, self._samples = Path(name), labels, samples

    def __len__(self) -> int:
        return len(self.labels)

    def name(self, position: int) -> str:  # noqa: ARG002 - see Index
        """Returns the source's name: it has no files."""
        return f"Python source {str(self.source)!r}"

    def where(self, position: int) -> str:
        """Returns the position."""
        return f"sample {position}"

    def read(self, position: int) -> bytes:
        """Returns the encoded image; see `ppcls.data.index.read.Index`."""
        try:
            data = self._samples[position]
        except OSError as error:
            raise DecodeError((error.strerror or str(error)).lower()) from None
        if not isinstance(data, bytes):
            raise DecodeError(f"expected the bytes of an image, got {type(data).__name__}")
        if not data:
            raise DecodeError("the image is empty")
        return data


def read_source(name: str, class_num: int | None) -> PythonIndex:
    """Makes a registered source.

    Args:
        name: What it is registered as.
        class_num: Number of classes of the model; None for any.

    Raises:
        UserError: Its labels are not one whole number a sample, 0..class_num - 1.
    """
    samples: PythonSource = SOURCES[name]()
    labels = np.asarray(samples.labels)
    if labels.shape != (len(samples),) or not len(labels) or labels.dtype.kind not in "iu":
        raise UserError(
            f"Python source {name!r}: expected labels of shape [{len(samples)}], whole numbers; "
            f"found {list(labels.shape)} {labels.dtype}"
        )
    index = PythonIndex(name, samples, labels.astype(np.int64))
    check_labels(index.labels, lambda at: f"{index.name(at)}, {index.where(at)}", class_num)
    return index
