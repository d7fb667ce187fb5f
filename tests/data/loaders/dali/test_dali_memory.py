"""GPU memory of DALI's pipelines over 50 epochs of alternating training and evaluation."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import paddle
import pytest

from ppcls.data.index.files import FileIndex
from ppcls.data.loaders.dali.loader import DaliLoader
from ppcls.data.loaders.dali.settings import DaliSettings
from ppcls.data.sampling.epoch_samplers import SequentialSampler, ShuffledSampler
from ppcls.data.sampling.order import Order
from ppcls.data.transforms.base import Transform
from ppcls.data.transforms.specs import DecodeImage, NormalizeImage, RandCropImage, ResizeImage, plan_chain
from ppcls.runtime.hardware import find_card

TRAIN: tuple[Transform, ...] = (DecodeImage(), RandCropImage(size=(160, 160)), NormalizeImage())
EVAL: tuple[Transform, ...] = (DecodeImage(), ResizeImage(size=(160, 160)), NormalizeImage())
EPOCHS, WARM_UP, BLOCK = 50, 10, 64  # DALI's pool grows by blocks of MiB


@pytest.mark.gpu
def test_pipeline_memory_does_not_grow(photos: dict[str, Path]) -> None:
    names = [path for key, path in photos.items() if key.startswith("jpeg")] * 16
    index = FileIndex(
        root=names[0].parent,
        paths=np.array([path.name.encode() for path in names]),
        labels=np.zeros(len(names), np.int64),
        source=names[0].parent,
    )
    loaders = [
        DaliLoader(
            index, Order(sampler(len(index)), 16, seed=1), plan_chain(chain, "CHW"), DaliSettings(0, 2)
        )
        for sampler, chain in ((ShuffledSampler, TRAIN), (SequentialSampler, EVAL))
    ]
    card = find_card(0, os.environ.get("CUDA_VISIBLE_DEVICES"), os.environ.get("CUDA_DEVICE_ORDER"))
    assert card is not None
    used = []
    for _ in range(EPOCHS):
        for loader in loaders:
            for batch in loader:
                batch.image.mean().item()
        used.append(card.total - card.free() - (paddle.device.cuda.memory_reserved(0) >> 20))
    steady = used[WARM_UP:]
    slope = np.polyfit(np.arange(len(steady)), steady, 1)[0]  # MiB an epoch
    assert slope * len(steady) < BLOCK, used  # it may fall, because other processes use the GPU, too
