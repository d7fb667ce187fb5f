"""Reads datasets from the user's Python code, which registers them under names for the YAML config."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator

from ppcls.data.images.header import DecodeError
from ppcls.data.index.base import Dataset
from ppcls.data.index.class_names import check_labels
from ppcls.errors import UserError
from ppcls.registry import SOURCES, suggest


class PythonSource(Protocol):
    """Interface of the user's dataset: encoded images and labels by position.

    Every epoch reads the samples again, in any order. DALI reads from several threads, ``paddle.io`` from
    forked processes.

    Attributes:
        labels: [N] whole numbers, 0..class_num - 1.
    """

    labels: Any

    def __len__(self) -> int:
        """Returns the number N of samples."""

    def __getitem__(self, position: int) -> bytes:
        """Returns an encoded image: the bytes of a JPEG, PNG or other image file.

        Raises:
            OSError: The image can't be read. The run ends with an error that names the sample.
        """


def register_source(name: str, factory: Callable[[], PythonSource]) -> None:
    """Registers a source for ``PythonDataset``. Call this function before you load the config.

    Args:
        name: Name of the source: the value of the dataset's key ``source``.
        factory: Function that creates the source. Each loader calls it once.

    Raises:
        ValueError: The name is already registered.
    """
    SOURCES.register(name, factory)


class PythonIndex:
    """Implements `ppcls.data.index.protocol.Index` for a Python source.

    Args:
        name: Registered name of the source.
        samples: The source.
        labels: Labels of the source, [N] int64.
    """

    def __init__(self, name: str, samples: PythonSource, labels: NDArray[np.int64]) -> None:
        self.source = Path(name)
        self.labels = labels
        self._samples = samples

    def __len__(self) -> int:
        return len(self.labels)

    def name(self, position: int) -> str:  # noqa: ARG002 - see Index
        """Returns the name of the source, because its samples have no files."""
        return f"Python source {str(self.source)!r}"

    def where(self, position: int) -> str:
        """Returns the location of a sample, such as ``sample 7``."""
        return f"sample {position}"

    def read(self, position: int) -> bytes:
        """Returns the encoded image; see `ppcls.data.index.protocol.Index`."""
        try:
            data = self._samples[position]
        except OSError as error:
            raise DecodeError((error.strerror or str(error)).lower()) from None
        except MemoryError:  # one image must not end a run
            raise DecodeError("there is not enough memory to read the image") from None
        if not isinstance(data, bytes):
            raise DecodeError(f"expected an encoded image as bytes, got {type(data).__name__}")
        if not data:
            raise DecodeError("expected an encoded image, got 0 bytes")
        return data


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

    def read(self, class_num: int | None) -> PythonIndex:
        """Creates the registered source, and returns its index.

        Raises:
            UserError: There are no samples, or the labels are not one whole number in 0..class_num - 1 per
                sample.
        """
        samples: PythonSource = SOURCES[self.source]()
        labels = np.asarray(samples.labels)
        if labels.shape != (len(samples),) or not len(labels) or labels.dtype.kind not in "iu":
            raise UserError(
                f"Python source {self.source!r}: expected one whole number per sample as labels, of shape "
                f"[{len(samples)}], found {list(labels.shape)} {labels.dtype}"
            )
        index = PythonIndex(self.source, samples, labels.astype(np.int64))
        check_labels(index.labels, lambda at: f"{index.name(at)}, {index.where(at)}", class_num)
        return index
