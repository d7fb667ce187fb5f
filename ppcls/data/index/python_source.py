"""Datasets in the user's own Python code: registered by name, and used by that name in the YAML."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ppcls.data.images.header import DecodeError
from ppcls.data.index.class_names import check_labels
from ppcls.errors import UserError
from ppcls.registry import SOURCES


class PythonSource(Protocol):
    """Labelled images by position.

    Samples are read in any order, again in each epoch, from several threads (DALI) or forked processes
    (paddle.io).

    Attributes:
        labels: [N] whole numbers, 0..class_num - 1.
    """

    labels: Any

    def __len__(self) -> int:
        """Returns N."""

    def __getitem__(self, position: int) -> bytes:
        """Returns an encoded image: the bytes of a JPEG, PNG or other image file.

        Raises:
            OSError: The image can't be read. The run ends with an error that names the sample.
        """


def register_source(name: str, factory: Callable[[], PythonSource]) -> None:
    """Registers a source for ``PythonDataset``. Call it before loading the config.

    Args:
        name: The dataset's ``source`` in the YAML.
        factory: Creates the source; called once per loader.

    Raises:
        ValueError: The name is already registered.
    """
    SOURCES.register(name, factory)


class PythonIndex:
    """A `ppcls.data.index.protocol.Index` of a Python source.

    Args:
        labels: Its labels, [N] int64.
    """

    def __init__(self, name: str, samples: PythonSource, labels: NDArray[np.int64]) -> None:
        self.source, self.labels, self._samples = Path(name), labels, samples

    def __len__(self) -> int:
        return len(self.labels)

    def name(self, position: int) -> str:  # noqa: ARG002 - see Index
        """Returns the name of the source, which has no files."""
        return f"Python source {str(self.source)!r}"

    def where(self, position: int) -> str:
        """Returns the position."""
        return f"sample {position}"

    def read(self, position: int) -> bytes:
        """Returns the encoded image; see `ppcls.data.index.protocol.Index`."""
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
    """Creates the index of a registered source.

    Args:
        class_num: Number of classes of the model; None if any label from 0 is valid.

    Raises:
        UserError: The labels are not one whole number in 0..class_num - 1 per sample.
    """
    samples: PythonSource = SOURCES[name]()
    labels = np.asarray(samples.labels)
    if labels.shape != (len(samples),) or not len(labels) or labels.dtype.kind not in "iu":
        raise UserError(
            f"Python source {name!r}: expected whole numbers as labels of shape [{len(samples)}], "
            f"found {list(labels.shape)} {labels.dtype}"
        )
    index = PythonIndex(name, samples, labels.astype(np.int64))
    check_labels(index.labels, lambda at: f"{index.name(at)}, {index.where(at)}", class_num)
    return index
