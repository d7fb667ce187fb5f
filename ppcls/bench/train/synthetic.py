"""One random batch that stays on the device: what training does where data cost nothing."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import paddle
from numpy.typing import NDArray

from ppcls.config.schema import Config
from ppcls.config.sections.dataset import MultiLabelDataset
from ppcls.config.sections.loader import Split
from ppcls.config.sections.transform import check_chain
from ppcls.data.bad_images.quarantine import Quarantine
from ppcls.data.index.read import Index
from ppcls.data.loaders.batch import Batch
from ppcls.data.sampling.order import Cursor, Order
from ppcls.data.sampling.sampler import SequentialSampler
from ppcls.runtime.start import Runtime

_STEPS = 100  # of an epoch


def image_shape(config: Config, split: Split) -> tuple[int, ...]:
    """Returns the shape of a split's images as the model takes them: [C, H, W] or [H, W, C]."""
    chain = check_chain(split.dataset.transform_ops)
    assert chain.size is not None  # by the config's check
    nchw = config.Arch.data_format == "NCHW"
    return (chain.channels, *chain.size) if nchw else (*chain.size, chain.channels)


class Noise:
    """Samples of uniform noise, made from their position: an index without files.

    Args:
        count: Samples.
        shape: Of each.
        class_num: Labels are 0..class_num - 1, in turn.
        several: Whether a label is a 0 or 1 for each class; then 1 for every other one.
    """

    source = Path("synthetic")

    def __init__(self, count: int, shape: tuple[int, ...], class_num: int, *, several: bool = False) -> None:
        self.labels: NDArray[Any] = np.arange(count, dtype=np.int64) % class_num
        if several:
            one = np.arange(class_num, dtype=np.float32) % 2
            self.labels = np.broadcast_to(one, (count, class_num))
        self._shape = shape

    def __len__(self) -> int:
        """Returns the number of samples."""
        return len(self.labels)

    def name(self, position: int) -> str:
        """Returns what a sample is called."""
        return f"synthetic image {position}"

    where = name

    def image(self, position: int) -> NDArray[np.float32]:
        """Returns the pixels of a sample, -1..1."""
        return np.random.default_rng(position).uniform(-1, 1, self._shape).astype(np.float32)

    def read(self, position: int) -> bytes:
        """Returns a sample as an ``.npy`` file."""
        file = io.BytesIO()
        np.save(file, self.image(position))
        return file.getvalue()


class Synthetic:
    """A loader that gives one batch again and again; see `ppcls.data.loaders.batch.Loader`.

    Args:
        config: Says the images' shape, the batch size and the accumulation. Batch transforms, such as Mixup,
            are not done.
        split: ``DataLoader.Train``; its dataset is not looked at.
        runtime: Rank and device.
    """

    quarantine: Quarantine | None = None

    def __init__(self, config: Config, split: Split, runtime: Runtime) -> None:
        shape, dtype = image_shape(config, split), check_chain(split.dataset.transform_ops).dtype
        rows = split.sampler.rows(runtime.world_size)
        several = isinstance(split.dataset, MultiLabelDataset)
        noise = Noise(rows * runtime.world_size * _STEPS, shape, config.Arch.class_num, several=several)
        self.index: Index = noise
        self.order = Order(
            SequentialSampler(len(noise)),
            rows,
            rank=runtime.rank,
            world=runtime.world_size,
            accumulate=config.Global.update_freq,
        )
        mine = [runtime.rank * rows + row for row in range(rows)]
        self._image = paddle.to_tensor(np.stack([noise.image(each) for each in mine])).astype(dtype)
        self._label = paddle.to_tensor(noise.labels[mine])
        self._cursor = Cursor()

    def __iter__(self) -> Iterator[Batch]:
        """Yields the batch to the end of the epoch."""
        for _ in range(self._cursor.step, len(self.order)):
            step = self.order.at(self._cursor)
            self._cursor = self._cursor.next(len(self.order))
            yield Batch(self._image, self._label, step.valid, step.weight, step.update)

    def __len__(self) -> int:
        """Returns the batches of an epoch."""
        return len(self.order)

    def state_dict(self) -> dict[str, Any]:
        """Returns the position behind the last batch."""
        return self.order.state_dict(self._cursor)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes to a position."""
        self._cursor = self.order.restore(state)

    def release(self) -> None:
        """Has nothing to let go of."""
