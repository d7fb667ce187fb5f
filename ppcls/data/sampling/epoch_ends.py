"""Describes how the end of an epoch differs from PaddleClas's, which depends on the number of images."""

from __future__ import annotations

from collections.abc import Iterator

from ppcls.errors import counted


def describe_epoch_ends(
    images: int, batches: int, update_freq: int, world: int, *, drop_last: bool
) -> Iterator[str]:
    """Yields a warning for each difference from PaddleClas at the end of an epoch.

    Args:
        images: Number of training images.
        batches: Number of batches of one process per epoch.
        update_freq: Number of batches per update.
        world: Number of processes.
        drop_last: Whether the last batch is dropped if it is not full.
    """
    if rest := batches % update_freq:
        yield (
            f"warning: Global.update_freq: the {counted(batches, 'batch')} of an epoch are no multiple of "
            f"{update_freq}. PaddleClas adds the gradients of the last {rest} to the first update of the "
            "next epoch; ppcls makes an update of them"
        )
    if (repeated := -images % world) and not drop_last:
        yield (
            f"warning: DataLoader.Train.sampler.drop_last: PaddleClas repeats {repeated} of the "
            f"{counted(images, 'image')} in each epoch, so that all {world} processes have the same number; "
            "ppcls uses each image once"
        )
