"""Compares a run of one process with one of several."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ppcls.report.jsonlines import read_records
from ppcls.report.record import EvalRecord
from ppcls.weights.files import read_arrays

IMAGES = 11  # of the evaluation set


def check_equal_weights(one: Path, several: Path, difference: float) -> None:
    """Checks the weights and their moving averages in the latest checkpoints of two runs.

    Args:
        one: Folder of the run of one process.
        several: Folder of the run of several processes.
        difference: Largest difference of a weight. The processes add gradients in another order.
    """
    for file in ("model.safetensors", "ema.safetensors"):
        alone, together = (read_arrays(folder / "latest" / file) for folder in (one, several))
        for key, value in alone.items():
            np.testing.assert_allclose(together[key], value, rtol=0, atol=difference, err_msg=key)


def check_equal_records(one: Path, several: Path, difference: float) -> None:
    """Checks the records of two runs; for the folders, see `check_equal_weights`.

    Args:
        one: Folder of the run of one process.
        several: Folder of the run of several processes.
        difference: Largest relative difference of a loss.
    """
    alone, together = (read_records(folder / "metrics.jsonl") for folder in (one, several))
    assert len(alone) == len(together) > 0
    for a, b in zip(alone, together, strict=True):
        assert (a.epoch, a.update) == (b.epoch, b.update)
        assert b.metrics == a.metrics
        assert b.loss == pytest.approx(a.loss, rel=difference)
        if isinstance(a, EvalRecord):
            assert a.images == b.images == IMAGES
