from __future__ import annotations

import asyncio
import io
from collections.abc import Awaitable, Callable
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
