from __future__ import annotations

import numpy as np
import paddle
import pytest
from paddle.nn import functional as F

from ppcls.arch.families.pp_hgnet import AffineConvNorm, LearnedAffine, PPHGNetV2_B4
from ppcls.arch.layers.conv_norm import ConvNorm
from ppcls.optimizer import optimizers as specs
from ppcls.optimizer.build import build_optimizer
from ppcls.optimizer.name_rules import Factors


def test_affine_scales_and_shifts_activation():
    layer = AffineConvNorm(3, 4, 3, act=F.relu)
    images = paddle.randn([2, 3, 5, 5])
    plain = ConvNorm.forward(layer, images)
    layer.lab.scale.set_value(np.float32([2.0]))
    layer.lab.bias.set_value(np.float32([-1.0]))
    assert paddle.allclose(layer(images), 2 * plain - 1)
    assert not paddle.allclose(plain, layer(images))


def test_affine_without_activation_is_identity():
    assert not [name for name in AffineConvNorm(3, 4, 3).state_dict() if name.startswith("lab.")]
    with paddle.LazyGuard():
        assert not [name for name, _ in PPHGNetV2_B4(class_num=5).named_parameters() if ".lab." in name]


@pytest.mark.parametrize("name", ["SGD", "Momentum", "AdamW", "Lion"])
def test_affine_learns_at_hundredth_of_rate(name):
    layer = LearnedAffine()
    spec = getattr(specs, name).model_validate({"lr": {"name": "Constant", "learning_rate": 0.5}})
    build_optimizer(spec, layer, factors={"bias": Factors(rate=7.0)})
    optimizer = build_optimizer(spec, layer, factors={"bias": Factors(rate=0.1)})  # replaces the first
    before = layer.scale.item(), layer.bias.item()
    (layer.scale + layer.bias).sum().backward()
    optimizer.step()
    decay = 0.5 * 0.01 * (getattr(spec, "weight_decay", None) or 0.0)
    moved = before[0] * (1 - decay) - layer.scale.item(), before[1] - layer.bias.item()
    assert moved == pytest.approx((0.5 * 0.01, 0.5 * 0.001), rel=1e-3)
