"""Losses of hash codes and of pairs, against loops over the pairs."""

from __future__ import annotations

import math

import numpy as np
import paddle
import pytest

from ppcls.loss.base import Loss
from ppcls.loss.build import build_criterion
from ppcls.loss.embedding import DCHLoss, DSHSDLoss, LCDSHLoss, PairwiseCosface

RNG = np.random.default_rng(5)
CODES = RNG.standard_normal((6, 4)).astype("float32")
LOGITS = RNG.standard_normal((6, 3)).astype("float32")
LABELS = np.array([0, 1, 1, 2, 0, 1])
PAIRS = [(i, j) for i in range(6) for j in range(6)]


def value(spec: Loss, codes: np.ndarray = CODES, labels: np.ndarray = LABELS) -> float:
    outputs = {"features": paddle.to_tensor(codes), "logits": paddle.to_tensor(LOGITS)}
    return float(build_criterion((spec,))(outputs, paddle.to_tensor(labels)))


def hamming(one: np.ndarray, other: np.ndarray) -> float:
    cosine = one @ other / (np.linalg.norm(one) * np.linalg.norm(other))
    return float((1 - min(cosine, 0.99)) * len(one) / 2)


def test_cauchy_hashing_weighs_rare_pairs_and_quantization() -> None:
    same = np.mean([LABELS[i] == LABELS[j] for i, j in PAIRS])
    pairs = []
    for i, j in PAIRS:
        distance = hamming(CODES[i], CODES[j])
        equal = LABELS[i] == LABELS[j]
        cost = (math.log(distance / 7) if equal else 0) + math.log(1 + 7 / distance)
        pairs.append(cost / (same if equal else 1 - same))
    rounding = [math.log(1 + hamming(np.abs(code), np.ones(4)) / 7) for code in CODES]
    expected = np.mean(pairs) + 0.3 * np.mean(rounding)
    assert value(DCHLoss(gamma=7, quantization=0.3)) == pytest.approx(expected, rel=1e-4)
    assert math.isfinite(value(DCHLoss(), labels=np.zeros(6, int))), "a batch of one identity"


def test_locality_constrained_hashing_compares_similarities_before_and_after_signs() -> None:
    def sigmoid(x: float) -> float:
        return 1 / (1 + math.exp(-x))

    likelihood, difference = [], []
    for i, j in PAIRS:
        similarity, bits = CODES[i] @ CODES[j] / 2, np.sign(CODES[i]) @ np.sign(CODES[j]) / 2
        sign = 1 if LABELS[i] == LABELS[j] else -1
        likelihood.append(math.log(1 + math.exp(-sign * similarity)))
        difference.append((sigmoid(similarity) - sigmoid(bits)) ** 2)
    expected = np.mean(likelihood) + 2 * np.mean(difference)
    assert value(LCDSHLoss(quantization=2)) == pytest.approx(expected, rel=1e-4)
    assert math.isfinite(value(LCDSHLoss(), codes=CODES * 1000))


def test_stable_distribution_hashing_adds_distances_to_the_cross_entropy() -> None:
    pairs = []
    for i, j in PAIRS:
        distance = ((CODES[i] - CODES[j]) ** 2).sum()
        pairs.append(distance if LABELS[i] == LABELS[j] else max(0, 2 * 4 - distance))
    entropy = np.mean(
        [np.log(np.exp(row).sum()) - row[label] for row, label in zip(LOGITS, LABELS, strict=True)]
    )
    assert value(DSHSDLoss(alpha=0.2)) == pytest.approx(entropy + 0.1 * np.mean(pairs), rel=1e-4)


def test_pairwise_cosines_separate_identities_by_a_margin() -> None:
    unit = CODES / np.linalg.norm(CODES, axis=1, keepdims=True)
    rows = []
    for i in range(6):
        near = [-8 * unit[i] @ unit[j] for j in range(6) if j != i and LABELS[i] == LABELS[j]]
        far = [8 * (unit[i] @ unit[j] + 0.3) for j in range(6) if LABELS[i] != LABELS[j]]
        total = np.log(np.exp(near).sum()) + np.log(np.exp(far).sum()) if near else -np.inf
        rows.append(np.log1p(np.exp(total)))
    assert value(PairwiseCosface(margin=0.3, gamma=8)) == pytest.approx(np.mean(rows), rel=1e-4)
