"""Iterates over a DALI pipeline, and yields Paddle tensors on a GPU or on the CPU.

On a GPU, NVIDIA's `nvidia.dali.plugin.paddle.DALIGenericIterator` hands the tensors to Paddle. It needs a
GPU: for a pipeline without one it asks Paddle for ``CUDAPlace(None)`` and fails. So this module has its own
code for pipelines on the CPU. `PipelineIterator` chooses between both, and yields the same batches.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import paddle
from numpy.typing import NDArray
from nvidia.dali import Pipeline
from nvidia.dali.plugin.base_iterator import LastBatchPolicy
from nvidia.dali.plugin.paddle import DALIGenericIterator

from ppcls.errors import UserError, counted
from ppcls.runtime.host_memory import share_array

_MAX_KEPT = 4  # maximum number of batches by which the host may be ahead of the GPU

NamedTensors = dict[str, paddle.Tensor]


class PipelineIterator:
    """Yields the batches of a DALI pipeline, as a dict from output names to Paddle tensors.

    The arguments are those of NVIDIA's `DALIGenericIterator`, but for a single pipeline, because each process
    has its own. A tensor stays valid until Python drops it. One iteration is one epoch. Without
    ``reader_name``, the epoch ends when an external source of the pipeline raises `StopIteration`.

    Args:
        pipeline: Pipeline, built or not. Its device determines the device of the tensors.
        output_map: Name of each output of the pipeline.
        reader_name: Argument ``name`` of the reader that determines the length of an epoch.
        auto_reset: Whether the next iteration starts the next epoch. If False, call `reset` first.
        last_batch_policy: How an incomplete last batch is returned. ``FILL`` adds samples of the next epoch,
            or copies of the last sample if the reader has ``pad_last_batch``. ``PARTIAL`` adds nothing.
            ``DROP`` drops the batch. It has no effect without ``reader_name``.

    Raises:
        UserError: The names are not distinct, their number differs from that of the outputs, or no reader has
            this name; or the reader has several shards of different sizes.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        output_map: Sequence[str],
        *,
        reader_name: str | None = None,
        auto_reset: bool = False,
        last_batch_policy: LastBatchPolicy = LastBatchPolicy.FILL,
    ) -> None:
        names = list(output_map)
        if len(set(names)) != len(names):
            raise UserError(f"output_map: expected distinct names, got {names}")
        pipeline.build()
        outputs = len(pipeline.output_dtype())
        if len(names) != outputs:
            raise UserError(
                f"output_map: expected {counted(outputs, 'name')}, one per output of the pipeline, got "
                f"{names}"
            )
        if reader_name is not None and reader_name not in (known := list(pipeline.reader_meta())):
            readers = ", ".join(known) or "no reader with a name"
            raise UserError(f"reader_name: the pipeline has no reader '{reader_name}'; it has {readers}")
        self._batches = (
            _CpuBatches(pipeline, names, reader_name, last_batch_policy)
            if pipeline.device_id is None
            else _GpuBatches(
                DALIGenericIterator(
                    [pipeline],
                    names,
                    reader_name=reader_name,
                    last_batch_policy=last_batch_policy,
                )
            )
        )
        self._auto_reset = auto_reset
        self._ended = False

    def __iter__(self) -> Iterator[NamedTensors]:
        """Yields the batches to the end of the epoch. Without ``auto_reset``, none after it until `reset`."""
        return self

    def __next__(self) -> NamedTensors:
        """Returns the next batch.

        Raises:
            StopIteration: The epoch has ended.
        """
        if self._ended:
            raise StopIteration
        try:
            return self._batches.take()
        except StopIteration:
            self._ended = True
            if self._auto_reset:
                self.reset()
            raise

    def reset(self) -> None:
        """Starts the next epoch. Without effect before the end of an epoch, as in NVIDIA's class."""
        if self._ended:
            self._batches.reset()
            self._ended = False


class _GpuBatches:
    """Batches of NVIDIA's iterator as tensors on the GPU.

    DALI owns the memory of the tensors and reuses it when no Python object refers to them. At that time, the
    GPU may not have processed them yet. So this class keeps references until the GPU has finished.
    """

    def __init__(self, iterator: DALIGenericIterator) -> None:
        self._iterator = iterator
        self._last: NamedTensors | None = None
        self._in_use: deque[tuple[paddle.device.cuda.Event, NamedTensors]] = deque()

    def take(self) -> NamedTensors:
        self._keep_last()
        (outputs,) = next(self._iterator)
        # The plugin returns Paddle's internal tensors. On the same device, to_tensor wraps them without a
        # copy.
        self._last = {name: paddle.to_tensor(tensor) for name, tensor in outputs.items()}
        return dict(self._last)

    def reset(self) -> None:
        self._iterator.reset()

    def _keep_last(self) -> None:
        """Keeps the last batch until the work that the GPU has for it so far is done."""
        if self._last is None:
            return
        used = paddle.device.cuda.Event()
        used.record()
        self._in_use.append((used, self._last))
        self._last = None
        if len(self._in_use) > _MAX_KEPT:
            self._in_use[0][0].synchronize()
        while self._in_use and self._in_use[0][0].query():
            self._in_use.popleft()


class _CpuBatches:
    """Batches of a pipeline without a GPU, in the epochs of NVIDIA's iterator."""

    def __init__(
        self, pipeline: Pipeline, names: Sequence[str], reader_name: str | None, policy: LastBatchPolicy
    ) -> None:
        self._pipeline = pipeline
        self._names = names
        self._policy = policy
        self._epoch = (
            None if reader_name is None else _read_epoch(pipeline.reader_meta(reader_name), reader_name)
        )
        self._done = 0  # samples of this epoch that were read, also at the end of the previous epoch

    def take(self) -> NamedTensors:
        epoch = self._epoch
        while epoch is None or self._done < epoch.reads:
            arrays = list(map(self._array, self._names, self._pipeline.run()))
            valid = rows = len(arrays[0])
            if epoch is not None:
                valid = max(0, min(rows, epoch.size - self._done))
                self._done += rows
            if valid < rows and self._policy is LastBatchPolicy.FILL:
                valid = rows
            if valid == rows or (valid and self._policy is LastBatchPolicy.PARTIAL):
                return {
                    name: share_array(array[:valid]) for name, array in zip(self._names, arrays, strict=True)
                }
        raise StopIteration

    def reset(self) -> None:
        epoch = self._epoch
        if epoch is not None:
            # Without padding, the reader filled the last batch with samples of the next epoch.
            counts = self._policy is LastBatchPolicy.FILL and not epoch.padded
            self._done = (self._done - epoch.size) % epoch.size if counts else 0
        self._pipeline.reset()

    def _array(self, name: str, outputs: Any) -> NDArray[Any]:
        """Returns the samples of an output as one array [B, ...].

        The dynamic executor does not write to its outputs again while the array exists. Others do.
        """
        if not outputs.is_dense_tensor():
            shapes = sorted({tuple(sample.shape()) for sample in outputs})
            raise UserError(
                f"output '{name}': expected samples of one shape, found {shapes[0]} and {shapes[1]}; "
                "resize or pad the images in the pipeline"
            )
        array = np.asarray(outputs.as_tensor())
        return array if self._pipeline.exec_dynamic else array.copy()


class _Epoch(NamedTuple):
    """One epoch of a reader's shard.

    Attributes:
        size: Number of samples of the shard.
        reads: Number of samples that the reader returns, with the padding that makes all shards equal.
        padded: Whether the reader fills the last batch with copies of the last sample.
    """

    size: int
    reads: int
    padded: bool


def _read_epoch(reader: dict[str, Any], name: str) -> _Epoch:
    """Returns the epoch of a reader.

    Raises:
        UserError: The shards of the reader differ in size, and the reader does not pad them.
    """
    samples = reader["epoch_size"]
    shards = reader["number_of_shards"]
    padded = bool(reader["pad_last_batch"])
    if samples % shards and not (padded and reader["stick_to_shard"]):
        raise UserError(
            f"reader '{name}': its {counted(shards, 'shard')} of "
            f"{counted(samples, 'sample differs', 'samples differ')} in size; set pad_last_batch=True and "
            "stick_to_shard=True"
        )
    number = reader["shard_id"]
    size = samples * (number + 1) // shards - samples * number // shards
    return _Epoch(size, reader["epoch_size_padded"] // shards if padded else size, padded)
