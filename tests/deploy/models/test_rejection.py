from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
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

from ppcls.deploy.models.rejection import (
    RejectionRule,
    auroc,
    fit_rejection,
    measure_rejection,
    read_rejection,
    write_rejection,
)
from ppcls.deploy.predictor import Predictor
from ppcls.errors import UserError


def probabilities(seed: int, count: int, sharpness: float) -> np.ndarray:
    logits = np.random.default_rng(seed).normal(size=(count, 4)) * sharpness
    shares = np.exp(logits)
    return shares / shares.sum(axis=1, keepdims=True)


@given(seed=st.integers(0, 99), keep=st.floats(0.5, 0.99))
def test_rule_keeps_the_requested_share(seed: int, keep: float) -> None:
    known = probabilities(seed, 400, 3.0)
    foreign = probabilities(seed + 1, 100, 1.0)
    for scope in ("global", "per-class"):
        quality = measure_rejection(fit_rejection(known, keep, scope), known, foreign)  # type: ignore[arg-type]
        assert keep - 1e-9 <= quality.kept <= keep + 0.05
        assert quality.auroc is not None
        assert quality.rejected is not None
        assert quality.auroc > 0.5


@given(st.lists(st.integers(0, 9), min_size=1), st.lists(st.integers(0, 9), min_size=1))
def test_auroc_equals_scikit_learn(positive: list[int], negative: list[int]) -> None:
    labels = [1] * len(positive) + [0] * len(negative)
    expected = roc_auc_score(labels, positive + negative)
    assert auroc(np.array(positive, float), np.array(negative, float)) == pytest.approx(expected)


def test_stored_rule_is_read_or_is_an_error(tmp_path: Path) -> None:
    assert read_rejection(tmp_path, 3) is None
    for rule in (RejectionRule(threshold=0.25), RejectionRule(threshold=(0.1, 0.2, 0.3))):
        write_rejection(tmp_path, rule)
        assert read_rejection(tmp_path, 3) == rule
    with pytest.raises(UserError, match="a list of 4 numbers"):
        read_rejection(tmp_path, 4)
    for text in ("", "{}", '{"threshold": 2}', '{"threshold": NaN}', "[" * 10_000):
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
