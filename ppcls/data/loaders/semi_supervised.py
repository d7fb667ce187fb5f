"""Adds two views of unlabelled images to each batch of labelled images, for semi-supervised training."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import replace
from typing import Any

import paddle

from ppcls.data.loaders.batch import Batch, Loader
from ppcls.data.loaders.pairs import PairLoader
from ppcls.data.sampling.order import Cursor


class SemiSupervisedLoader:
    """Adds weak and strong views of unlabelled images to each batch of labelled images.

    Each labelled batch is combined with the next unlabelled batch, and the unlabelled images are repeated
    without end. So the position in the unlabelled images follows from the number of labelled batches, and a
    checkpoint contains only the position in the labelled images.

    Args:
        labelled: Loader of the labelled images. All its batches must be full.
        weak: Loader of the unlabelled images with weak augmentation. All its batches must be full.
        strong: Loader of the same images in the same order, with strong augmentation.
    """

    def __init__(self, labelled: Loader, weak: Loader, strong: Loader) -> None:
        self._labelled = labelled
        self._views = PairLoader(weak, strong)
        self._unlabelled = (weak, strong)
        self.index = labelled.index
        self.order = labelled.order
        self.quarantine = labelled.quarantine

    def __len__(self) -> int:
        """Returns the number of batches per epoch of the labelled images."""
        return len(self._labelled)

    def __iter__(self) -> Iterator[Batch]:
        """Yields the batches from the current position to the end of the epoch."""
        self._seek()
        views = self._repeat_views()
        try:
            for batch in self._labelled:
                weak, strong = next(views)
                yield replace(
                    batch,
                    image=paddle.concat([batch.image, weak.image, strong.image]),
                    unlabelled=len(weak.label),
                )
        finally:
            views.close()

    def state_dict(self) -> dict[str, Any]:
        """Returns the position after the last batch that was yielded."""
        return self._labelled.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Moves to a position that `state_dict` returned. See `Order.restore` for errors."""
        self._labelled.load_state_dict(state)

    def release(self) -> None:
        """Frees threads and memory. The next iteration allocates them again."""
        for loader in (self._labelled, *self._unlabelled):
            loader.release()

    def _seek(self) -> None:
        """Moves the loaders of unlabelled images to the batch to combine with the next labelled batch."""
        state = self._labelled.state_dict()
        order = self._unlabelled[0].order
        batches = state["epoch"] * len(self._labelled) + state["step"]
        self._views.load_state_dict(order.state_dict(Cursor().next(len(order), batches)))

    def _repeat_views(self) -> Generator[tuple[Batch, Batch], None, None]:
        while True:
            yield from self._views
