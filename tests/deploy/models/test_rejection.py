from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bundles import write_photographs
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score
from small_classifier import (
    config_tree,
    write_checkpoint,
    write_config,
    write_image,
    write_names,
    write_weights,
)

from ppcls import fit
from ppcls.cli.eval import calibrate
from ppcls.cli.export import export, verify
from ppcls.deploy.models.rejection import (
    RejectionRule,
    ScoredImages,
    auroc,
    energy,
    fit_means,
    fit_rejection,
    measure_rejection,
    read_means,
    read_rejection,
    remove_rejection,
    write_rejection,
)
from ppcls.deploy.predictor import Predictor
from ppcls.errors import UserError


def probabilities(seed: int, count: int, sharpness: float) -> np.ndarray:
    logits = np.random.default_rng(seed).normal(size=(count, 4)) * sharpness
    shares = np.exp(logits)
    return shares / shares.sum(axis=1, keepdims=True)


def scored(values: np.ndarray) -> ScoredImages:
    return ScoredImages(values, {"max_probability": values.max(axis=1), "energy": energy(np.log(values))})


@given(
    seed=st.integers(0, 99), keep=st.floats(0.5, 0.99), score=st.sampled_from(["max_probability", "energy"])
)
def test_rule_keeps_the_requested_share(seed: int, keep: float, score: Any) -> None:
    known = scored(probabilities(seed, 400, 3.0))
    known.scores["energy"] = known.scores["max_probability"] * 7 - 3  # any range
    foreign = scored(probabilities(seed + 1, 100, 1.0))
    foreign.scores["energy"] = foreign.scores["max_probability"] * 7 - 3
    for scope in ("global", "per-class"):
        quality = measure_rejection(fit_rejection(known, keep, scope, score), known, foreign)  # type: ignore[arg-type]
        assert keep - 1e-9 <= quality.kept <= keep + 0.05
        assert quality.auroc is not None
        assert quality.rejected is not None
        assert quality.auroc > 0.5


def test_distance_is_that_to_the_nearest_mean() -> None:
    random = np.random.default_rng(0)
    labels = np.arange(60) % 3
    features = (random.normal(size=(60, 8)) + 5 * labels[:, None]).astype(np.float32)
    means = fit_means(features, labels, 3)
    centres = np.stack([features[labels == number].mean(axis=0) for number in range(3)])
    within = np.sqrt(np.square(features - centres[labels]).mean(axis=0))
    apart = np.square((features[:, None] - centres[None]) / within).mean(axis=2)
    np.testing.assert_allclose(means.score(features), -np.sqrt(apart.min(axis=1)), rtol=1e-3)
    assert means.score(features - 100).max() < means.score(features).min()
    with pytest.raises(UserError, match="there are none of 1, such as class 3"):
        fit_means(features, labels, 4)


@given(st.lists(st.integers(0, 9), min_size=1), st.lists(st.integers(0, 9), min_size=1))
def test_auroc_equals_scikit_learn(positive: list[int], negative: list[int]) -> None:
    labels = [1] * len(positive) + [0] * len(negative)
    expected = roc_auc_score(labels, positive + negative)
    assert auroc(np.array(positive, float), np.array(negative, float)) == pytest.approx(expected)


def test_stored_rule_is_read_or_is_an_error(tmp_path: Path) -> None:
    assert read_rejection(tmp_path, 3) is None
    for rule in (
        RejectionRule(threshold=0.25),
        RejectionRule(score="energy", threshold=-7.5e12),
        RejectionRule(threshold=(0.1, 0.2, 0.3)),
    ):
        write_rejection(tmp_path, rule)
        assert read_rejection(tmp_path, 3) == rule
    with pytest.raises(UserError, match="a list of 4 numbers"):
        read_rejection(tmp_path, 4)
    for text in (
        "",
        "{}",
        '{"score": "entropy", "threshold": 0.5}',
        '{"threshold": 2}',
        '{"threshold": NaN}',
        "[" * 10_000,
    ):
        (tmp_path / "rejection.json").write_text(text)
        with pytest.raises(UserError, match=r"rejection\.json: expected"):
            read_rejection(tmp_path, 3)


def test_predictions_are_unknown_below_the_threshold(tmp_path: Path) -> None:
    weights = write_weights(tmp_path / "model.safetensors")
    tree = config_tree(weights, write_names(tmp_path / "names.txt"))
    config = write_config(tmp_path / "config.yaml", tree)
    files = {"model.safetensors": weights.read_bytes(), "config.yaml": config.read_bytes()}
    checkpoint = write_checkpoint(tmp_path / "run", files)
    image = write_image(tmp_path / "image.png", 1).read_bytes()
    for threshold, expected in ((None, None), (0.0, False), (1.0, True)):
        if threshold is not None:
            write_rejection(checkpoint, RejectionRule(threshold=threshold))
        (result,) = Predictor(checkpoint, device="cpu").predict([image])
        assert result.unknown is expected
        assert str(result).startswith("unknown, nearest: ") is (expected is True)
        assert result.as_tree().get("unknown") is expected


def test_stored_means_are_read_or_are_an_error(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    means = fit_means(random.normal(size=(9, 4)), np.arange(9) % 3, 3)
    write_rejection(tmp_path, RejectionRule(score="distance", threshold=-2), means)
    np.testing.assert_array_equal(read_means(tmp_path, 3).means, means.means)
    with pytest.raises(UserError, match="expected the means of 4 classes"):
        read_means(tmp_path, 4)
    (tmp_path / "rejection.safetensors").write_bytes(b"damaged")
    with pytest.raises(UserError, match="cannot be read"):
        read_means(tmp_path, 3)
    assert remove_rejection(tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize(("score", "scope"), [("energy", "per-class"), ("distance", "global")])
def test_all_programs_answer_unknown_by_the_same_score(
    score: str, scope: str, make_config: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    transforms = [{"DecodeImage": None}, {"ResizeImage": {"size": 16}}, {"NormalizeImage": None}]
    infer = {"transforms": transforms, "PostProcess": {"name": "Topk", "topk": 2}}
    config = make_config(Global__use_dali=False, Global__epochs=1, Infer=infer)
    best = fit(config).best_model
    assert best is not None
    data = write_photographs(tmp_path / "photos", 4)
    words = ["--model", config.Global.output_dir, "--trust"]
    assert calibrate([*words, "--unknown", scope, "--score", score, "--foreign", str(data)]) == 0
    text = capsys.readouterr().out
    assert f"unknown if the score {score} is below" in text
    for name in ("max_probability", "energy", "distance"):
        assert f"[Calibrate] {name}: " in text
    stored = {file.name: file.read_bytes() for file in best.iterdir()}
    damaged = write_photographs(tmp_path / "damaged", 0)
    (damaged / "turned.jpg").write_bytes(b"damaged")
    for foreign, reason in ((tmp_path / "missing", "no such file"), (damaged, "no image can be decoded")):
        assert calibrate([*words, "--unknown", scope, "--foreign", str(foreign)]) == 2
        assert reason in capsys.readouterr().err
    assert {file.name: file.read_bytes() for file in best.iterdir()} == stored
    assert export([*words, "--format", "onnx", "--output", str(tmp_path / "onnx")]) == 0
    assert f"does not return the score {score}" in capsys.readouterr().err
    bundle = tmp_path / "bundle"
    assert export([*words, "--format", "bundle", "--golden-data", str(data), "--output", str(bundle)]) == 0
    assert verify([str(bundle)]) == 0
    assert f"images whose score `{score}` is below" in (bundle / "README.md").read_text()
    files = sorted(data.iterdir())
    images = [file.read_bytes() for file in files]
    expected = Predictor(best, device="cpu").predict(images)
    actual = Predictor(bundle, device="cpu").predict(images)
    program = [sys.executable, str(bundle / "runners/python/predict.py")]
    lines = subprocess.run([*program, *files], capture_output=True, text=True).stdout.splitlines()
    rule = read_rejection(best, 4)
    assert rule is not None
    for one, other, line in zip(expected, actual, lines, strict=True):
        assert one.known_score is not None
        # Distances near 0 are the roots of differences of large numbers, which float32 rounds.
        assert one.known_score == pytest.approx(other.known_score, rel=1e-4, abs=1e-3)
        assert other.unknown == (": unknown, score " in line)
        if isinstance(rule.threshold, tuple) or abs(one.known_score - rule.threshold) > 1e-3:
            assert one.unknown == other.unknown
    assert subprocess.run([*program, "verify"], capture_output=True, text=True).stdout.startswith("PASS")
    tree = json.loads((bundle / "bundle.json").read_text())
    tree["golden"][0]["known_score"] += 1
    (bundle / "bundle.json").write_text(json.dumps(tree))
    assert verify([str(bundle)]) == 3
    assert "first stage that differs: post-processing" in capsys.readouterr().err
    assert subprocess.run([*program, "verify"], capture_output=True).returncode == 3
