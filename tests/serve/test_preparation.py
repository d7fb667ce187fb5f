from __future__ import annotations

import asyncio
import io
import os
import resource
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, suppress
from pathlib import Path

import numpy as np
import psutil
import pytest
from costly_transforms import Crash, Endless
from PIL import Image

from ppcls.data.images.header import DecodeError
from ppcls.data.transforms.base import Transform
from ppcls.data.transforms.specs.basic import DecodeImage
from ppcls.data.transforms.specs.chain import Op
from ppcls.serve import preparation as module
from ppcls.serve.limits import BusyError
from ppcls.serve.preparation import Preparation


def png(height: int, width: int) -> bytes:
    file = io.BytesIO()
    Image.new("L", (width, height), 7).save(file, "PNG")
    return file.getvalue()


LARGE = png(4096, 4100)


def with_preparation(act: Callable[[Preparation], Awaitable[None]], *chain: Transform) -> None:
    async def run() -> None:
        preparation = Preparation([Op(spec, 0) for spec in chain], cores=2)
        try:
            await act(preparation)
        finally:
            preparation.stop()

    asyncio.run(run())


def test_prepare_gives_small_and_large_images_their_pixels() -> None:
    async def act(preparation: Preparation) -> None:
        images = [png(4, 6), LARGE, png(6, 4)]
        prepared = await asyncio.gather(*map(preparation.prepare, images))
        assert [array.shape for array in prepared] == [(4, 6, 3), (4096, 4100, 3), (6, 4, 3)]
        assert all(np.all(array == 7) for array in prepared)

    with_preparation(act, DecodeImage())


@pytest.mark.parametrize("image", [b"", b"no image", LARGE[:100]])
def test_prepare_damaged_image_raises(image: bytes) -> None:
    async def act(preparation: Preparation) -> None:
        with pytest.raises(DecodeError):
            await preparation.prepare(image)

    with_preparation(act, DecodeImage())


def test_canceled_prepare_ends_the_process_of_a_large_image(tmp_path: Path) -> None:
    file = tmp_path / "started"

    async def act(preparation: Preparation) -> None:
        preparing = asyncio.create_task(preparation.prepare(LARGE))
        while not file.exists():
            assert not preparing.done(), preparing.exception()
            await asyncio.sleep(0.01)
        number = int(file.read_text())
        preparing.cancel()
        while psutil.pid_exists(number):
            await asyncio.sleep(0.01)

    with_preparation(act, Endless(file=str(file)))


def test_prepare_after_a_crash_of_the_decoder_raises_and_works_again() -> None:
    async def act(preparation: Preparation) -> None:
        for _ in range(2):
            with pytest.raises(DecodeError, match="the decoder ended with exit code -9"):
                await preparation.prepare(LARGE)

    with_preparation(act, Crash())


def decoders() -> list[psutil.Process]:
    """Returns the decoders. Python forks them from a process of its own, whose command line they keep."""
    forks = [
        child for child in psutil.Process().children(recursive=True) if "forkserver" in str(child.cmdline())
    ]
    parents = {child.pid for child in forks if child.ppid() == os.getpid()}  # not those of a test server
    return [child for child in forks if child.ppid() in parents]


@pytest.mark.parametrize("attempts", [1, 2])
def test_prepare_works_after_idle_decoders_were_killed(attempts: int) -> None:
    async def act(preparation: Preparation) -> None:
        await asyncio.gather(*(preparation.prepare(LARGE) for _ in range(2)))
        for _ in range(attempts):
            killed = decoders()
            assert len(killed) == 2
            for process in killed:
                process.kill()
            assert (await preparation.prepare(LARGE)).shape == (4096, 4100, 3)
            await asyncio.gather(*(preparation.prepare(LARGE) for _ in range(2)))
            assert preparation.ready

    with_preparation(act, DecodeImage())


@pytest.mark.slow
def test_prepare_works_after_the_process_that_forks_decoders_was_killed() -> None:
    async def act(preparation: Preparation) -> None:
        await preparation.prepare(LARGE)
        (decoder,) = decoders()
        parent = decoder.parent()
        assert parent is not None
        parent.kill()
        for _ in range(3):
            assert (await preparation.prepare(LARGE)).shape == (4096, 4100, 3)

    with_preparation(act, DecodeImage())


def test_preparation_is_not_ready_while_no_decoder_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_RETRY_SECONDS", 0.05)

    async def act(preparation: Preparation) -> None:
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        with ExitStack() as filled:
            filled.callback(resource.setrlimit, resource.RLIMIT_NOFILE, limits)
            resource.setrlimit(resource.RLIMIT_NOFILE, (256, limits[1]))
            with suppress(OSError):
                while True:
                    filled.enter_context(Path(os.devnull).open())
            with pytest.raises(BusyError, match="cannot decode large images now"):
                await preparation.prepare(LARGE)
            assert not preparation.ready
        while not preparation.ready:
            await asyncio.sleep(0.01)
        assert (await preparation.prepare(LARGE)).shape == (4096, 4100, 3)

    with_preparation(act, DecodeImage())


def test_image_that_an_ending_pool_never_completes_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_CHECK_SECONDS", 0.01)
    pool = module._new_pool()
    pool.schedule(module._do_nothing).result()
    pool.stop()
    pool.join()
    with pytest.raises(BrokenProcessPool):
        asyncio.run(module._result(Future(), pool))
