"""Runs the trained model of a checkpoint, in the same precision as in evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
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
from ppcls.arch.fused.folded import fold
from ppcls.arch.kernels.capture import find_capture_obstacle
from ppcls.arch.kernels.errors import KernelsUnavailableError
from ppcls.arch.layers.reparameterize import reparameterize
from ppcls.data.transforms.specs.chain import split_chain
from ppcls.deploy.in_graph.layer import PreprocessingLayer
from ppcls.deploy.models.description import Activation, ModelDescription
from ppcls.deploy.models.gpu.pinned_memory import PinnedBuffer
from ppcls.deploy.models.gpu.pixel_table import use_table
from ppcls.deploy.models.rejection import ClassMeans, energy, read_means
from ppcls.engine.core.compiled import measured
from ppcls.engine.core.networks import Losses, build_network, read_inferred
from ppcls.engine.core.precision import Precision
from ppcls.engine.core.settings import ExecutionSettings
from ppcls.engine.cuda_graph.graph import STREAM_LOCK, GraphCapture
from ppcls.engine.cuda_graph.graphed_forward import GraphedForward
from ppcls.engine.evaluation.forward import Forward, run_model
from ppcls.errors import UserError
from ppcls.files import print_error
from ppcls.outputs import FEATURES, LOGITS, Outputs, map_outputs
from ppcls.runtime.start import Runtime
from ppcls.weights.files import fill_model, non_finite_names


class L2Normalize(nn.Layer):  # type: ignore[misc]
    """Layer that scales embeddings to length 1, as in evaluation."""

    def forward(self, outputs: Outputs) -> Tensor:
        """Returns the embeddings of length 1, [B, D]."""
        return F.normalize(outputs[FEATURES], axis=1)


_SCORES = "scores"  # what `_Scoring` adds to the outputs of the network
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
        UserError: The weights cannot be read or are those of another model, or the network does not fit into
            memory.
    """
    try:
        model = build_network(arch)
    except MemoryError:
        raise UserError(
            f"{weights}: there is not enough memory for the network {arch.exported.name}; if its weights are "
            "much smaller, correct the sizes in Arch, else use a machine with more memory"
        ) from None
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


class HeadInput:
    """Stores the input of the last linear layer of a network, the features of the images.

    Args:
        model: Network, whose last linear layer gets a hook.
        classes: Number of classes.
        weights: File or folder of the weights, for messages.

    Raises:
        UserError: The network has no linear layer that returns the classes.
    """

    def __init__(self, model: nn.Layer, classes: int, weights: Path) -> None:
        layers = [layer for layer in model.sublayers(include_self=True) if isinstance(layer, nn.Linear)]
        heads = [layer for layer in layers if layer.weight.shape[1] == classes]
        if not heads:
            raise UserError(
                f"{weights}: the score distance needs a network whose last layer is linear, with {classes} "
                "outputs; use --score energy"
            )
        self._features: Tensor | None = None
        heads[-1].register_forward_pre_hook(self._store)

    def _store(self, _layer: nn.Layer, inputs: tuple[Tensor, ...]) -> None:
        self._features = inputs[0]

    def take(self) -> NDArray[np.float32]:
        """Returns the features of the last call of the network, [B, D] float32."""
        features = self._features
        assert features is not None  # the network has run
        self._features = None
        values: NDArray[np.float32] = features.astype("float32").numpy()
        return values.reshape(len(values), -1)


@dataclass(frozen=True)
class TrainedOutputs:
    """Outputs of a trained classifier for a batch.

    Attributes:
        probabilities: Probabilities of the classes, [B, C] float32.
        logits: Logits, divided by the temperature, [B, C] float32.
        features: Input of the last layer, [B, D] float32; None if it was not requested.
    """

    probabilities: NDArray[Any]
    logits: NDArray[Any]
    features: NDArray[Any] | None


class _Scoring(nn.Layer):  # type: ignore[misc]
    """All work of a batch on the device, which one CUDA graph can contain.

    Args:
        model: Trained network.
        precision: Precision of the forward pass.
        preparation: Layer that prepares 8-bit pixels; None if the images are prepared.
        activation: Layer that converts the outputs of the network to scores or embeddings.
    """

    def __init__(
        self, model: nn.Layer, precision: Precision, preparation: nn.Layer | None, activation: nn.Layer
    ) -> None:
        super().__init__()
        self._model = model
        self._precision = precision
        self._preparation = preparation
        self._activation = activation

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        """Returns the scores or embeddings, and the outputs of the network by name, all in float32."""
        if self._preparation is not None:
            images = self._preparation(images)  # in float32, as on a CPU
        images = self._precision.images(images, training=False)
        outputs = map_outputs(run_model(self._model, images), lambda output: output.astype("float32"))
        named = outputs if isinstance(outputs, dict) else {LOGITS: outputs}
        return {**named, _SCORES: self._activation(outputs)}


class TrainedModel:
    """An `InferenceModel` that runs the trained model of a checkpoint.

    Args:
        model: Trained network, see `load_network`.
        precision: Precision of the forward pass. Casts the weights of the network.
        settings: Whether fused kernels and CUDA graphs are used.
        description: Description of the model. Its ``in_graph`` can be false or ``normalize``.
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
        self._weights = weights
        self._forward: Forward = run_model
        self._buffer: PinnedBuffer | None = None
        self._runtime = runtime
        self._lock = nullcontext() if runtime.device_id is None else STREAM_LOCK
        self._temperature = description.Output.temperature
        self._classes = description.width
        self._head: HeadInput | None = None
        fused = False
        if runtime.device_id is not None:
            fused = settings.fused_kernels is True and self._fuse(runtime.device)
            self._buffer = PinnedBuffer()
            if settings.cuda_graph is not False and measured() and find_capture_obstacle(model) is None:
                self._forward = GraphedForward(GraphCapture(tries=True))
        preparation = self._build_preparation(description, fused=fused)
        activation = build_activation(description.Output.activation, description.Output.temperature)
        self._scoring = _Scoring(self._model, self._precision, preparation, activation)
        self._scoring.eval()
        self._rule = description.Rejection
        self._means: ClassMeans | None = None
        if self._rule is not None and self._rule.score == "distance":
            self._means = read_means(weights, self._classes)
            self.collect_features()

    def collect_features(self) -> None:
        """Lets `outputs` return features.

        Raises:
            UserError: The network has no linear last layer.
        """
        self._head = HeadInput(self._model, self._classes, self._weights)
        self._forward = run_model  # a replayed CUDA graph would not call the hook

    def join(self, images: Sequence[NDArray[Any]]) -> NDArray[Any]:
        """See `ppcls.deploy.predictor.JoiningModel`."""
        return np.stack(images) if self._buffer is None else self._buffer.join(images)

    def run(self, images: Any) -> NDArray[Any]:
        """See `ppcls.deploy.predictor.InferenceModel`."""
        if self._rule is None or not self._rule.needs_output:
            answers: NDArray[Any] = self._run_images(images)[0]
            return answers
        outputs = self.outputs(images)
        if self._means is None:
            scores = energy(outputs.logits)
        else:
            assert outputs.features is not None  # see collect_features
            scores = self._means.score(outputs.features)
        column = scores.astype(outputs.probabilities.dtype)[:, None]
        return np.concatenate([outputs.probabilities, column], axis=1)

    def outputs(self, images: Any) -> TrainedOutputs:
        """Returns all outputs of a classifier; see `run`."""
        probabilities, outputs = self._run_images(images)
        features = None if self._head is None else self._head.take()
        return TrainedOutputs(probabilities, outputs[LOGITS].numpy() / self._temperature, features)

    @paddle.no_grad()  # type: ignore[untyped-decorator]
    def _run_images(self, images: Any) -> tuple[NDArray[Any], dict[str, Tensor]]:
        """Returns the scores or embeddings, and all outputs of `_Scoring`."""
        with self._lock, self._runtime.selected():
            if self._buffer is not None and isinstance(images, np.ndarray):
                images = self._buffer.send(np.ascontiguousarray(images))
            tensor = images if isinstance(images, paddle.Tensor) else paddle.to_tensor(images)
            with self._precision.evaluation():
                outputs = self._run(tensor)
            scores: NDArray[Any] = outputs[_SCORES].numpy()
        return scores, outputs

    def _fuse(self, device: Literal["cpu", "gpu"]) -> bool:
        """Uses the fused kernels of the training run, if this machine supports them, and returns that."""
        try:
            fuse(self._model, device)
        except KernelsUnavailableError as error:
            print_error(f"warning: {self._weights}: runs without the fused kernels: {error}")
            return False
        fold(self._model)
        return True

    def _build_preparation(self, description: ModelDescription, *, fused: bool) -> nn.Layer | None:
        """Returns the layer that prepares 8-bit pixels; None if the images are prepared."""
        if not description.PreProcess.in_graph:
            return None
        contained = split_chain(description.PreProcess.transform_ops)[1]
        preparation = PreprocessingLayer(contained)
        if not fused:
            return preparation
        dtype = self._precision.images(paddle.zeros([1]), training=False).dtype
        return use_table(preparation, dtype)

    def _run(self, images: Tensor) -> dict[str, Tensor]:
        try:
            outputs = self._forward(self._scoring, images)
        except UserError as error:
            print_error(f"warning: {self._weights}: runs operator by operator: {error}")
            self._forward = run_model
            outputs = run_model(self._scoring, images)
        assert isinstance(outputs, dict)  # see _Scoring
        return outputs
