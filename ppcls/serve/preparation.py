"""Prepares the images of requests: small images in threads, large images in processes that can be stopped."""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from pebble import ProcessExpired, ProcessPool

from ppcls.data.images.decode import decode
from ppcls.data.images.header import DecodeError, Header
from ppcls.data.images.read_header import read_header
from ppcls.data.transforms.numpy_ops.chain import run
from ppcls.data.transforms.specs.basic import DecodeImage
from ppcls.serve.limits import BusyError, FairSlots
from ppcls.serve.pools import TimedPool

if TYPE_CHECKING:  # only for annotations
    from ppcls.data.transforms.specs.chain import Op

Array = NDArray[Any]
_T = TypeVar("_T")
_LARGE = 1 << 24  # pixels, times scans, above which an image is large; fewer are decoded in about 0.1 s
_ATTEMPTS = 3  # processes that receive an image before it is rejected
_RETRY_SECONDS = 1.0  # seconds between two attempts to start a process
_CHECK_SECONDS = 1.0  # seconds between two checks whether a pool has ended
_UNKNOWN_EXIT = 255  # exit code if the process has ended from which Python forks the decoders
_START_SECONDS = 30.0  # seconds within which a process must start
_LOG = logging.getLogger("ppcls.serve.preparation")
_BUSY = "the server cannot decode large images now; try again later"
_NO_DRAWS = np.zeros(0, np.float32)
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
        self._threads = TimedPool(cores, "prepare")
        self._thread_slots = FairSlots(cores)
        count = min(cores, _MOST_PROCESSES)
        self._process_slots = FairSlots(count)
        self._decoders = [DecoderProcess() for _ in range(count)]

    @property
    def ready(self) -> bool:
        """Whether large images can be decoded."""
        return not any(decoder.failed for decoder in self._decoders)

    @property
    def longest(self) -> float:
        """Seconds since the start of the oldest image that a thread still decodes, 0 if there is none."""
        return self._threads.longest

    async def prepare(self, image: bytes, client: str = "", chain: Sequence[Op] | None = None) -> Array:
        """Returns the input of the model for one image. Cancelling the call stops decoding a large image.

        Args:
            image: Bytes of an image file.
            client: Address of the client. Clients take turns.
            chain: Transforms, without random ones, instead of those of the model.

        Raises:
            ValueError: The image cannot be decoded.
        """
        chain = self._chain if chain is None else chain
        loop = asyncio.get_running_loop()
        async with self._thread_slots.acquire(client):
            prepared = await loop.run_in_executor(self._threads, _prepare_small, chain, image)
        if prepared is not None:
            return prepared
        async with self._process_slots.acquire(client):
            decoder = self._decoders.pop()
            try:
                return await decoder.prepare(chain, image)
            finally:
                self._decoders.append(decoder)

    def stop(self) -> None:
        """Cancels the preparation of all images, and waits until threads and processes have ended."""
        for decoder in self._decoders:
            decoder.stop()
        self._threads.shutdown(cancel_futures=True)


class _StartError(RuntimeError):
    """Raised if a decoder process cannot be started."""


class DecoderProcess:
    """A process that decodes one image at a time. It is replaced if it ends.

    It is a pool of one process. In a pool of several ones, a process that is killed between two images makes
    the pool unusable, and one that is killed while it holds the lock of their common queue makes all others
    wait.

    Attributes:
        failed: Whether the process could not be replaced at the last attempt, or does not answer.
    """

    def __init__(self) -> None:
        self.failed = False
        self._starting = TimedPool(1, "start decoder")
        self._ending = TimedPool(1, "end decoder")
        self._recovery: asyncio.Task[None] | None = None
        self._check: asyncio.Task[None] | None = None  # after an image was cancelled
        self._pool = _new_pool()

    async def prepare(self, chain: Sequence[Op], image: bytes) -> Array:
        """Returns the input of the model for one image.

        Args:
            chain: Transforms, without random ones.
            image: Bytes of an image file.

        Raises:
            ValueError: The image cannot be decoded.
            BusyError: No process can be started.
        """
        if self._check is not None:
            await asyncio.shield(self._check)
        if self.failed:  # `_recover` tries to start a process meanwhile
            raise BusyError(_BUSY)
        for _ in range(_ATTEMPTS):
            try:
                future = await self._schedule(_prepare, chain, image)
                prepared = await _result(future, self._pool)
            except BrokenProcessPool:  # the process has ended before it received the image
                self._replace()
                continue
            except ProcessExpired as error:  # while it decoded the image
                self._replace()
                if error.exitcode == _UNKNOWN_EXIT:
                    continue
                raise DecodeError(f"the decoder ended with exit code {error.exitcode}") from None
            except _StartError:  # the process has ended between two images
                self._replace()
                continue
            except asyncio.CancelledError:
                # A new pool, because the old one does not kill a process that has hung before it received
                # the image.
                self._replace()
                self._check = asyncio.create_task(self._check_answer())
                raise
            return prepared
        self._fail()
        raise BusyError(_BUSY)

    def stop(self) -> None:
        """Ends the process."""
        for task in (self._recovery, self._check):
            if task is not None:
                task.cancel()
        _end(self._pool)
        self._ending.shutdown()
        self._starting.shutdown(cancel_futures=True)

    def _replace(self) -> None:
        ended = self._pool
        self._pool = _new_pool()
        self._ending.submit(_end, ended)

    async def _check_answer(self) -> None:
        """Checks that a process answers. One that hangs in C++ code or is stopped by a signal does not."""
        try:
            await self._wait_for_answer()
        except (RuntimeError, OSError, asyncio.TimeoutError):
            self._fail()

    async def _wait_for_answer(self) -> None:
        async def answer() -> None:
            await asyncio.wrap_future(await self._schedule(_do_nothing))

        await asyncio.wait_for(answer(), _START_SECONDS)

    async def _schedule(self, function: Callable[..., _T], *args: Any) -> Future[_T]:
        """Sends a call to the process, which is started first if there is none.

        This happens in a thread, because the start waits for the process from which decoders are forked.

        Raises:
            _StartError: The process cannot be started, or the pool has ended.
        """
        schedule = partial(self._pool.schedule, function, args=args)
        try:
            return await asyncio.get_running_loop().run_in_executor(self._starting, schedule)
        except (RuntimeError, OSError) as error:
            raise _StartError(str(error)) from None

    def _fail(self) -> None:
        if not self.failed:
            _LOG.warning("no process can be started that decodes large images; trying again every second")
            self.failed = True
            self._recovery = asyncio.create_task(self._recover())

    async def _recover(self) -> None:
        """Starts the process again and again until it runs."""
        while self.failed:
            await asyncio.sleep(_RETRY_SECONDS)
            with suppress(RuntimeError, OSError, asyncio.TimeoutError):
                await self._wait_for_answer()
                self.failed = False
                _LOG.warning("large images are decoded again")
                return
            self._replace()


async def _result(future: Future[Array], pool: ProcessPool) -> Array:
    """Returns the result of a future of a pool. If this call is cancelled, the future is cancelled, too.

    A pool whose process was killed ends. It never completes a future that it received at that moment, so
    waiting without a check could take forever.

    Raises:
        BrokenProcessPool: The pool has ended without completing the future.
    """
    result = asyncio.wrap_future(future)
    try:
        while not result.done():
            active = pool.active
            await asyncio.wait({result}, timeout=_CHECK_SECONDS)
            if not active and not result.done():
                raise BrokenProcessPool("the pool has ended")
    finally:
        result.cancel()  # has no effect on a completed one
    return result.result()


def _new_pool() -> ProcessPool:
    """Returns a pool, which starts its process when it receives the first image."""
    # The server has threads of the model and of requests, and a fork would copy the locks that they hold.
    return ProcessPool(1, context=multiprocessing.get_context("forkserver"))


def _end(pool: ProcessPool) -> None:
    pool.stop()  # type: ignore[no-untyped-call]
    pool.join()


def _do_nothing() -> None:
    """Shows that the process runs."""


def is_large(image: bytes) -> bool:
    """Returns whether decoding an image file takes long, according to the size in its header."""
    try:
        return _has_many_pixels(read_header(image))
    except DecodeError:  # decoding reports invalid images; files such as .npy have another header
        return False


def _has_many_pixels(header: Header) -> bool:
    return header.height * header.width * header.scans > _LARGE


def _prepare_small(chain: Sequence[Op], image: bytes) -> Array | None:
    """Returns the result of transforms for a small image, or None for a large image, which is not decoded.

    Raises:
        ValueError: The image cannot be decoded.
    """
    decoder = chain[0].spec
    if not isinstance(decoder, DecodeImage):
        return None if is_large(image) else _prepare(chain, image)
    try:
        header = read_header(image)
    except MemoryError:
        raise DecodeError("there is not enough memory to read the image") from None
    if _has_many_pixels(header):
        return None
    return run(chain[1:], decode(decoder, image, header), _NO_DRAWS)


def _prepare(chain: Sequence[Op], image: bytes) -> Array:
    return run(chain, image, _NO_DRAWS)
