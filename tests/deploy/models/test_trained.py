"""Trained models on a GPU, which run forward passes as CUDA graphs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import paddle
import pytest
from small_classifier import config_tree, write_config, write_image, write_weights

from ppcls.data.transforms.base import Transform
from ppcls.data.transforms.numpy_ops import run_on_pixels
from ppcls.data.transforms.specs import DecodeImage, NormalizeImage, ResizeImage, ToCHWImage
from ppcls.data.transforms.specs.chain import plan_chain, split_chain
from ppcls.deploy.models.description import describe_model
from ppcls.deploy.models.source import need_infer
from ppcls.deploy.models.trained import TrainedModel, load_network
from ppcls.deploy.predictor import Predictor
from ppcls.engine.core.precision import build_precision
from ppcls.engine.evaluation.forward import run_model
from ppcls.errors import UserError
from ppcls.recipe.load import load_config
from ppcls.runtime.start import Runtime

RANDOM = np.random.default_rng(0)


def load(
    folder: Path,
    runtime: Runtime,
    *overrides: str,
    chain: list[Transform] | None = None,
    pixels: bool = False,
) -> TrainedModel:
    weights = folder / "model.safetensors"
    if not weights.exists():
        write_weights(weights)
    config = load_config(write_config(folder / "config.yaml", config_tree(weights, None)), overrides)
    infer = need_infer(config.Infer)
    infer = infer if chain is None else infer.model_copy(update={"transforms": tuple(chain)})
    description = describe_model(config.Arch, infer, None)
    description = description.with_pixel_input("normalize") if pixels else description
    network = load_network(config.Arch, config.Loss.Train, weights)
    precision = build_precision(config.AMP, runtime.device)
    return TrainedModel(network, precision, config.Global, description, weights, runtime)


CHAINS: dict[str, list[Transform]] = {
    "usual": [DecodeImage(), ResizeImage(size=(32, 32)), NormalizeImage(), ToCHWImage()],
    "BGR": [DecodeImage(to_rgb=False), ResizeImage(size=(32, 32)), NormalizeImage(), ToCHWImage()],
    "float16": [DecodeImage(), ResizeImage(size=(32, 32)), NormalizeImage(output_fp16=True), ToCHWImage()],
}


@pytest.mark.parametrize("amp", [[], ["AMP.level=O1", "AMP.dtype=bfloat16"]], ids=["float32", "O1"])
@pytest.mark.parametrize("name", CHAINS)
def test_model_that_normalizes_pixels_returns_the_same_scores(
    tmp_path: Path, name: str, amp: list[str]
) -> None:
    chain = CHAINS[name]
    plain = load(tmp_path, Runtime(), *amp, chain=chain)
    normalizing = load(tmp_path, Runtime(), *amp, chain=chain, pixels=True)
    photo = RANDOM.integers(0, 256, (45, 52, 3), np.uint8)
    pixels = run_on_pixels(plan_chain(split_chain(chain)[0], "HWC"), photo)
    prepared = run_on_pixels(plan_chain(chain, "CHW"), photo)
    assert (pixels.dtype, pixels.shape) == (np.uint8, (32, 32, 3))
    # On a CPU, Paddle 2.6 cuts off the digits that float16 lacks, and NumPy rounds.
    allowed = 1e-4 if name == "float16" and paddle.__version__.startswith("2.") else 0.0
    np.testing.assert_allclose(normalizing.run(pixels[None]), plain.run(prepared[None]), rtol=0, atol=allowed)


def test_trained_model_that_cannot_be_captured_runs_operator_by_operator(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = load(tmp_path, Runtime())
    images = RANDOM.standard_normal((2, 3, 32, 32)).astype(np.float32)
    expected = model.run(images)

    def fail(*_: object) -> None:
        raise UserError("reason")

    model._forward = fail  # type: ignore[assignment]
    np.testing.assert_array_equal(model.run(images), expected)
    assert capsys.readouterr().err == (
        f"warning: {tmp_path / 'model.safetensors'}: runs operator by operator: reason\n"
    )
    assert model._forward is run_model


@pytest.mark.gpu
@pytest.mark.parametrize(
    "overrides", [[], ["Global.fused_kernels=True", "Arch.data_format=NHWC"]], ids=["NCHW", "fused"]
)
def test_trained_model_on_a_gpu_replays_equal_outputs(
    tmp_path: Path, overrides: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    import paddle

    gpu, device = Runtime(device="gpu", device_id=0), "Global.device=gpu"
    eager = load(tmp_path, gpu, device, "Global.cuda_graph=False", *overrides)
    graphed = load(tmp_path, gpu, device, *overrides)
    for round_number in range(6):
        others = [paddle.randn([1 << 20 << round_number]) for _ in range(4)]  # could overwrite the graph
        for size in (1, 7, 16, 3, 5):
            images = RANDOM.standard_normal((size, 3, 32, 32)).astype(np.float32)
            images = np.ascontiguousarray(images.transpose(0, 2, 3, 1)) if overrides else images
            np.testing.assert_allclose(graphed.run(images), eager.run(images), rtol=1e-3, atol=1e-5)
        del others
    assert len(graphed._forward._graphs) == 4
    assert "operator by operator" not in capsys.readouterr().err


@pytest.mark.gpu
@pytest.mark.parametrize("order", [("cpu", "gpu"), ("gpu", "cpu")])
def test_models_on_two_devices_answer_in_one_process(tmp_path: Path, order: tuple[str, str]) -> None:
    weights = write_weights(tmp_path / "weights.safetensors")
    config = write_config(tmp_path / "config.yaml", config_tree(weights, None))
    predictors = [Predictor(config, overrides=[f"Global.device={device}"]) for device in order]
    image = write_image(tmp_path / "image.png", 0).read_bytes()
    scores = [[predictor.predict([image])[0].scores for predictor in predictors] for _ in range(3)]
    np.testing.assert_allclose(np.ravel(scores), np.tile(scores[0][0], 6), rtol=1e-2)
