"""What all losses have in common: how they are added, and their rules about other sections."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import paddle
import pytest
from quickstart import problems

from ppcls.config.base.facts import ModelFacts, RunFacts
from ppcls.data.loaders.batch import Batch
from ppcls.engine.core.build import build_state
from ppcls.engine.core.step import train_step
from ppcls.loss import ClassStatistics, Loss
from ppcls.loss.build import build_criterion
from ppcls.loss.classification import CELoss
from ppcls.loss.distillation import DistillationCELoss
from ppcls.loss.learned import CenterLoss
from ppcls.loss.section import LossSection
from ppcls.recipe.load import load_config
from ppcls.recipe.schema import Config
from ppcls.registry import LOSSES
from ppcls.runtime.start import Runtime

CONFIG = Path(__file__).parents[2] / "configs" / "quickstart.yaml"
MODULE = '''
"""A module of a user, which defines a loss."""

from ppcls.config.base.fields import Positive
from ppcls.config.base.problems import problem
from ppcls.loss import Loss


class ScaledSquare(Loss):
    """Mean square of the logits, times a factor."""

    factor: Positive = 1.0

    def build(self, data):
        return lambda logits, label: self.factor * logits.square().mean()

    def problems(self, facts, part):
        yield from super().problems(facts, part)
        if self.factor > facts.class_num:
            yield problem(f"expected at most {facts.class_num}", "factor")
'''
FACTS = RunFacts(class_num=10, architectures=("ResNet18",), epochs=1, evaluates=True, retrieval=False)
TRAIN = "DataLoader.Train"
MULTI_LABEL = (
    f"{TRAIN}.dataset.name=MultiLabelDataset",
    "DataLoader.Eval.dataset.name=MultiLabelDataset",
    "Loss={Train: [MultiLabelLoss], Eval: [MultiLabelLoss]}",
    "Metric={Train: [AccuracyScore], Eval: [MultiLabelMAP, HammingDistance]}",
    "Infer.PostProcess={name: MultiLabelThreshOutput, threshold: 0.4}",
)
WEIGHTED = "Loss.Train=[MultiLabelLoss: {weight_ratio: True}]"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(LOSSES, "_entries", {name: LOSSES[name] for name in LOSSES})
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_one_class_in_a_module_is_a_loss_that_trains(
    folder: Path, make_config: Callable[..., Config], cpu: Runtime
) -> None:
    (folder / "square_loss.py").write_text(MODULE)
    __import__("square_loss")
    config = make_config(Loss__Train=[{"ScaledSquare": {"factor": 2.0, "weight": 3.0}}])
    state = build_state(config, cpu, lambda *_: None)
    images = paddle.ones([2, 3, 32, 32])
    state.model.train()
    expected = 6.0 * float(state.model(images).square().mean())
    before = [parameter.numpy().copy() for parameter in state.model.parameters()]
    sums = train_step(state, Batch(images, paddle.to_tensor([0, 1]), valid=2, weight=2.0, update=True))
    assert float(sums[0]) / 2 == pytest.approx(expected, rel=1e-5)
    changed = [
        bool((parameter.numpy() != old).any())
        for parameter, old in zip(state.model.parameters(), before, strict=True)
    ]
    assert any(changed)
    assert problems("Loss.Train=[ScaledSquare: {factor: 11}]") == [
        "Loss.Train[0].ScaledSquare.factor: expected at most 10"
    ]
    assert problems("Loss.Train=[ScaledSquare: {factr: 1}]") == [
        "Loss.Train[0].ScaledSquare.factr: unknown key; did you mean 'factor'?"
    ]


def test_former_base_class_is_an_alias_and_its_build_needs_no_argument(folder: Path) -> None:
    (folder / "former_loss.py").write_text(
        "from ppcls.config.custom import CustomLoss, register\n\n"
        "@register\n"
        "class FormerLoss(CustomLoss):\n"
        "    factor: float = 1.0\n\n"
        "    def build(self):\n"
        "        return lambda logits, label: logits.sum() * self.factor\n"
    )
    overrides = ["Global.import_modules=[former_loss]", "Loss.Train=[FormerLoss: {factor: 2}]"]
    with pytest.warns(DeprecationWarning, match="CustomLoss|FormerLoss") as caught:
        (loss,) = load_config(CONFIG, overrides).Loss.Train
    assert isinstance(loss, Loss)
    assert [str(each.message) for each in caught] == [
        "ppcls.config.custom.CustomLoss is deprecated; use ppcls.loss.Loss, whose subclasses need no "
        "@register",
        "@register is deprecated for FormerLoss, which registers itself; remove it",
    ]
    with pytest.warns(DeprecationWarning, match=r"FormerLoss.build\(\) without an argument is deprecated"):
        criterion = build_criterion((loss,))
    assert float(criterion(paddle.ones([2, 3]), paddle.to_tensor([0, 1]))) == 12.0


def test_users_loss_cannot_have_the_name_of_a_built_in_loss() -> None:
    """The built-in losses are imported first, even if no config was read."""
    code = "from ppcls.loss import Loss\nclass TripletLoss(Loss): pass\n"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "loss 'TripletLoss' is registered twice; choose a name" in done.stderr


def test_order_of_losses_does_not_depend_on_imports_and_paddle_is_not_imported() -> None:
    code = (
        "import sys, ppcls.loss.learned\n"
        "from ppcls.registry import LOSSES\n"
        "print(*LOSSES, 'paddle' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [*LOSSES, "False"]
    assert done.stdout.startswith("CELoss GoogLeNetLoss BCELoss FocalLoss MultiLabelLoss")


def test_loss_without_build_names_its_class() -> None:
    class Empty(Loss, abstract=True):
        pass

    for build in (Empty().build, Empty().build_term):
        with pytest.raises(NotImplementedError, match=r"Empty has no method build\(\)"):
            build(ClassStatistics())
    with pytest.raises(NotImplementedError, match="CELoss has no trainable layers"):
        CELoss().build_layer({})


@pytest.mark.parametrize(
    ("overrides", "place", "text"),
    [
        (
            ("Loss.Train=[CELoss: {class_weight: [1, 2]}]",),
            "Loss.Train[0].CELoss.class_weight",
            "expected one weight for each of the 10 classes, got 2",
        ),
        (
            ("Loss.Eval=[CELoss: {class_weight: balanced}]",),
            "Loss.Eval[0].CELoss.class_weight",
            "in evaluation use a list",
        ),
        (
            ("Loss.Eval=[CELoss: {logit_adjustment: 1}]",),
            "Loss.Eval[0].CELoss.logit_adjustment",
            "remove this key",
        ),
        (("Loss.Train=[FocalLoss: {alpha: 0.25}]",), "Loss.Train[0].FocalLoss.alpha", "activation: sigmoid"),
        (
            (*MULTI_LABEL, "Loss.Train=[FocalLoss]"),
            "Loss.Train[0].FocalLoss.activation",
            "expected sigmoid",
        ),
        (
            (*MULTI_LABEL, "Loss.Train=[CELoss]"),
            "Loss.Train[0].CELoss",
            "needs images with one label, but DataLoader.Train.dataset is MultiLabelDataset; expected "
            "BCELoss, FocalLoss, MultiLabelLoss or MultiLabelAsymmetricLoss",
        ),
        (
            (*MULTI_LABEL, WEIGHTED),
            "Loss.Train[0].MultiLabelLoss.weight_ratio",
            f"set {TRAIN}.dataset.label_ratio: True",
        ),
        ((WEIGHTED,), "Loss.Train[0].MultiLabelLoss.weight_ratio", "use MultiLabelDataset"),
        (
            ("Loss.Train=[CELoss, DSHSDLoss]",),
            "Loss.Train[1].DSHSDLoss",
            "needs embeddings; expected Arch.name: RecModel",
        ),
        *(
            (
                (f"Loss.Train=[BCELoss: {{{keys}}}]",),
                "Loss.Train[0].BCELoss.target_threshold",
                "which target_threshold must separate",
            )
            for keys in (
                "epsilon: 0.9, target_threshold: 0.05",
                "epsilon: 0.1, target_threshold: 0.97",
                "target_threshold: 0.0, epsilon: 0.1",
            )
        ),
        (
            ("Loss.Train=[GoogLeNetLoss]",),
            "Loss.Train[0].GoogLeNetLoss",
            "needs auxiliary classifiers; expected Arch.name: GoogLeNet",
        ),
    ],
)
def test_conflict_is_reported_at_its_key(overrides: tuple[str, ...], place: str, text: str) -> None:
    (problem,) = problems(*overrides)
    assert problem.startswith(f"{place}: ")
    assert text in problem


def texts(loss: Loss | LossSection, part: str, **facts: object) -> list[str]:
    """Returns the problems of a loss in a run with these facts."""
    changed = RunFacts(**{**vars(FACTS), **facts})
    return [str(each["type"]) for each in loss.problems(changed, part)]


def test_center_loss_needs_float32_training_and_the_sizes_of_the_model() -> None:
    loss = CenterLoss(num_classes=10, feat_dim=4)
    embeds = {"embeds": True, "embedding_size": 4}
    assert texts(loss, "Train", **embeds) == []
    assert texts(loss, "Train", **embeds, amp_level="O1") == []
    assert texts(loss, "Train", **embeds, amp_level="O2") == [
        "the centers need float32; expected AMP.level: O1, got O2"
    ]
    (text,) = texts(loss, "Eval", **embeds, amp_level="O2")
    assert text.startswith("supported only in Loss.Train")
    assert texts(loss, "Train", embeds=True, embedding_size=5, class_num=3) == [
        "expected 3, the value in Arch, got 10",
        "expected 5, the value in Arch, got 4",
    ]
    assert texts(loss, "Train", **embeds, has_classes=False) == [], "identities may be any numbers"


def test_losses_of_random_labels_cannot_depend_on_frequencies() -> None:
    random = {"random_labels": frozenset({"Train"})}
    for loss in (CELoss(class_weight="balanced"), CELoss(logit_adjustment=1.0)):
        (text,) = texts(loss, "Train", **random)
        assert text.startswith("needs the frequencies of labels, but a random transform determines")
    assert texts(CELoss(class_weight=(1.0,) * 10), "Train", **random) == []


def test_every_trainable_model_needs_a_loss() -> None:
    section = LossSection(Train=(DistillationCELoss(model_name_pairs=[["Student", "Teacher"]]),))
    for trainable in (False, True):
        models = {"Student": ModelFacts(trainable=True), "Teacher": ModelFacts(trainable=trainable)}
        found = texts(section, "", models=models, student="Student")
        expected = "'Teacher' is trainable but receives no gradient; add a loss for it, or freeze it"
        assert found == [expected] * trainable


def test_googlenet_needs_the_loss_of_its_auxiliary_classifiers() -> None:
    facts = {"architectures": ("GoogLeNet",)}
    (text,) = texts(LossSection(), "", **facts)
    assert text == "the auxiliary classifiers of GoogLeNet need GoogLeNetLoss; add it"
    assert texts(LossSection(Train=(LOSSES["GoogLeNetLoss"](), CELoss())), "", **facts) == []


def test_statistics_reach_the_losses() -> None:
    share = np.array([0.2, 0.8], "float32")
    (loss,) = (LOSSES["MultiLabelLoss"](weight_ratio=True),)
    label = paddle.to_tensor([[1.0, 0.0]])
    cost = build_criterion((loss,), share)(paddle.zeros([1, 2]), label)
    assert float(cost) == pytest.approx(np.log(2) * (np.exp(0.8) + np.exp(0.8)) / 2, rel=1e-6)
