"""The DALI loader on a GPU: its buffers and Paddle's stream."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import paddle
import pytest

from ppcls.data.index.files import FileIndex
from ppcls.data.loaders.dali.loader import DaliLoader
from ppcls.data.loaders.dali.settings import DaliSettings
from ppcls.data.sampling.epoch_samplers import ShuffledSampler
from ppcls.data.sampling.order import Order
from ppcls.data.transforms.base import Transform
from ppcls.data.transforms.specs import DecodeImage, NormalizeImage, RandCropImage, plan_chain

CHAIN: tuple[Transform, ...] = (DecodeImage(), RandCropImage(size=(160, 160)), NormalizeImage())


def make(photos: dict[str, Path]) -> DaliLoader:
    names = [path for key, path in photos.items() if key.startswith("jpeg")] * 32
    index = FileIndex(
        root=names[0].parent,
        paths=np.array([path.name.encode() for path in names]),
        labels=np.zeros(len(names), np.int64),
        source=names[0].parent,
    )
    return DaliLoader(
        index, Order(ShuffledSampler(len(index)), 16, seed=1), plan_chain(CHAIN, "CHW"), DaliSettings(0, 2)
    )


@pytest.mark.gpu
def test_freed_batch_is_not_overwritten_before_gpu_has_read_it(photos: dict[str, Path]) -> None:
    loader = make(photos)
    start = loader.state_dict()
    expected = [batch.image.numpy().sum(dtype=np.float64) for batch in loader]
    busy = paddle.ones([4096, 4096])
    for _ in range(3):
        found = []
        loader.load_state_dict(start)
        for batch in loader:
            for _ in range(20):  # tens of milliseconds of work ahead of the read, so the host runs ahead
                busy = paddle.matmul(busy, busy) * 0.0 + 1.0
            found.append(batch.image.astype("float64").sum() + busy[0, 0].astype("float64") * 0.0)
            del batch
        np.testing.assert_allclose([float(each) for each in found], expected, rtol=1e-5)


@pytest.mark.gpu
def test_batches_are_on_gpu(photos: dict[str, Path]) -> None:
    batch = next(iter(make(photos)))
    assert batch.image.place.is_gpu_place()
    assert batch.label.place.is_gpu_place()
    assert batch.image.dtype == paddle.float32
