"""What all metrics have in common, and metrics that a user's module adds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import paddle
import pytest
from quickstart import problems

from ppcls.config.base.facts import ModelFacts, RunFacts
from ppcls.metric.base import DatasetMetric, Metric
from ppcls.metric.build import CountMetric, GatheredMetric, Rows, build_metrics
from ppcls.metric.functional.retrieval import PLAIN_SEARCH
from ppcls.metric.multi_label import ATTRMetric, MultiLabelMAP
from ppcls.metric.single_label import DistillationTopkAcc
from ppcls.recipe.load import load_config
from ppcls.registry import METRICS

CONFIG = Path(__file__).parents[2] / "configs" / "quickstart.yaml"
MODULE = '''
"""A module of a user, which defines two metrics."""

from ppcls.config.base.fields import Count
from ppcls.metric.base import DatasetMetric, Metric


class SpreadOfScores(DatasetMetric):
    """Difference of the highest and the lowest score, times a factor."""

    factor: Count = 1

    def compute(self, scores, labels):
        return [self.factor * float(scores.max() - scores.min())]


class CountOfLabel(Metric):
    """Share of images with a label."""

    label: int = 0

    def build(self, classes, search):
        from ppcls.metric.build import CountMetric, shares_of_images

        def count(outputs, label):
            return (label == self.label).sum().reshape([1]).astype("int64")

        return CountMetric(self.names, 1, count, shares_of_images)
'''


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(METRICS, "_entries", {name: METRICS[name] for name in METRICS})
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_one_class_in_a_module_is_a_metric(folder: Path) -> None:
    (folder / "spread_metric.py").write_text(MODULE)
    metrics = "Metric.Eval=[SpreadOfScores: {factor: 2}, CountOfLabel: {label: 1}]"
    config = load_config(CONFIG, ["Global.import_modules=[spread_metric]", metrics])
    assert config.Metric.Eval[0].problems(config.facts, "Eval")
    built = build_metrics(config.Metric.Eval, 10)
    assert built.names == ("SpreadOfScores", "CountOfLabel")
    scores = np.array([[1.0, 4.0], [0.0, 2.0]], "float32")
    labels = np.array([1, 0])
    counts = built.counts(paddle.to_tensor(scores), paddle.to_tensor(labels)).numpy()
    rows = {"logits": Rows(scores, labels[:, None].astype("float64"))}
    assert built.values(counts, 2, rows) == {"SpreadOfScores": 8.0, "CountOfLabel": 0.5}
    problem = "Metric.Eval[0].SpreadOfScores.factor: expected an integer > 0, got 0"
    assert problems("Metric.Eval=[SpreadOfScores: {factor: 0}]") == [problem]
    (problem,) = problems("Metric.Train=[SpreadOfScores]")
    assert problem == "Metric.Train[0].SpreadOfScores: needs all samples at once; move it to Metric.Eval"


def test_former_base_class_is_an_alias_with_a_warning(folder: Path) -> None:
    (folder / "former_metric.py").write_text(
        "from ppcls.config.custom import CustomMetric, register\n\n"
        "@register\n"
        "class FormerMetric(CustomMetric):\n"
        "    def compute(self, scores, labels):\n"
        "        return [float(len(labels))]\n"
    )
    overrides = ["Global.import_modules=[former_metric]", "Metric.Eval=[FormerMetric]"]
    with pytest.warns(DeprecationWarning, match="FormerMetric|CustomMetric") as caught:
        (metric,) = load_config(CONFIG, overrides).Metric.Eval
    assert isinstance(metric, DatasetMetric)
    assert [str(each.message) for each in caught] == [
        "ppcls.config.custom.CustomMetric is deprecated; use ppcls.metric.base.DatasetMetric, whose "
        "subclasses need no @register",
        "@register is deprecated for FormerMetric, which registers itself; remove it",
    ]
    assert all(each.filename.endswith("former_metric.py") for each in caught)
    values = build_metrics((metric,)).values(
        np.zeros(0), 1, {"logits": Rows(np.zeros((1, 2)), np.zeros((1, 1)))}
    )
    assert values == {"FormerMetric": 1.0}


@pytest.mark.parametrize("metric", [ATTRMetric(), MultiLabelMAP()])
def test_metric_of_several_labels_accepts_a_single_class(metric: DatasetMetric) -> None:
    labels = np.array([[1.0], [0.0]])
    values = build_metrics((metric,)).values(np.zeros(0), 2, {"logits": Rows(6 * labels - 3, labels)})
    assert values[metric.names[0]] == 1.0


FACTS = RunFacts(
    class_num=10,
    architectures=("ResNet18", "ResNet18"),
    epochs=1,
    evaluates=True,
    retrieval=False,
    models={"Teacher": ModelFacts(trainable=False), "Student": ModelFacts(trainable=True)},
    student="Student",
    labels={"Train": "one", "Eval": "one"},
    datasets={"Train": "ImageNetDataset", "Eval": "ImageNetDataset"},
)


@pytest.mark.parametrize(
    ("model", "part", "models", "text"),
    [
        ("Student", "Eval", FACTS.models, None),
        ("Teacher", "Train", FACTS.models, None),
        ("Teacher", "Eval", FACTS.models, "only 'Student' is evaluated"),
        ("Other", "Train", FACTS.models, "Arch.models has no model 'Other'; expected Teacher, Student"),
        ("Student", "Train", {}, "needs several models; expected Arch.name: DistillationModel"),
    ],
)
def test_metric_of_one_model_needs_a_model_that_is_evaluated(
    model: str, part: str, models: dict[str, ModelFacts], text: str | None
) -> None:
    facts = RunFacts(**{**vars(FACTS), "models": models})
    metric = DistillationTopkAcc(model_key=model)
    assert isinstance(metric.build(10, PLAIN_SEARCH), CountMetric)
    messages = [str(each["type"]) for each in metric.problems(facts, part)]
    assert messages == [] if text is None else text in messages[0]


@pytest.mark.parametrize("name", list(METRICS))
def test_every_metric_builds_what_its_class_says(name: str) -> None:
    kind: type[Metric] = METRICS[name]
    metric = kind.model_validate({"model_key": "Student"} if kind.multi_model else {})
    built = metric.build(3, PLAIN_SEARCH)
    assert built.names[: len(metric.names)] == metric.names
    assert isinstance(built, CountMetric | GatheredMetric)
    if isinstance(built, GatheredMetric):
        assert metric.whole_dataset
        assert (built.output == PLAIN_SEARCH.output) == metric.on_embeddings
