"""Prepares the images of requests: small images in threads, large images in processes that can be stopped."""

from __future__ import annotations

import asyncio
import multiprocessing
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from pebble import ProcessExpired, ProcessPool

from ppcls.data.images.header import DecodeError
from ppcls.data.images.read_header import read_header
from ppcls.data.transforms.numpy_ops.chain import run

if TYPE_CHECKING:  # only for annotations
    from ppcls.data.transforms.specs.chain import Op

Array = NDArray[Any]
_LARGE = 1 << 24  # pixels, times scans, above which an image is large; fewer are decoded in about 0.1 s
_MOST_PROCESSES = 2  # each process may need 1 GB of memory


class Preparation:
    """Prepares images for one model, in one event loop.

    Decoding in a thread cannot be stopped, so only small images are decoded in threads.

    Args:
        chain: Transforms, without random ones.
        cores: Number of threads.
    """

    def __init__(self, chain: Sequence[Op], cores: int) -> None:
        self._chain = chain
        self._threads = ThreadPoolExecutor(cores, "prepare")
        context = multiprocessing.get_context("forkserver")
        # The pool starts its processes when it receives the first large image.
        self._processes = ProcessPool(min(cores, _MOST_PROCESSES), context=context)

    async def prepare(self, image: bytes) -> Array:
        """Returns the input of the model for one image. Cancelling the call stops decoding a large image.

        Args:
            image: Bytes of an image file.

        Raises:
            ValueError: The image cannot be decoded.
        """
        loop = asyncio.get_running_loop()
        prepared = await loop.run_in_executor(self._threads, self.prepare_small, image)
        if prepared is not None:
            return prepared
        try:
            future = self._processes.schedule(_prepare, args=(self._chain, image))
            return await asyncio.wrap_future(future)
        except ProcessExpired as error:
            raise DecodeError(f"the decoder ended with exit code {error.exitcode}") from None

    def prepare_small(self, image: bytes) -> Array | None:
        """Returns the input of the model for a small image, or None for a large image, which is not decoded.

        Args:
            image: Bytes of an image file.

        Raises:
            ValueError: The image cannot be decoded.
        """
        return None if is_large(image) else _prepare(self._chain, image)

    def stop(self) -> None:
        """Cancels the preparation of all images, and waits until threads and processes have ended."""
        self._processes.stop()  # type: ignore[no-untyped-call]
        self._processes.join()
        self._threads.shutdown(cancel_futures=True)


def is_large(image: bytes) -> bool:
    """Returns whether decoding an image file takes long, according to the size in its header."""
    try:
        header = read_header(image)
    except DecodeError:  # decoding reports invalid images; files such as .npy have another header
        return False
    return header.height * header.width * header.scans > _LARGE


def _prepare(chain: Sequence[Op], image: bytes) -> Array:
    return run(chain, image, np.zeros(0, np.float32))
