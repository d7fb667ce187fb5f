"""Only epochs that end differently from PaddleClas's are announced."""

from __future__ import annotations

import pytest

from ppcls.data.sampling.epoch_ends import describe_epoch_ends


@pytest.mark.parametrize(
    ("images", "batches", "update_freq", "world", "drop_last", "expected"),
    [
        (100, 10, 1, 1, False, []),
        (100, 10, 5, 1, False, []),
        (105, 11, 1, 1, False, []),  # one process uses each image once, also in PaddleClas
        (105, 10, 1, 4, True, []),
        (104, 7, 1, 4, False, []),
        (100, 10, 4, 1, True, ["no multiple of 4. PaddleClas adds the gradients of the last 2"]),
        (105, 7, 1, 4, False, ["PaddleClas repeats 3 of the 105 images in each epoch, so that all 4"]),
        (105, 7, 2, 4, False, ["gradients of the last 1", "repeats 3 of the 105"]),
    ],
)
def test_only_differences_are_announced(
    images: int, batches: int, update_freq: int, world: int, drop_last: bool, expected: list[str]
) -> None:
    found = list(describe_epoch_ends(images, batches, update_freq, world, drop_last=drop_last))
    assert len(found) == len(expected)
    assert all(part in line for part, line in zip(expected, found, strict=True))
