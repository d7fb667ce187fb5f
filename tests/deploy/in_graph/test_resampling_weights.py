from __future__ import annotations

from pathlib import Path

import numpy as np
import paddle
import pytest

from ppcls.data.transforms.specs import DecodeImage, ResizeImage
from ppcls.deploy.export.formats import convert_to_onnx
from ppcls.deploy.in_graph.layer import PreprocessingLayer
from ppcls.deploy.in_graph.resampling_weights import bicubic_weights, bilinear_weights, lanczos_weights

WEIGHTS = {"bilinear": bilinear_weights, "bicubic": bicubic_weights, "lanczos": lanczos_weights}
SIZES = ((512, 256), (511, 256), (65_000, 224), (7, 300), (333, 100), (1, 5), (1423, 906), (8000, 7))


def pillow_filter(x: np.ndarray, name: str) -> np.ndarray:
    if name == "bilinear":
        return np.maximum(1 - x, 0)
    if name == "lanczos":
        return np.where(x < 3, np.sinc(x) * np.sinc(x / 3), 0)
    near = (1.5 * x - 2.5) * x * x + 1
    far = (((x - 5) * x + 8) * x - 4) * -0.5
    return np.where(x < 1, near, np.where(x < 2, far, 0))


@pytest.mark.parametrize("name", WEIGHTS)
@pytest.mark.parametrize(("length", "side"), SIZES)
def test_weights_in_float32_are_those_of_pillow_in_float64(name: str, length: int, side: int) -> None:
    width = 2 * max(length, side)
    new = np.arange(min(side, 40))[:, None]
    window = int(7 * max(length, side) / side) + 3
    first = np.maximum((2 * new + 1) * length // (2 * side) - window // 2, 0)
    source = first + np.arange(window)
    distance = np.abs((2 * new + 1) * length - (2 * source + 1) * side)
    exists = source < length
    exact = pillow_filter(distance / width, name) * exists
    exact /= exact.sum(axis=1, keepdims=True)
    rounded = np.sign(exact) * np.floor(np.abs(exact) * 2**22 + 0.5)
    used = paddle.to_tensor(exists.astype("float32"))
    actual = WEIGHTS[name](paddle.to_tensor(distance), paddle.to_tensor([width]), used).numpy()
    np.testing.assert_array_equal(actual, rounded)


def test_graph_that_resizes_contains_no_float64(tmp_path: Path) -> None:
    import onnx

    chain = [
        DecodeImage(),
        ResizeImage(resize_short=36, backend="pil", interpolation="bicubic"),
        ResizeImage(size=(20, 50), backend="pil"),
        ResizeImage(size=(50, 20), backend="pil", interpolation="lanczos"),
        ResizeImage(size=(32, 32)),
    ]
    spec = paddle.static.InputSpec([None, None, None, 3], "uint8", name="x")
    network = paddle.jit.to_static(PreprocessingLayer(chain), input_spec=[spec], full_graph=True)
    data = convert_to_onnx(lambda stem: paddle.jit.save(network, str(stem)), tmp_path, "preprocessing")
    model = onnx.load_from_string(data)
    # Paddle's arange has its limits as float64 constants; nothing is computed with them.
    casts = [each.i for node in model.graph.node for each in node.attribute if each.name == "to"]
    assert onnx.TensorProto.FLOAT in casts
    assert onnx.TensorProto.DOUBLE not in casts
