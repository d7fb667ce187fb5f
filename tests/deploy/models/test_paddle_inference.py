from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
import paddle
import pytest
from paddle import nn

from ppcls.deploy.models.description import ModelDescription, Precision
from ppcls.deploy.models.paddle_inference import PaddleInferenceModel, find_precision
from ppcls.deploy.models.source import find_program
from ppcls.runtime.start import Runtime


class Averaging(nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 3)

    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        return self.fc(x.mean([2, 3]))


class Windows(nn.Layer):
    """Splits images into windows as Swin does, and maps their pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 3)

    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        x = x.transpose([0, 2, 3, 1]).reshape([-1, 2, 4, 2, 4, 3])
        x = self.fc(x.transpose([0, 1, 3, 2, 4, 5]).reshape([-1, 16, 3]))
        return x.reshape([-1, 64, 3]).max(1)


@pytest.mark.parametrize("network", [Averaging, Windows])
def test_paddle_inference_returns_the_outputs_and_keeps_standard_output_clean(
    tmp_path: Path, network: type[nn.Layer], capfd: pytest.CaptureFixture[str]
) -> None:
    model = network()
    model.eval()
    spec = paddle.static.InputSpec([-1, 3, 8, 8], "float32", "x")
    paddle.jit.save(
        paddle.jit.to_static(model, input_spec=[spec], full_graph=True), str(tmp_path / "inference")
    )
    chain = [{"DecodeImage": None}, {"ResizeImage": {"size": 8}}, {"NormalizeImage": None}]
    description = ModelDescription.model_validate(
        {
            "Global": {"model_name": "Averaging"},
            "Input": {"name": "x", "shape": [-1, 3, 8, 8], "dtype": "float32", "layout": "NCHW"},
            "PreProcess": {"transform_ops": [*chain, {"ToCHWImage": None}]},
            "Output": {"shape": [-1, 3], "dtype": "float32", "activation": "l2_norm"},
            "PostProcess": None,
        }
    )
    capfd.readouterr()
    inferring = PaddleInferenceModel(find_program(tmp_path), description, Runtime())
    images = np.arange(2 * 3 * 8 * 8, dtype=np.float32).reshape(2, 3, 8, 8)
    expected = model(paddle.to_tensor(images)).numpy()
    for _ in range(2):
        np.testing.assert_allclose(inferring.run(images), expected, rtol=1e-4, atol=1e-4)
    assert capfd.readouterr().out == ""


@pytest.mark.parametrize(
    ("requested", "device_id", "capability", "expected"),
    [
        ("float16", None, None, "float32"),
        ("float16", 0, (7, 0), "float16"),
        ("bfloat16", 0, (7, 5), "float32"),
        ("bfloat16", 0, (8, 0), "bfloat16"),
        ("float32", 0, (9, 0), "float32"),
    ],
)
def test_find_precision_falls_back_to_float32_without_kernels(
    requested: Precision,
    device_id: int | None,
    capability: tuple[int, int] | None,
    expected: Precision,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(paddle.device.cuda, "get_device_capability", lambda _device: capability)
    device: Literal["cpu", "gpu"] = "cpu" if device_id is None else "gpu"
    assert find_precision(requested, Runtime(device=device, device_id=device_id)) == expected
