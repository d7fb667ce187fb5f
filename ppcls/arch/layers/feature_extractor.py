"""What layers within a model give, beside what the model gives."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Literal

from paddle import Tensor, nn

from ppcls.errors import UserError

_INDEX = re.compile(r"\[(\d+)\]")


class FeatureLayerError(UserError):
    """A model has no such layer, or does not use it as one."""


class FeatureExtractor:
    """A model whose layers' outputs are handed out with its own.

    Args:
        model: Is hooked, and works as before when it is called by itself.
        layers: Names as PaddleClas's ``return_patterns`` have them, such as ``blocks[2].conv1``.
        data_format: Layout within the model.

    Raises:
        FeatureLayerError: There is no such layer.
    """

    def __init__(
        self, model: nn.Layer, layers: Sequence[str], data_format: Literal["NCHW", "NHWC"] = "NCHW"
    ) -> None:
        self.model, self._layers, self._nhwc = model, tuple(layers), data_format == "NHWC"
        self._given: dict[str, Tensor] | None = None  # of the call that is under way
        known = dict(model.named_sublayers())
        for layer in self._layers:
            path = _INDEX.sub(r".\1", layer)
            if path not in known:
                parent = path.rpartition(".")[0]
                near = [name for name in known if name.rpartition(".")[0] == parent]
                raise FeatureLayerError(
                    f"{type(model).__name__} has no layer {layer!r}; there are: {', '.join(near)}"
                )
            known[path].register_forward_post_hook(self._keep(layer))

    def __call__(self, image: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Returns the logits, and by the layers' names what each gave last: [B, ...], maps as [B, C, H, W].

        Raises:
            FeatureLayerError: The model did not call a layer by itself, or this gave no tensor.
        """
        self._given = {}
        try:
            logits, given = self.model(image), self._given
        finally:
            self._given = None
        for layer in self._layers:
            if not isinstance(given.get(layer), Tensor):
                kind = type(self.model).__name__
                raise FeatureLayerError(
                    f"{kind} gives nothing of its layer {layer!r} by itself; take one around it"
                )
        return logits, {layer: self._laid_out(given[layer]) for layer in self._layers}

    def _keep(self, layer: str) -> Any:
        def hook(_layer: nn.Layer, _inputs: Any, output: Any) -> None:
            if self._given is not None:
                self._given[layer] = output

        return hook

    def _laid_out(self, given: Tensor) -> Tensor:
        return given.transpose([0, 3, 1, 2]) if self._nhwc and given.ndim == 4 else given
