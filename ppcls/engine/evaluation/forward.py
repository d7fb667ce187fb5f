"""Computes the forward passes of an evaluation."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator

import paddle
from paddle import Tensor, nn

from ppcls.arch.fused.folded import constant_weights
from ppcls.data.loaders.batch import Batch
from ppcls.engine.core.precision import Precision
from ppcls.outputs import Outputs, first_rows

Forward = Callable[[nn.Layer, Tensor], Outputs]


def run_model(model: nn.Layer, image: Tensor) -> Outputs:
    """Returns the outputs of a model."""
    outputs: Outputs = model(image)
    return outputs


class EvalForward:
    """Forward passes of one evaluation. Batches that overflow in float16 are computed again in float32.

    Early in training, BatchNorm's running statistics lag behind the weights. Activations can then exceed the
    range of float16 in evaluations, although they do not in training.

    Args:
        model: Bare model in evaluation mode.
        precision: Precision of the forward pass.
        forward: Function that computes the outputs of the model.

    Attributes:
        recomputed: Number of batches that were computed again in float32.
    """

    def __init__(self, model: nn.Layer, precision: Precision, forward: Forward = run_model) -> None:
        self._model = model
        self._precision = precision
        self._forward = forward
        self._exact: nn.Layer | None = None
        self.recomputed = 0

    def outputs(self, batches: Iterable[Batch]) -> Iterator[tuple[Batch, Outputs]]:
        """Yields each batch with valid samples, and the outputs of these samples.

        The host reads the overflow flag of a batch after it started the next batch, so the device does not
        wait for the host.
        """
        with constant_weights(self._model):
            yield from self._outputs(batches)

    def _outputs(self, batches: Iterable[Batch]) -> Iterator[tuple[Batch, Outputs]]:
        unchecked: tuple[Batch, Outputs, Tensor] | None = None
        for batch in batches:
            if batch.valid == 0:
                continue
            with self._precision.evaluation():
                image = self._precision.images(batch.image, training=False)
                outputs = first_rows(self._forward(self._model, image), batch.valid)
            if not self._precision.may_overflow:
                yield batch, outputs
                continue
            if unchecked is not None:
                yield self._checked(*unchecked)
            unchecked = batch, outputs, _is_finite(outputs)
        if unchecked is not None:
            yield self._checked(*unchecked)

    def _checked(self, batch: Batch, outputs: Outputs, finite: Tensor) -> tuple[Batch, Outputs]:
        if bool(finite):
            return batch, outputs
        self.recomputed += 1
        if self._exact is None:
            self._exact = _in_float32(self._model)
        return batch, first_rows(self._exact(batch.image.astype("float32")), batch.valid)


def _is_finite(outputs: Outputs) -> Tensor:
    tensors = outputs.values() if isinstance(outputs, dict) else (outputs,)
    return paddle.stack([paddle.isfinite(tensor).all() for tensor in tensors]).all()


def _in_float32(model: nn.Layer) -> nn.Layer:
    """Returns the model itself if all its weights are float32, else a copy with float32 weights."""
    if all(weight.dtype == paddle.float32 for weight in model.parameters()):
        return model
    return copy.deepcopy(model).to(dtype="float32")
