from __future__ import annotations

import cv2
import numpy as np
import pytest

from ppcls.data.transforms.specs.blur import BlurImage, _gaussian, _line
from ppcls.data.transforms.specs.decisions import decide, drawn_labels
from ppcls.data.transforms.specs.rng import uniforms

SPEC = BlurImage(ratio=0.3)


def test_label_is_whether_the_image_is_blurred() -> None:
    draws = uniforms(1, 0, np.arange(4000), SPEC.draws)
    decisions = decide(SPEC, draws, np.ones([4000, 2], np.int64))
    blurred, kernels = decisions
    labels = drawn_labels(SPEC, decisions)
    assert labels.mean() == pytest.approx(0.3, abs=0.03)
    np.testing.assert_array_equal(labels, (kernels.max(axis=(1, 2)) < 1).astype(int))
    np.testing.assert_allclose(kernels.sum(axis=(1, 2)), 1, rtol=1e-5)
    ranks = np.linalg.matrix_rank(kernels[blurred], tol=1e-4)
    assert (ranks == 1).mean() == pytest.approx(0.5, abs=0.1), "Gaussian kernels are products"
    assert kernels.shape[1:] == (11, 11)


@pytest.mark.parametrize("side", [5, 7, 9, 11])
def test_gaussian_kernel_equals_that_of_opencv(side: int) -> None:
    np.testing.assert_allclose(_gaussian(side), cv2.getGaussianKernel(side, 0)[:, 0], atol=2e-2)


@pytest.mark.parametrize("angle", [-45, -13, 0, 30, 45])
def test_line_equals_the_rotated_diagonal_of_opencv(angle: int) -> None:
    side = 9
    turn = cv2.getRotationMatrix2D((side // 2, side // 2), angle, 1)
    rotated = cv2.warpAffine(np.eye(side), turn, (side, side))
    np.testing.assert_allclose(_line(side, angle), rotated / rotated.sum(), atol=5e-3)
