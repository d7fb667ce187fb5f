"""What only the DALI loader could do wrong."""

from __future__ import annotations

import signal
from collections.abc import Generator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ppcls.data import dali_loader
from ppcls.data.dali_loader import DaliLoader
from ppcls.data.dali_settings import DaliSettings
from ppcls.data.file_index import FileIndex
from ppcls.data.order import Order
from ppcls.data.sampler import InOrder
from ppcls.data.transforms import DecodeImage, NormalizeImage, ResizeImage, plan_chain


def test_ctrl_c_while_a_loader_is_released_is_heard(
    photos: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An exception in a generator that is thrown away would be printed and forgotten."""
    whole = dali_loader._on_cpu

    def interrupted(*arguments: Any) -> Generator[Any, None, None]:
        try:
            yield from whole(*arguments)
        finally:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(dali_loader, "_on_cpu", interrupted)
    file = photos["jpeg420-odd"]
    index = FileIndex(file.parent, np.array([file.name.encode()] * 4), np.arange(4), file.parent)
    ops = plan_chain([DecodeImage(), ResizeImage(size=(8, 8)), NormalizeImage()], "CHW")
    loader = DaliLoader(index, Order(InOrder(4), batch_size=2), ops, DaliSettings())
    assert len(list(loader)) == 2
    with pytest.raises(KeyboardInterrupt):
        loader.release()
    monkeypatch.undo()
    loader.release()
    assert len(list(loader)) == 2
