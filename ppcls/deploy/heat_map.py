"""Heat maps of the pixels that support a class: Grad-CAM, and attention rollout for ViT and DeiT."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import paddle
from numpy.typing import NDArray
from paddle import Tensor, nn

from ppcls.arch.families.swin_transformer import SwinTransformer
from ppcls.arch.families.vision_transformer import VisionTransformer
from ppcls.arch.layers.transformer import SelfAttention
from ppcls.data.transforms.numpy_ops import run
from ppcls.data.transforms.specs import NormalizeImage, plan_chain
from ppcls.deploy.models.source import ModelSource
from ppcls.deploy.models.trained import load_network
from ppcls.errors import UserError

_Hook = Callable[[nn.Layer, Any, Any], None]
_NO_DRAWS = np.zeros(0, np.float32)


class HeatMapWriter:
    """Writes images with heat maps over them.

    Args:
        source: A trained model that returns classes.
        folder: Folder to write to, which must be new or empty.

    Attributes:
        model: The model.

    Raises:
        UserError: If the model is exported or returns embeddings, or if the folder is not empty.
    """

    def __init__(self, source: ModelSource, folder: Path) -> None:
        if source.config is None or source.description.postprocess is None:
            raise UserError(f"{source.file}: --explain needs a checkpoint of a model that returns classes")
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if any(folder.iterdir()):
                raise UserError(f"--explain {folder}: expected a new or empty folder, but it has files")
        except OSError as error:
            raise UserError(f"--explain {folder}: cannot be written: {error.strerror}") from None
        self.model, self._folder = load_network(source.config, source.file), folder
        self.model.eval()
        self._by_rollout = isinstance(self.model, VisionTransformer)
        channels_last = isinstance(self.model, SwinTransformer) or source.config.Arch.data_format == "NHWC"
        self._spatial = [1, 2] if channels_last else [2, 3]
        self._chain = source.description.chain()
        specs = source.description.PreProcess.transform_ops
        self._pixels = plan_chain([spec for spec in specs if not isinstance(spec, NormalizeImage)], "HWC")

    def prepare(self, data: bytes) -> NDArray[Any]:
        """Returns the input of the model for one image, with a batch axis."""
        return np.ascontiguousarray(run(self._chain, data, _NO_DRAWS)[None], np.float32)

    def write(self, file: Path, class_id: int) -> Path:
        """Writes the heat map of one class over an image, as the model sees the image.

        Args:
            file: The image.
            class_id: The class.

        Returns:
            The PNG file.

        Raises:
            UserError: If the model has no suitable layer, or if the file cannot be written.
        """
        data = file.read_bytes()
        image = self.prepare(data)
        heat = attention_rollout(self.model, image) if self._by_rollout else self.grad_cam(image, class_id)
        pixels = run(self._pixels, data, _NO_DRAWS)
        colors = cv2.applyColorMap(
            np.uint8(255 * cv2.resize(heat, pixels.shape[1::-1], interpolation=cv2.INTER_CUBIC).clip(0, 1)),
            cv2.COLORMAP_TURBO,
        )
        overlaid = cv2.addWeighted(cv2.cvtColor(pixels, cv2.COLOR_RGB2BGR), 0.5, colors, 0.5, 0)
        path, number = self._folder / f"{file.stem}.png", 1
        while path.exists():
            path, number = self._folder / f"{file.stem}_{number + 1}.png", number + 1
        try:
            path.write_bytes(cv2.imencode(".png", overlaid)[1].tobytes())
        except OSError as error:
            path.unlink(missing_ok=True)
            raise UserError(f"{path}: cannot be written: {error.strerror}") from None
        return path

    def grad_cam(self, image: NDArray[Any], class_id: int) -> NDArray[Any]:
        """Returns the heat map [h, w] of the last feature map, 0..1 (Selvaraju et al. 2017).

        Args:
            image: A prepared image with a batch axis.
            class_id: The class.

        Raises:
            UserError: If the model has no feature map that leads to the logits.
        """
        feature_maps: list[Tensor] = []

        def keep_feature_map(_layer: nn.Layer, _inputs: Any, output: Any) -> None:
            if not isinstance(output, Tensor) or output.ndim != 4:
                return
            if min(output.shape[axis] for axis in self._spatial) > 1:
                feature_maps[:] = [output]

        tensor = paddle.to_tensor(image, stop_gradient=False)
        with _hooked(self.model.sublayers(), keep_feature_map):
            logits = self.model(tensor)
        if not isinstance(logits, Tensor) or not feature_maps:
            raise UserError(f"--explain: {type(self.model).__name__} has no feature map before its logits")
        (gradient,) = paddle.grad(logits[0, class_id], feature_maps, allow_unused=True)
        if gradient is None:
            raise UserError(f"--explain: the last feature map of {type(self.model).__name__} is not used")
        channels = 3 if self._spatial == [1, 2] else 1
        weights = gradient.mean(self._spatial, keepdim=True)
        heat = (weights * feature_maps[0]).sum(channels)[0]
        return _normalized(heat.clip(0).numpy())


@paddle.no_grad()  # type: ignore[untyped-decorator]
def attention_rollout(model: VisionTransformer, image: NDArray[Any]) -> NDArray[Any]:
    """Returns how much the class token attends to each patch, [h, w], 0..1 (Abnar and Zuidema 2020).

    Args:
        model: The model.
        image: A prepared image, [1, C, H, W] or [1, H, W, C].
    """
    attention: list[NDArray[Any]] = []

    def keep_attention(_drop: nn.Layer, _inputs: Any, weights: Tensor) -> None:
        attention.append(weights.numpy()[0].mean(axis=0))

    # The weights of an attention layer pass through the layer of their dropout.
    drops = [layer.attn_drop for layer in model.sublayers() if isinstance(layer, SelfAttention)]
    with _hooked(drops, keep_attention):
        model(paddle.to_tensor(image))
    rollout = np.eye(len(attention[0]))
    for weights in attention:
        rollout = (weights + np.eye(len(weights))) / 2 @ rollout
    patches = rollout[0, len(model.tokens) :]
    side = round(len(patches) ** 0.5)
    return _normalized(patches.reshape(side, -1))


@contextmanager
def _hooked(layers: Iterable[nn.Layer], hook: _Hook) -> Iterator[None]:
    """Calls a hook after each of the layers."""
    helpers = [layer.register_forward_post_hook(hook) for layer in layers]
    try:
        yield
    finally:
        for helper in helpers:
            helper.remove()


def _normalized(heat: NDArray[Any]) -> NDArray[Any]:
    """Returns a heat map whose values are 0..1, with 1 for the largest."""
    heat = heat.astype(np.float32)
    heat = heat - heat.min()
    return heat / max(float(heat.max()), 1e-12)
