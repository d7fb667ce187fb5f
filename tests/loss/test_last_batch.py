"""Losses of the last batch of an epoch, which can have a single image."""

from __future__ import annotations

import numpy as np
import paddle
import pytest

from ppcls.loss.build import build_criterion
from ppcls.outputs import AUXILIARY, layer_output_name
from ppcls.registry import LOSSES

CLASSES = 4
PAIRS = {"model_name_pairs": [["Student", "Teacher"]]}
LAYER = {"s_key": "a", "t_key": "a", "student_channels": 3, "teacher_channels": 3}
SHAPES = [[3, 4, 4]]
KEYS = {
    "DistillationGTCELoss": {"model_names": ["Student"]},
    "DistillationMultiLabelLoss": {"model_names": ["Student"]},
    "DistillationRKDLoss": {**PAIRS, "student_keepkeys": ["a"], "teacher_keepkeys": ["a"]},
    "DistillationPairLoss": {**PAIRS, **LAYER, "base_loss_name": "PEFDLoss"},
    "AFDLoss": {"s_shapes": SHAPES, "t_shapes": SHAPES},
    "CenterLoss": {"num_classes": CLASSES, "feat_dim": 5},
    "PairwiseCosface": {"margin": 0.35, "gamma": 64},
}
# Their trainable layers compute the loss in the model.
LEARNED = {"DistillationPairLoss", "AFDLoss", "CenterLoss"}
SEVERAL = ("MultiLabel", "DSHSD")


def keys_of(name: str) -> dict[str, object]:
    needs_pairs = "model_name_pairs" in LOSSES[name].model_fields
    return KEYS.get(name, PAIRS if needs_pairs else {})


def outputs_of(images: int) -> dict[str, paddle.Tensor]:
    rng = np.random.default_rng(images)
    sizes = {
        **{key: [CLASSES] for key in ("logits", "Student", "Teacher", *AUXILIARY)},
        "features": [5],
        "backbone": [5],
        layer_output_name("Student", "a"): [3, 4, 4],
        layer_output_name("Teacher", "a"): [3, 4, 4],
    }
    return {
        name: paddle.to_tensor(rng.standard_normal([images, *size]).astype("float32"), stop_gradient=False)
        for name, size in sizes.items()
    }


@pytest.mark.parametrize("images", [1, 2])
@pytest.mark.parametrize("name", sorted(set(LOSSES) - LEARNED))
def test_loss_and_gradients_of_few_images_are_finite(name: str, images: int) -> None:
    spec = LOSSES[name](**keys_of(name))
    outputs = outputs_of(images)
    label = paddle.to_tensor(np.arange(images) % CLASSES)
    if spec.labels == "several":
        label = paddle.nn.functional.one_hot(label, CLASSES)
    loss = build_criterion((spec,))(outputs, label)
    assert np.isfinite(float(loss))
    loss.backward()
    gradients = [tensor.grad for tensor in outputs.values() if tensor.grad is not None]
    assert all(np.isfinite(gradient.numpy()).all() for gradient in gradients)


def test_one_image_has_no_correlation_between_images() -> None:
    spec = LOSSES["DistillationDISTLoss"](**PAIRS)
    outputs = outputs_of(1)
    outputs["Teacher"] = outputs["Student"].detach()
    assert float(build_criterion((spec,))(outputs, paddle.to_tensor([0]))) == pytest.approx(0.0, abs=1e-5)
