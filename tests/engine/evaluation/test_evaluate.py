from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import paddle
import pytest
from small_net import MemoryLoader, Net, assert_equal, content, evaluate

from ppcls.data.build import build_loader
from ppcls.data.transforms.numpy_ops import run
from ppcls.data.transforms.specs import plan_chain
from ppcls.engine.core.precision import FP32
from ppcls.engine.evaluation.evaluate import build_evaluator
from ppcls.errors import UserError
from ppcls.loss.build import build_criterion
from ppcls.loss.classification import CELoss
from ppcls.metric.build import build_metrics
from ppcls.metric.single_label import TopkAcc
from ppcls.recipe.schema import Config
from ppcls.runtime.start import Runtime

CRITERION, METRICS = build_criterion((CELoss(),)), build_metrics((TopkAcc(topk=(1, 2)),))


@pytest.fixture(scope="module")
def model() -> Net:
    paddle.seed(4)
    made = Net()
    for _ in range(3):
        made(paddle.randn([8, 3, 16, 16]))
    return made


def plain(model: Net, images: list[np.ndarray], labels: list[int]) -> tuple[float, int, int]:
    """Returns mean loss and counts of top-1 and top-2, image by image."""
    model.eval()
    losses, top1, top2 = [], 0, 0
    for image, label in zip(images, labels, strict=True):
        logits = model(paddle.to_tensor(image[None])).numpy()[0].astype(np.float64)
        losses.append(np.log(np.exp(logits - logits.max()).sum()) - logits[label] + logits.max())
        order = np.argsort(-logits).tolist()
        top1 += label == order[0]
        top2 += label in order[:2]
    model.train()
    return float(np.mean(losses)), top1, top2


@pytest.mark.parametrize("use_dali", [True, False])
@pytest.mark.parametrize("batch_size", [1, 4, 8, 50])
def test_counts_are_those_of_a_plain_loop(
    make_config: Callable[..., Config], cpu: Runtime, model: Net, use_dali: bool, batch_size: int
) -> None:
    config = make_config(Global__use_dali=use_dali, DataLoader__Eval__sampler__batch_size=batch_size)
    split = config.DataLoader.Eval
    assert split is not None
    index, ops = split.dataset.read(4), plan_chain(split.dataset.transform_ops, "CHW")
    images = [run(ops, index.read(i), np.zeros(0, np.float32)) for i in range(len(index))]
    loss, top1, top2 = plain(model, images, index.labels.tolist())
    assert 0 < top1 < top2 < 11  # the numbers tell something
    loader = build_loader(split, "Eval", cpu, config.Global, config.Arch, config.Arch.class_num)
    for _ in range(2):  # as often as wanted
        result = evaluate(model, loader, CRITERION, METRICS, FP32())
        assert result.images == 11
        assert result.metrics == {"top1": top1 / 11, "top2": top2 / 11}
        assert result.loss == pytest.approx(loss, rel=1e-3 if use_dali else 1e-5)
        assert result.seconds > 0


def test_padded_rows_are_not_counted(model: Net) -> None:
    loader = MemoryLoader(size=13, batch_size=8, shuffle=False)
    expected = plain(model, list(loader.images), loader.labels.tolist())
    result = evaluate(model, loader, CRITERION, METRICS, FP32())
    assert (result.images, round(result.metrics["top1"] * 13)) == (13, expected[1])
    assert result.loss == pytest.approx(expected[0], rel=1e-5)
    # the padding repeats samples: counted, it would have given 16 images
    assert [batch.valid for batch in loader] == [8, 5]


def test_evaluate_accepts_rank_without_valid_rows(model: Net) -> None:
    class Padded(MemoryLoader):
        def __iter__(self) -> Any:
            for batch in super().__iter__():
                yield batch
                yield type(batch)(batch.image, batch.label, 0, 0.0, True)

    one = evaluate(model, Padded(), CRITERION, METRICS, FP32())
    other = evaluate(model, MemoryLoader(), CRITERION, METRICS, FP32())
    assert (one.loss, one.metrics, one.images) == (other.loss, other.metrics, other.images)


@pytest.mark.parametrize("training", [True, False])
def test_evaluate_does_not_change_the_model(model: Net, training: bool) -> None:
    before = content(model)
    model.train() if training else model.eval()
    modes = []
    forward = model.bn.register_forward_pre_hook(lambda layer, _inputs: modes.append(layer.training))
    evaluate(model, MemoryLoader(), CRITERION, METRICS, FP32())
    forward.remove()
    assert modes == [False] * 3
    assert model.training is model.bn.training is training
    assert_equal(content(model), before)
    model.train()


def test_loss_and_metrics_are_those_of_the_section_eval(
    make_config: Callable[..., Config], cpu: Runtime, model: Net
) -> None:
    smooth = {"Loss__Eval": [{"CELoss": {"weight": 3.0}}], "Loss__Train": [{"CELoss": {"weight": 7.0}}]}
    once = build_evaluator(make_config(), cpu, FP32())(model)
    thrice = build_evaluator(make_config(**smooth), cpu, FP32())(model)
    assert thrice.loss == pytest.approx(3 * once.loss, rel=1e-6)
    assert list(once.metrics) == ["top1", "top2"]


def test_evaluate_converts_images_with_the_precision_for_evaluation(model: Net) -> None:
    class NotingPrecision(FP32):
        def images(self, image: paddle.Tensor, *, training: bool) -> paddle.Tensor:
            asked.append(training)
            return super().images(image, training=training)

    asked: list[bool] = []
    evaluate(model, MemoryLoader(), CRITERION, METRICS, NotingPrecision())
    assert asked == [False] * 3


def test_evaluate_rejects_config_without_evaluation_data(
    make_config: Callable[..., Config], cpu: Runtime
) -> None:
    with pytest.raises(UserError, match=r"needs DataLoader\.Eval.*set Global\.eval_during_train=False"):
        build_evaluator(make_config(DataLoader__Eval=None), cpu, FP32())
