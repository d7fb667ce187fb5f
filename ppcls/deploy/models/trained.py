"""Runs the trained model of a checkpoint, in the same precision as in evaluation."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any, Literal

import numpy as np
import paddle
from numpy.typing import NDArray
from paddle import Tensor, nn
from paddle.nn import functional as F

from ppcls.arch.distillation_model import AnyArch
from ppcls.arch.embedding import EmbeddingNetwork
from ppcls.arch.fuse import fuse
from ppcls.arch.kernels.errors import KernelsUnavailableError
from ppcls.arch.layers.reparameterize import reparameterize
from ppcls.deploy.models.description import Activation, ModelDescription
from ppcls.deploy.models.pinned_memory import PinnedBuffer
from ppcls.engine.core.compiled import measured
from ppcls.engine.core.networks import Losses, build_network, read_inferred
from ppcls.engine.core.precision import Precision
from ppcls.engine.core.settings import ExecutionSettings
from ppcls.engine.cuda_graph.graph import STREAM_LOCK, GraphCapture
from ppcls.engine.cuda_graph.graphed_forward import GraphedForward
from ppcls.engine.evaluation.forward import Forward, run_model
from ppcls.errors import UserError
from ppcls.files import print_error
from ppcls.outputs import FEATURES, Outputs, map_outputs
from ppcls.runtime.start import Runtime
from ppcls.weights.files import fill_model, non_finite_names


class L2Normalize(nn.Layer):  # type: ignore[misc]
    """Layer that scales embeddings to length 1, as in evaluation."""

    def forward(self, outputs: Outputs) -> Tensor:
        """Returns the embeddings of length 1, [B, D]."""
        return F.normalize(outputs[FEATURES], axis=1)


_ACTIVATIONS: dict[Activation, type[nn.Layer]] = {
    "softmax": nn.Softmax,
    "sigmoid": nn.Sigmoid,
    "l2_norm": L2Normalize,
    "none": nn.Identity,
}


def load_network(arch: AnyArch, losses: Losses, weights: Path) -> nn.Layer:
    """Returns the trained network for inference.

    Parallel branches that are equivalent to one convolution are merged. The head of an embedding model is
    removed, because it only classifies the training classes.

    Args:
        arch: Section ``Arch`` of the config.
        losses: Losses of training, whose weights a checkpoint contains too.
        weights: Weights in any form that `ppcls.weights.files.read_weights` accepts.

    Raises:
        UserError: The weights cannot be read, or are those of another model.
    """
    model = build_network(arch)
    arrays = read_inferred(arch, losses, weights)
    if wrong := non_finite_names(arrays):
        more = f" and {len(wrong) - 1} more" if len(wrong) > 1 else ""
        text = f"warning: {weights}: NaN or infinite weights in {wrong[0]}{more}; predictions may be wrong"
        print_error(text)
    fill_model(model, arrays, weights)
    reparameterize(model)
    if isinstance(model, EmbeddingNetwork):
        model.head = None
    return model


class DividedLogits(nn.Layer):  # type: ignore[misc]
    """Layer that divides logits by a temperature."""

    def __init__(self, temperature: float) -> None:
        super().__init__()
        self._temperature = temperature

    def forward(self, logits: Tensor) -> Tensor:
        """Returns the divided logits, [B, C]."""
        return logits / self._temperature


def build_activation(activation: Activation, temperature: float = 1.0) -> nn.Layer:
    """Returns the layer that converts the outputs of a network to scores or embeddings.

    Args:
        activation: Name of the function.
        temperature: Divisor of the logits, see ``ppcls calibrate``.
    """
    layer = _ACTIVATIONS[activation]()
    return layer if temperature == 1.0 else nn.Sequential(DividedLogits(temperature), layer)


class TrainedModel:
    """An `InferenceModel` that runs the trained model of a checkpoint.

    Args:
        model: Trained network, see `load_network`.
        precision: Precision of the forward pass. Casts the weights of the network.
        settings: Whether fused kernels and CUDA graphs are used.
        description: Description of the model.
        weights: File or folder of the weights, which warnings name.
        runtime: Device to run on.

    Attributes:
        engine: Name of the engine, with its version, device and precision.

    Raises:
        UserError: The device does not support the precision.
    """

    def __init__(
        self,
        model: nn.Layer,
        precision: Precision,
        settings: ExecutionSettings,
        description: ModelDescription,
        weights: Path,
        runtime: Runtime,
    ) -> None:
        self._precision = precision
        self.engine = f"Paddle {paddle.__version__} ({runtime.device.upper()}, {self._precision.name})"
        self._model = model
        self._precision.prepare(self._model, None)
        self._model.eval()
        self._activation = build_activation(description.Output.activation, description.Output.temperature)
        self._weights = weights
        self._forward: Forward = run_model
        self._buffer: PinnedBuffer | None = None
        self._lock = nullcontext() if runtime.device_id is None else STREAM_LOCK
        if settings.fused_kernels is True:
            self._fuse(runtime.device)
        if runtime.device_id is not None:
            self._buffer = PinnedBuffer()
            if settings.cuda_graph is not False and measured():
                self._forward = GraphedForward(GraphCapture(tries=True))

    @paddle.no_grad()  # type: ignore[untyped-decorator]
    def run(self, images: Any) -> NDArray[Any]:
        """See `ppcls.deploy.predictor.InferenceModel`."""
        with self._lock, self._precision.evaluation():
            if self._buffer is not None and isinstance(images, np.ndarray):
                images = self._buffer.fill(np.ascontiguousarray(images))
            tensor = images if isinstance(images, paddle.Tensor) else paddle.to_tensor(images)
            tensor = self._precision.images(tensor, training=False)
            outputs = map_outputs(self._run(tensor), lambda output: output.astype("float32"))
            answers: NDArray[Any] = self._activation(outputs).numpy()
        return answers

    def _fuse(self, device: Literal["cpu", "gpu"]) -> None:
        """Uses the fused kernels of the training run, unless this machine does not support them."""
        try:
            fuse(self._model, device)
        except KernelsUnavailableError as error:
            print_error(f"warning: {self._weights}: runs without the fused kernels: {error}")

    def _run(self, images: Tensor) -> Outputs:
        try:
            return self._forward(self._model, images)
        except UserError as error:
            print_error(f"warning: {self._weights}: runs operator by operator: {error}")
            self._forward = run_model
            return run_model(self._model, images)
