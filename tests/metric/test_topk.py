import numpy as np
import paddle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ppcls.config.sections.objective import CELoss, TopkAcc
from ppcls.metric.build import build_metrics


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_topk_counts_rows_with_fewer_than_k_higher_logits(data):
    classes, rows = data.draw(st.integers(1, 8)), data.draw(st.integers(1, 6))
    topk = tuple(data.draw(st.lists(st.integers(1, classes), min_size=1, max_size=3, unique=True)))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    logits = np.stack([rng.permutation(classes) for _ in range(rows)]).astype("float32")  # no ties
    label = rng.integers(0, classes, rows)
    metrics = build_metrics((TopkAcc(topk=topk),))
    counts = metrics.counts(paddle.to_tensor(logits), paddle.to_tensor(label))
    above = (logits > logits[np.arange(rows), label][:, None]).sum(axis=1)
    assert metrics.names == tuple(f"top{k}" for k in topk)
    assert counts.dtype == paddle.int64
    assert counts.tolist() == [int((above < k).sum()) for k in topk]


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_topk_resolves_ties_like_paddle(dtype):
    logits = paddle.to_tensor([[1.0, 1.0, 1.0, 0.0]]).astype(dtype)
    first = paddle.topk(logits.astype("float32"), 1)[1].item()
    metrics = build_metrics((TopkAcc(topk=(1, 3)),))
    for label in range(4):
        counts = metrics.counts(logits, paddle.to_tensor([label]))
        assert counts.tolist() == [int(label == first), int(label < 3)]


def test_metrics_combine_several_counts():
    metrics = build_metrics((TopkAcc(topk=2), TopkAcc(topk=(1,))))
    assert metrics.names == ("top2", "top1")
    logits = paddle.to_tensor([[3.0, 2.0, 1.0], [3.0, 2.0, 1.0]])
    assert metrics.counts(logits, paddle.to_tensor([1, 0])).tolist() == [2, 1]


def test_metrics_without_or_with_repeated_name_are_rejected():
    with pytest.raises(ValueError, match="at least one metric"):
        build_metrics(())
    with pytest.raises(ValueError, match="listed twice: top1"):
        build_metrics((TopkAcc(), TopkAcc(topk=1)))
    with pytest.raises(TypeError, match="CELoss is not a metric"):
        build_metrics((CELoss(),))
