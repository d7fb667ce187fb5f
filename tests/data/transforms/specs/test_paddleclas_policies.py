"""AutoAugment and RandAugment of PaddleClas: operations, probabilities and parameters.

The numbers are those of PaddleClas's code (``ppcls/data/preprocess/ops``, ``autoaugment.py`` and
``randaugment.py``).
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from pydantic import ValidationError

from ppcls.data.transforms.dali_ops.policies import dali_suite
from ppcls.data.transforms.numpy_ops import apply
from ppcls.data.transforms.specs.decisions import decide
from ppcls.data.transforms.specs.policies import AutoAugment, Policy, RandAugment
from ppcls.data.transforms.specs.rng import uniforms

SAMPLES = 20_000
# Parameters of magnitudes 0 to 9, as a factor's difference from 1 for color, contrast and sharpness.
AUTO_PARAMETERS = {
    "shear_x": np.linspace(0, 0.3, 10),
    "rotate": np.linspace(0, 30, 10),
    "color": np.linspace(0, 0.9, 10),
    "contrast": np.linspace(0, 0.9, 10),
    "sharpness": np.linspace(0, 0.9, 10),
    "posterize": np.array([8, 8, 7, 7, 6, 6, 5, 5, 4, 4]),
    "solarize": np.linspace(256, 0, 10),
}
# For each sub-policy: probability, operation and magnitude of both steps.
AUTO_PAIRS = """
0.4 posterize 8 0.6 rotate 9, 0.6 solarize 5 0.6 auto_contrast 0, 0.8 equalize 0 0.6 equalize 0,
0.6 posterize 7 0.6 posterize 6, 0.4 equalize 0 0.2 solarize 4, 0.4 equalize 0 0.8 rotate 8,
0.6 solarize 3 0.6 equalize 0, 0.8 posterize 5 1.0 equalize 0, 0.2 rotate 3 0.6 solarize 8,
0.6 equalize 0 0.4 posterize 6, 0.8 rotate 8 0.4 color 0, 0.4 rotate 9 0.6 equalize 0,
0.0 equalize 0 0.8 equalize 0, 0.6 invert 0 1.0 equalize 0, 0.6 color 4 1.0 contrast 8,
0.8 rotate 8 1.0 color 2, 0.8 color 8 0.8 solarize 7, 0.4 sharpness 7 0.6 invert 0,
0.6 shear_x 5 1.0 equalize 0, 0.4 color 0 0.6 equalize 0, 0.4 equalize 0 0.2 solarize 4,
0.6 solarize 5 0.6 auto_contrast 0, 0.6 invert 0 1.0 equalize 0, 0.6 color 4 1.0 contrast 8,
0.8 equalize 0 0.6 equalize 0
"""
Step = tuple[str, float]


def steps_of(spec: Policy) -> list[tuple[Step, ...]]:
    """Returns the operations of many images, each with its signed parameter, without identity."""
    operations, bins, negated = decide(spec, uniforms(7, 0, np.arange(SAMPLES), spec.draws), sides())[:3]
    suite = spec.suite
    values = {name: suite[name].magnitudes(spec.bins).tolist() for names in spec.stages for name in names}
    found = []
    for row in range(SAMPLES):
        steps = []
        for stage, names in enumerate(spec.stages):
            entry = suite[names[operations[row, stage]]]
            value = values[entry.name][bins[row, stage]]
            value = round(value) if entry.name == "posterize" else value
            sign = -1 if entry.signed and negated[row, stage] else 1
            steps.append((entry.name, round(sign * value, 3)))
        found.append(tuple(step for step in steps if step[0] != "identity"))
    return found


def sides() -> np.ndarray:
    return np.full([SAMPLES, 2], 50)


def expected_auto() -> Counter[tuple[Step, ...]]:
    """Returns the probability of each sequence of operations in PaddleClas."""
    chances: Counter[tuple[Step, ...]] = Counter()
    pairs = [line.split() for line in AUTO_PAIRS.replace("\n", " ").split(",")]
    assert len(pairs) == 25
    for p1, one, bin1, p2, other, bin2 in pairs:
        for first, chance1 in step_chances(one, int(bin1), float(p1)):
            for second, chance2 in step_chances(other, int(bin2), float(p2)):
                chances[first + second] += chance1 * chance2 / 25
    return chances


def step_chances(name: str, number: int, probability: float) -> list[tuple[tuple[Step, ...], float]]:
    value = round(float(AUTO_PARAMETERS[name][number]), 3) if name in AUTO_PARAMETERS else 0.0
    both_signs = name in ("shear_x", "color", "contrast", "sharpness")
    values = [value, -value] if both_signs else [value]
    steps = [(((name, each),), probability / len(values)) for each in values]
    return [((), 1 - probability), *steps]


def test_auto_augment_has_the_distribution_of_paddleclas() -> None:
    found = Counter(steps_of(AutoAugment(source="paddleclas")))
    expected = expected_auto()
    assert set(found) <= {steps for steps, chance in expected.items() if chance}
    for steps, chance in expected.items():
        assert abs(found[steps] / SAMPLES - chance) < 5 * np.sqrt(chance / SAMPLES) + 1e-4, steps


@pytest.mark.parametrize("magnitude", [0, 4, 5, 9, 10])
def test_rand_augment_has_the_distribution_of_paddleclas(magnitude: int) -> None:
    level = magnitude / 10
    signed = {
        **{"shear_x": 0.3, "shear_y": 0.3, "translate_x": 150 / 331, "translate_y": 150 / 331},
        **{"color": 0.9, "contrast": 0.9, "sharpness": 0.9, "brightness": 0.9},
    }
    plain = {"rotate": 30 * level, "posterize": int(4.0 * level), "solarize": 256 * level}
    plain |= {"auto_contrast": 0, "equalize": 0, "invert": 0}
    expected: Counter[Step] = Counter({(name, round(value, 3)): 1.0 for name, value in plain.items()})
    for name, value in signed.items():
        expected[name, round(value * level, 3)] += 0.5
        expected[name, round(-value * level, 3)] += 0.5
    steps = [
        step for steps in steps_of(RandAugment(magnitude=magnitude, source="paddleclas")) for step in steps
    ]
    assert len(steps) == 2 * SAMPLES
    found = Counter(steps)
    assert set(found) == set(expected)
    for step, weight in expected.items():
        assert found[step] / len(steps) == pytest.approx(weight / 14, abs=0.006), step


@pytest.mark.parametrize(
    "spec",
    [AutoAugment(source="paddleclas"), *(RandAugment(source="paddleclas", magnitude=m) for m in (4, 5, 9))],
)
def test_dali_has_the_same_ranges(spec: Policy) -> None:
    theirs = dali_suite(spec)
    for name in {name for stage in spec.stages for name in stage}:
        ours = spec.suite[name]
        assert (theirs[name].mag_range or (0, 0)) == (ours.low, ours.high), name
        assert theirs[name].randomly_negate == ours.signed, name


def test_few_images_remain_unchanged() -> None:
    image = np.random.default_rng(0).integers(20, 200, [24, 24, 3]).astype(np.uint8)
    spec = RandAugment(source="paddleclas")
    decisions = decide(spec, uniforms(7, 0, np.arange(1000), spec.draws), np.full([1000, 2], 24))
    unchanged = [
        (apply(spec, image, tuple(part[row] for part in decisions)) == image).all() for row in range(1000)
    ]
    assert np.mean(unchanged) < 0.02


def test_conflicting_keys_are_rejected() -> None:
    with pytest.raises(ValidationError, match="monotonic_mag"):
        RandAugment(source="paddleclas", monotonic_mag=False)
    with pytest.raises(ValidationError, match="policy image_net"):
        AutoAugment(source="paddleclas", policy="image_net")
