"""Returns the outputs of inner layers of a model together with its own outputs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Literal

from paddle import Tensor, nn

from ppcls.errors import UserError
from ppcls.outputs import Outputs

_INDEX = re.compile(r"\[(\d+)\]")


class FeatureLayerError(UserError):
    """Raised when a layer is missing in a model, or when the model does not call it."""


class FeatureExtractor:
    """A model that also returns the outputs of some of its layers.

    Args:
        model: Model, whose layers get hooks. Calls of the model itself return the same as before.
        layers: Names of layers as in PaddleClas's ``return_patterns``, such as ``blocks[2].conv1``.
        data_format: Layout of the feature maps in the model.

    Raises:
        FeatureLayerError: A layer is missing in the model.
    """

    def __init__(
        self, model: nn.Layer, layers: Sequence[str], data_format: Literal["NCHW", "NHWC"] = "NCHW"
    ) -> None:
        self.model = model
        self._layers = tuple(layers)
        self._nhwc = data_format == "NHWC"
        self._features: dict[str, Tensor] | None = None  # outputs of the current call; None between calls
        known = dict(model.named_sublayers())
        for layer in self._layers:
            path = _INDEX.sub(r".\1", layer)
            if path not in known:
                parent = path.rpartition(".")[0]
                siblings = ", ".join(name for name in known if name.rpartition(".")[0] == parent)
                raise FeatureLayerError(f"{type(model).__name__} has no layer {layer!r}; known: {siblings}")
            known[path].register_forward_post_hook(self._hook(layer))

    def __call__(self, image: Tensor) -> tuple[Outputs, dict[str, Tensor]]:
        """Returns the outputs of the model, and the last output [B, ...] of each layer by name.

        Feature maps have the layout [B, C, H, W].

        Raises:
            FeatureLayerError: The model did not call a layer, or the layer's output is not a single tensor.
        """
        self._features = {}
        try:
            outputs = self.model(image)
            features = self._features
        finally:
            self._features = None
        for layer in self._layers:
            if not isinstance(features.get(layer), Tensor):
                raise FeatureLayerError(
                    f"{type(self.model).__name__} has no separate output of layer {layer!r}; "
                    "choose a layer that contains it"
                )
        return outputs, {layer: self._channels_first(features[layer]) for layer in self._layers}

    def _hook(self, layer: str) -> Any:
        def store(_layer: nn.Layer, _inputs: Any, output: Any) -> None:
            if self._features is not None:
                self._features[layer] = output

        return store

    def _channels_first(self, feature: Tensor) -> Tensor:
        return feature.transpose([0, 3, 1, 2]) if self._nhwc and feature.ndim == 4 else feature
