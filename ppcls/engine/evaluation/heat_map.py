"""Computes heat maps of pixels that support a class: Grad-CAM, or attention rollout for transformers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import cv2
import numpy as np
import paddle
from numpy.typing import NDArray
from paddle import Tensor, nn

from ppcls.arch.families.vision_transformer import PatchTransformer
from ppcls.arch.layers.transformer import SelfAttention
from ppcls.data.transforms.base import ImageState, Transform
from ppcls.data.transforms.numpy_ops import run
from ppcls.data.transforms.specs import NormalizeImage, plan_chain
from ppcls.engine.evaluation.report_inputs import to_uint8
from ppcls.errors import UserError

_Hook = Callable[[nn.Layer, Any, Any], None]
_NO_DRAWS = np.zeros(0, np.float32)


class HeatMaps:
    """Computes heat maps of one model for images.

    Args:
        model: A classifier with its trained weights.
        transforms: Transforms of the evaluation. The first one decodes the bytes of an image file.
        layout: Layout of the model's input, ``NCHW`` or ``NHWC``.

    Attributes:
        model: The model.
        chain: Transforms that make the input of the model from the bytes of an image file.
        pixel_chain: The same without normalization, for the pixels that are shown.

    Raises:
        UserError: A transform is random, so the heat map would not show the evaluated pixels.
    """

    def __init__(self, model: nn.Layer, transforms: Sequence[Transform], layout: str) -> None:
        if random := [spec.kind for spec in transforms if spec.draws]:
            raise UserError(
                f"heat maps need deterministic transforms, but these are random: {', '.join(random)}; "
                "remove them from transform_ops"
            )
        self.model = model
        model.eval()
        self._by_rollout = isinstance(model, PatchTransformer)
        channels_last = getattr(model, "channels_last", False) or layout == "NHWC"
        self._spatial = [1, 2] if channels_last else [2, 3]
        self.chain = plan_chain(transforms, "CHW" if layout == "NCHW" else "HWC")
        shown = [spec for spec in transforms if not isinstance(spec, NormalizeImage)]
        self.pixel_chain = plan_chain(shown, "HWC")
        self._state = ImageState()
        for spec in shown:
            self._state = spec.after(self._state)

    def prepare(self, data: bytes | memoryview) -> NDArray[Any]:
        """Returns the input of the model for one image, [1, C, H, W] or [1, H, W, C] float32.

        Args:
            data: Bytes of the image file.

        Raises:
            ValueError: The image cannot be decoded.
        """
        return np.ascontiguousarray(run(self.chain, data, _NO_DRAWS)[None], np.float32)

    def overlay(self, data: bytes | memoryview, class_id: int) -> NDArray[np.uint8]:
        """Returns the transformed image blended with its heat map, RGB [H, W, 3] uint8.

        Args:
            data: Bytes of the image file.
            class_id: Class whose heat map is shown. Attention rollout does not depend on it.

        Raises:
            ValueError: The image cannot be decoded.
            UserError: The model has no layer that is suitable for Grad-CAM.
        """
        heat = self.compute(self.prepare(data), class_id)
        return self.blend(run(self.pixel_chain, data, _NO_DRAWS), heat)

    def compute(self, image: NDArray[Any], class_id: int) -> NDArray[Any]:
        """Returns the heat map of one image, [h, w] float32, 0..1.

        Args:
            image: Result of `prepare`.
            class_id: See `overlay`.

        Raises:
            UserError: The model has no layer that is suitable for Grad-CAM.
        """
        return attention_rollout(self.model, image) if self._by_rollout else self.grad_cam(image, class_id)

    def blend(self, pixels: NDArray[Any], heat: NDArray[Any]) -> NDArray[np.uint8]:
        """Returns an image blended with its heat map, RGB [H, W, 3] uint8.

        Args:
            pixels: Result of `pixel_chain`, [H, W, C].
            heat: Result of `compute`.
        """
        pixels = to_uint8(pixels, self._state.dtype, self._state.rgb)
        pixels = np.repeat(pixels[:, :, :1], 3, axis=2) if pixels.shape[2] < 3 else pixels[:, :, :3]
        size = pixels.shape[1::-1]
        enlarged = cv2.resize(heat, size, interpolation=cv2.INTER_CUBIC).clip(0, 1)
        colors = cv2.applyColorMap(np.uint8(255 * enlarged), cv2.COLORMAP_TURBO)
        overlaid = cv2.addWeighted(pixels, 0.5, cv2.cvtColor(colors, cv2.COLOR_BGR2RGB), 0.5, 0)
        return np.asarray(overlaid, np.uint8)

    def grad_cam(self, image: NDArray[Any], class_id: int) -> NDArray[Any]:
        """Returns the Grad-CAM of the last feature map, [h, w], 0..1 (Selvaraju et al. 2017).

        Args:
            image: Result of `prepare`.
            class_id: Class whose logit is explained.

        Raises:
            UserError: The model has no feature map, its logits do not depend on the last one, or Paddle
                can't compute their gradients.
        """
        feature_maps: list[Tensor] = []

        def keep_feature_map(_layer: nn.Layer, _inputs: Any, output: Any) -> None:
            if not isinstance(output, Tensor) or output.ndim != 4 or output.shape[0] != 1:
                return
            if min(output.shape[axis] for axis in self._spatial) > 1:
                feature_maps[:] = [output]

        tensor = paddle.to_tensor(image, stop_gradient=False)
        # Weights and heads of attention also have four axes, but are no feature maps.
        attention = [layer for layer in self.model.sublayers() if hasattr(layer, "scores")]
        others = {id(part) for layer in attention for part in layer.children()}
        layers = [layer for layer in self.model.sublayers() if id(layer) not in others]
        with _hooked(layers, keep_feature_map):
            logits = self.model(tensor)
        if not isinstance(logits, Tensor) or not feature_maps:
            raise UserError(f"heat map: {type(self.model).__name__} has no feature map before its logits")
        try:
            (gradient,) = paddle.grad(logits[0, class_id], feature_maps, allow_unused=True)
        except (RuntimeError, ValueError) as error:  # for example of an LSTM
            reason = str(error).strip().partition("\n")[0].rstrip(".")
            name = type(self.model).__name__
            raise UserError(
                f"heat map: Paddle can't compute the gradients of {name} in evaluation mode: {reason}"
            ) from error
        if gradient is None:
            raise UserError(f"heat map: {type(self.model).__name__} does not use its last feature map")
        channels = 3 if self._spatial == [1, 2] else 1
        weights = gradient.mean(self._spatial, keepdim=True)
        heat = (weights * feature_maps[0]).sum(channels)[0]
        return _normalized(heat.clip(0).numpy())


@paddle.no_grad()  # type: ignore[untyped-decorator]
def attention_rollout(model: PatchTransformer, image: NDArray[Any]) -> NDArray[Any]:
    """Returns the attention to each patch, [h, w], 0..1 (Abnar and Zuidema 2020).

    It is that of the class token, or the mean of all patches if the classifier reads these.

    Args:
        model: A vision transformer.
        image: Input of the model, [1, C, H, W] or [1, H, W, C].
    """
    attention: list[NDArray[Any]] = []

    def keep_attention(_drop: nn.Layer, _inputs: Any, weights: Tensor) -> None:
        attention.append(weights.numpy()[0].mean(axis=0))

    # The attention weights are the output of the dropout layer of each attention layer.
    drops = [layer.attn_drop for layer in model.sublayers() if isinstance(layer, SelfAttention)]
    with _hooked(drops, keep_attention):
        model(paddle.to_tensor(image))
    rollout = np.eye(len(attention[0]))
    for weights in attention:
        rollout = (weights + np.eye(len(weights))) / 2 @ rollout
    prefix = model.prefix_tokens
    patches = rollout[0, prefix:] if model.pools_first_token else rollout[prefix:, prefix:].mean(axis=0)
    side = round(len(patches) ** 0.5)
    return _normalized(patches.reshape(side, -1))


@contextmanager
def _hooked(layers: Iterable[nn.Layer], hook: _Hook) -> Iterator[None]:
    """Returns a context in which each forward pass of the layers calls ``hook``."""
    helpers = [layer.register_forward_post_hook(hook) for layer in layers]
    try:
        yield
    finally:
        for helper in helpers:
            helper.remove()


def _normalized(heat: NDArray[Any]) -> NDArray[Any]:
    """Returns the heat map scaled linearly, so that its values range from 0 to 1."""
    heat = heat.astype(np.float32)
    heat = heat - heat.min()
    return heat / max(float(heat.max()), 1e-12)
