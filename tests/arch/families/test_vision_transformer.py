from __future__ import annotations

import paddle
import pytest

from ppcls.arch.build import build_model
from ppcls.arch.families.vision_transformer import DistilledVisionTransformer, VisionTransformer
from ppcls.errors import UserError


def test_other_image_size_is_rejected() -> None:
    model = VisionTransformer(32, 16, 12, 1, 3, class_num=2)
    with pytest.raises(UserError, match=r"^Arch\.name: this model accepts images of 32 x 32, got 32 x 48; "):
        model(paddle.zeros([1, 3, 32, 48]))


def test_img_size_overrides_name() -> None:
    model = build_model("DeiT_tiny_patch16_224", 3, img_size=48)
    assert model.pos_embed.shape == [1, 1 + 9, 192]
    assert model(paddle.zeros([1, 3, 48, 48])).shape == [1, 3]


def test_patch_size_overrides_name() -> None:
    model = build_model("DeiT_tiny_distilled_patch16_224", 3, img_size=28, patch_size=4)
    assert model.pos_embed.shape == [1, 2 + 49, 192]
    assert model(paddle.zeros([1, 3, 28, 28])).shape == [1, 3]


def test_distilled_logits_average_both_classifiers() -> None:
    paddle.seed(1)
    model = DistilledVisionTransformer(32, 16, 12, 1, 3, class_num=2)
    x = paddle.randn([2, 3, 32, 32])
    tokens = model.features(x)
    assert tokens.shape == [2, 2 + 4, 12]
    apart = model.head(tokens[:, 0]), model.head_dist(tokens[:, 1])
    assert abs((model(x) - (apart[0] + apart[1]) / 2).numpy()).max() < 1e-6


@pytest.mark.parametrize("rate", ["drop_rate", "attn_drop_rate", "drop_path_rate"])
def test_dropout_applies_in_training_only(rate: str) -> None:
    paddle.seed(1)
    model = VisionTransformer(32, 16, 12, 2, 3, class_num=2, **{rate: 0.5})
    for parameter in model.parameters():
        parameter.set_value(paddle.randn(parameter.shape))
    x = paddle.randn([8, 3, 32, 32])
    model.eval()
    assert (model(x) == model(x)).all()
    model.train()
    assert not (model(x) == model(x)).all()
