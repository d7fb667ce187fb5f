"""Margins of heads, compared with plain loops in float64."""

from __future__ import annotations

import math

import numpy as np
import paddle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ppcls.arch.heads import ArcMargin, CircleMargin, CosMargin
from ppcls.loss.build import build_criterion
from ppcls.loss.classification import CELoss

quick = settings(deadline=None, max_examples=30)


@st.composite
def cosines(draw):
    """Cosines [B, C] and labels [B]."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    rows, classes = draw(st.integers(1, 5)), draw(st.integers(2, 6))
    return rng.uniform(-0.99, 0.99, (rows, classes)).astype("float32"), rng.integers(0, classes, rows)


def row_loss(spec, cosine, label):
    """Cross-entropy of one row by the papers' formulas."""
    logits, m, s = list(cosine), spec.margin, spec.scale
    c = cosine[label]
    match spec:
        case ArcMargin():
            angle = math.acos(c)
            if spec.easy_margin:
                logits[label] = math.cos(angle + m) if c > 0 else c
            else:
                logits[label] = math.cos(angle + m) if angle + m < math.pi else c - m * math.sin(m)
        case CosMargin():
            logits[label] = c - m
        case CircleMargin():
            logits = [max(x + m, 0) * (x - m) for x in cosine]
            logits[label] = max(1 + m - c, 0) * (c - (1 - m))
    scaled = np.array(logits) * s
    return -(scaled[label] - scaled.max() - np.log(np.exp(scaled - scaled.max()).sum()))


@quick
@given(
    cosines(),
    st.sampled_from(
        [
            ArcMargin(embedding_size=4, class_num=6, margin=0.5, scale=30),
            ArcMargin(embedding_size=4, class_num=6, margin=0.3, scale=8, easy_margin=True),
            CosMargin(embedding_size=4, class_num=6),
            CircleMargin(embedding_size=4, class_num=6, margin=0.25, scale=16),
        ]
    ),
)
def test_margins_equal_papers(batch, head):
    cosine, label = batch
    tensor = paddle.to_tensor(cosine, stop_gradient=False)
    outputs = {"features": paddle.ones([len(label), 4]), "logits": tensor}
    loss = build_criterion((CELoss(),), margins={"logits": head})(outputs, paddle.to_tensor(label))
    want = np.mean([row_loss(head, row.astype("float64"), k) for row, k in zip(cosine, label, strict=True)])
    assert float(loss) == pytest.approx(want, rel=2e-3, abs=1e-3)
    loss.backward()
    assert np.isfinite(tensor.grad.numpy()).all()
    assert outputs["logits"] is tensor, "metrics see the cosines themselves"


def test_margin_gradient_is_finite_at_class_direction():
    for head in (ArcMargin(embedding_size=2, class_num=2), CosMargin(embedding_size=2, class_num=2)):
        tensor = paddle.to_tensor([[1.0, -1.0], [-1.0, 1.0000001]], stop_gradient=False)
        outputs = {"logits": tensor}
        build_criterion((CELoss(),), margins={"logits": head})(outputs, paddle.to_tensor([0, 0])).backward()
        assert np.isfinite(tensor.grad.numpy()).all()
