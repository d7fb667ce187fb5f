"""Class weights, focal losses and logit adjustment, compared with formulas in float64."""

from __future__ import annotations

import numpy as np
import paddle
import pytest

from ppcls.engine.core.build import build_state
from ppcls.loss.base import ClassCounts, ClassStatistics
from ppcls.loss.build import build_criterion
from ppcls.loss.class_weights import count_classes
from ppcls.loss.classification import CELoss, FocalLoss
from ppcls.loss.distillation import DistillationMultiLabelLoss
from ppcls.loss.multi_label import MultiLabelLoss

LABELS = np.array([0] * 6 + [1] * 3 + [3])  # nobody has class 2
COUNTS = ClassCounts(np.array([6.0, 3.0, 0.0, 1.0]), 10)
DATA = ClassStatistics(counts=COUNTS)
RNG = np.random.default_rng(0)
LOGITS = (3 * RNG.standard_normal((5, 4))).astype("float32")
LABEL = np.array([0, 3, 1, 1, 2])
MIXED = RNG.dirichlet(np.ones(4), 5).astype("float32")
MANY = RNG.integers(0, 2, (5, 4)).astype("float32")
WEIGHT = np.array([0.5, 1.0, 2.0, 7.0])


def log_softmax(z):
    z = z.astype("float64") - z.max(axis=1, keepdims=True)
    return z - np.log(np.exp(z).sum(axis=1, keepdims=True))


def smooth(target, epsilon):
    return (1 - epsilon) * target + epsilon / 4


def weigh(target, epsilon):
    """Returns smoothed targets, multiplied by the mean weight of the classes of each image."""
    return (WEIGHT * target).sum(axis=1, keepdims=True) * smooth(target, epsilon)


def loss_of(spec, label, counts=COUNTS):
    return float(build_criterion((spec,), counts=counts)(paddle.to_tensor(LOGITS), paddle.to_tensor(label)))


def targets():
    return [(LABEL, np.eye(4)[LABEL]), (MIXED, MIXED)]


@pytest.mark.parametrize("epsilon", [0.0, 0.1])
@pytest.mark.parametrize("gamma", [0.0, 0.5, 2.0])
def test_weighted_losses_of_softmax_equal_formula(epsilon, gamma):
    log_p = log_softmax(LOGITS)
    for label, target in targets():
        cost = -(weigh(target, epsilon) * log_p).sum(axis=1).mean()
        assert loss_of(CELoss(class_weight=tuple(WEIGHT), epsilon=epsilon), label) == pytest.approx(cost)
        focal = weigh(target, epsilon) * (1 - np.exp(log_p)) ** gamma * log_p
        spec = FocalLoss(class_weight=tuple(WEIGHT), epsilon=epsilon, gamma=gamma)
        assert loss_of(spec, label) == pytest.approx(-focal.sum(axis=1).mean())


@pytest.mark.parametrize("epsilon", [0.0, 0.1])
@pytest.mark.parametrize("alpha", [None, 0.25])
def test_weighted_losses_of_sigmoid_equal_formula(epsilon, alpha):
    p, y = 1 / (1 + np.exp(-LOGITS.astype("float64"))), smooth(MANY, epsilon)
    cost = (MANY * (WEIGHT - 1) + 1) * -(y * np.log(p) + (1 - y) * np.log(1 - p))
    spec = MultiLabelLoss(class_weight=tuple(WEIGHT), epsilon=epsilon)
    assert loss_of(spec, MANY) == pytest.approx(cost.mean())
    one, other = (1, 1) if alpha is None else (alpha, 1 - alpha)
    focus = (1 - (p * y + (1 - p) * (1 - y))) ** 2
    weight = np.where(MANY > 0, one * WEIGHT, other)
    focal = -focus * weight * (y * np.log(p) + (1 - y) * np.log(1 - p))
    spec = FocalLoss(activation="sigmoid", alpha=alpha, class_weight=tuple(WEIGHT), epsilon=epsilon)
    assert loss_of(spec, MANY) == pytest.approx(focal.mean())


def test_weights_of_one_change_nothing():
    for label in (LABEL, MIXED):
        plain = loss_of(CELoss(epsilon=0.1), label)
        assert loss_of(CELoss(epsilon=0.1, class_weight=(1, 1, 1, 1)), label) == pytest.approx(plain)
        assert loss_of(FocalLoss(gamma=0, epsilon=0.1), label) == pytest.approx(plain)
    assert loss_of(MultiLabelLoss(class_weight=(1, 1, 1, 1)), MANY) == loss_of(MultiLabelLoss(), MANY)


@pytest.mark.parametrize("label", [LABEL, MIXED])
def test_weighted_loss_does_not_depend_on_the_split_into_batches(label):
    criterion = build_criterion((CELoss(class_weight="balanced", epsilon=0.1),), counts=COUNTS)
    parts = [slice(0, 2), slice(2, 5)]
    sums = [
        float(criterion(paddle.to_tensor(LOGITS[part]), paddle.to_tensor(label[part]))) * len(label[part])
        for part in parts
    ]
    whole = float(criterion(paddle.to_tensor(LOGITS), paddle.to_tensor(label)))
    assert sum(sums) / len(label) == pytest.approx(whole)


def test_computed_weights_follow_the_class_frequencies():
    balanced = CELoss(class_weight="balanced").class_weights(DATA)
    np.testing.assert_allclose(balanced[[0, 1, 3]], 10 / 3 / np.array([6, 3, 1]))
    assert balanced[2] == 1.0, "a class without images"
    assert (balanced * COUNTS.positives).sum() == pytest.approx(10), "the mean over images is 1"
    effective = CELoss(class_weight="effective_number", class_weight_beta=0.9).class_weights(DATA)
    numbers = (1 - 0.9 ** np.array([6, 3, 1])) / 0.1
    np.testing.assert_allclose(effective[[1, 3]] / effective[0], numbers[0] / numbers[1:])
    assert (effective * COUNTS.positives).sum() == pytest.approx(10)
    assert (
        CELoss(class_weight="effective_number", class_weight_beta=0.0).class_weights(DATA).tolist() == [1] * 4
    )


def test_balanced_weights_of_several_labels_are_negatives_by_positives():
    weights = MultiLabelLoss(class_weight="balanced").class_weights(DATA)
    np.testing.assert_allclose(weights, [4 / 6, 7 / 3, 1, 9])
    focal = FocalLoss(class_weight="balanced", activation="sigmoid")
    np.testing.assert_allclose(focal.class_weights(DATA), weights)
    of_models = DistillationMultiLabelLoss(model_names=["Student"], class_weight="balanced")
    np.testing.assert_allclose(of_models.class_weights(DATA), weights)


def test_counts_are_of_labels_of_both_kinds():
    specs = (CELoss(class_weight="balanced"),)
    counts = count_classes(specs, LABELS, 4)
    assert (counts.positives.tolist(), counts.images) == ([6, 3, 0, 1], 10)
    several = count_classes((CELoss(logit_adjustment=1.0),), MANY, 4)
    assert (several.positives.tolist(), several.images) == (MANY.sum(axis=0).tolist(), 5)
    assert count_classes((CELoss(), MultiLabelLoss(class_weight=(1.0,))), LABELS, 4) is None


def test_logit_adjustment_adds_logarithms_of_frequencies():
    offsets = 0.5 * np.log(np.array([6, 3, 1, 1]) / 10)
    np.testing.assert_allclose(CELoss(logit_adjustment=0.5).logit_offsets(DATA), offsets)
    for label, target in targets():
        # In the space of the adjusted logits, shares of mixed labels are multiplied by the frequencies.
        adjusted = target * np.exp(offsets)
        adjusted /= adjusted.sum(axis=1, keepdims=True)
        cost = -(adjusted * log_softmax(LOGITS + offsets)).sum(axis=1).mean()
        assert loss_of(CELoss(logit_adjustment=0.5), label) == pytest.approx(cost)


def test_missing_counts_are_an_error():
    for spec in (CELoss(class_weight="balanced"), CELoss(logit_adjustment=1.0)):
        with pytest.raises(ValueError, match="number of images per class"):
            build_criterion((spec,))


def test_state_computes_weights_from_its_training_data(make_config, cpu):
    config = make_config(Loss__Train=[{"CELoss": {"class_weight": "balanced", "logit_adjustment": 1.0}}])
    state = build_state(config, cpu, lambda *_: None)
    labels = state.loader.index.labels
    share = np.bincount(labels) / len(labels)
    logits = RNG.standard_normal((3, len(share))).astype("float32")
    log_p = log_softmax(logits + np.log(share))
    want = -(log_p[range(3), [0, 1, 3]] / (len(share) * share[[0, 1, 3]])).mean()
    loss = state.criterion(paddle.to_tensor(logits), paddle.to_tensor([0, 1, 3]))
    assert float(loss) == pytest.approx(want, rel=1e-5)


BALANCED = {"name": "ClassBalancedSampler", "batch_size": 8}
SHUFFLED = {"batch_size": 8, "shuffle": True}


@pytest.mark.parametrize(
    ("loss", "sampler", "causes"),
    [
        ({"CELoss": {"class_weight": "balanced"}}, SHUFFLED, ""),
        ({"CELoss": {"class_weight": [1, 2, 3, 4]}}, BALANCED, ""),
        ({"CELoss": {}}, BALANCED, ""),
        (
            {"FocalLoss": {"class_weight": "effective_number"}},
            BALANCED,
            "class_weight (effective_number) and DataLoader.Train.sampler (ClassBalancedSampler)",
        ),
        (
            {"CELoss": {"class_weight": "balanced", "logit_adjustment": 1}},
            SHUFFLED,
            "class_weight (balanced) and logit_adjustment (1)",
        ),
        (
            {"CELoss": {"logit_adjustment": 0.5}},
            {"name": "WeightedSampler", "class_weights": [1, 1, 1, 2], "batch_size": 8},
            "logit_adjustment (0.5) and DataLoader.Train.sampler (WeightedSampler)",
        ),
        (
            {"CELoss": {"logit_adjustment": 0.5}},
            {"name": "WeightedSampler", "class_weights": [1, 1, 1, 1], "batch_size": 8},
            "",
        ),
    ],
)
def test_two_corrections_of_the_class_frequencies_cause_a_warning(make_config, loss, sampler, causes):
    config = make_config(Loss__Train=[loss], DataLoader__Train__sampler=sampler)
    found = [line for line in config.key_warnings if "correct the frequencies" in line]
    assert len(found) == bool(causes)
    assert all(f"{causes} each correct the frequencies" in line for line in found)


@pytest.mark.parametrize(
    ("loss", "sampler", "unused"),
    [
        ({"CELoss": {}}, SHUFFLED, ""),
        ({"CELoss": {"class_weight": [1, 2, 3, 4]}}, SHUFFLED, "Loss.Train: class_weight"),
        ({"CELoss": {"logit_adjustment": 1}}, SHUFFLED, "Loss.Train: logit_adjustment (1)"),
        ({"CELoss": {}}, BALANCED, "DataLoader.Train.sampler.name: ClassBalancedSampler"),
    ],
)
def test_linear_head_names_the_weights_that_it_does_not_use(make_config, loss, sampler, unused):
    keys = {"Loss__Train": [loss], "DataLoader__Train__sampler": sampler}
    mixed = {"DataLoader__Train__dataset__batch_transform_ops": [{"MixupOperator": {"alpha": 0.2}}]}
    config = make_config(LinearHead={}, Global__epochs=1, **keys, **mixed)
    assert any("MixupOperator has no effect, because LinearHead" in line for line in config.key_warnings)
    found = [line for line in config.key_warnings if "LinearHead gives" in line]
    assert len(found) == bool(unused)
    assert all(line.startswith(f"warning: {unused} has no effect") for line in found)
