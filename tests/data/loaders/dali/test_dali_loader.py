"""Interruptions and read errors of the DALI loader."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Generator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ppcls.data.bad_images.lists import BadImageError
from ppcls.data.index.files import FileIndex
from ppcls.data.loaders.dali import loader as dali_loader
from ppcls.data.loaders.dali.loader import DaliLoader
from ppcls.data.loaders.dali.settings import DaliSettings
from ppcls.data.sampling.epoch_samplers import SequentialSampler
from ppcls.data.sampling.order import Order
from ppcls.data.transforms.specs import DecodeImage, NormalizeImage, ResizeImage, plan_chain
from ppcls.runtime.host_memory import share_array


def test_ctrl_c_during_release_raises(photos: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception in a generator that is garbage-collected would be printed and ignored."""
    whole = dali_loader.iter_batches

    def interrupted(*arguments: Any) -> Generator[Any, None, None]:
        try:
            yield from whole(*arguments)
        finally:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(dali_loader, "iter_batches", interrupted)
    file = photos["jpeg420-odd"]
    index = FileIndex(file.parent, np.array([file.name.encode()] * 4), np.arange(4), file.parent)
    ops = plan_chain([DecodeImage(), ResizeImage(size=(8, 8)), NormalizeImage()], "CHW")
    loader = DaliLoader(index, Order(SequentialSampler(4), batch_size=2), ops, DaliSettings())
    assert len(list(loader)) == 2
    with pytest.raises(KeyboardInterrupt):
        loader.release()
    monkeypatch.undo()
    loader.release()
    assert len(list(loader)) == 2


def test_cpu_tensor_shares_memory_and_keeps_it() -> None:
    array = np.zeros(1 << 20, np.float32)
    tensor = share_array(array)
    array[0] = 3
    del array
    np.testing.assert_array_equal(tensor.numpy(), [3, *[0] * ((1 << 20) - 1)])


@pytest.mark.parametrize("back", [True, False])
def test_temporary_read_error_loses_no_batch(
    photos: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, back: bool
) -> None:
    """DALI fails to read a file, which is readable again when the loader checks it."""
    file = tmp_path / "image.jpg"
    shutil.copy(photos["jpeg420-odd"], file)
    index = FileIndex(tmp_path, np.array([file.name.encode()] * 4), np.arange(4), tmp_path)
    ops = plan_chain([DecodeImage(), ResizeImage(size=(8, 8)), NormalizeImage()], "CHW")
    loader = DaliLoader(index, Order(SequentialSampler(4), batch_size=2), ops, DaliSettings())
    away = file.rename(tmp_path / "away.jpg")
    monkeypatch.setattr(dali_loader, "RETRY_DELAYS", (0.0, 0.0))
    whole, looks = loader._find_bad, []

    def looking(*arguments: Any) -> dict[int, str]:
        if back and not looks:
            away.rename(file)
        looks.append(True)
        return whole(*arguments)

    monkeypatch.setattr(loader, "_find_bad", looking)
    if back:
        assert [batch.label.numpy().tolist() for batch in loader] == [[0, 1], [2, 3]]
        assert len(looks) == 1
    else:
        with pytest.raises(BadImageError, match=r"image\.jpg .*: no such file"):
            list(loader)
    loader.release()
