from __future__ import annotations

import numpy as np
import paddle

from ppcls.arch.build import build_model
from ppcls.arch.layers.drop_path import DropPath
from ppcls.engine.cuda_graph.graphed_step import draws_random_numbers


def test_drop_path_skips_images_and_keeps_mean():
    paddle.seed(1)
    drop = DropPath(0.25)
    x = paddle.ones([4000, 2, 3])
    y = drop(x).numpy()
    assert (y == y[:, :1, :1]).all()
    np.testing.assert_allclose(np.unique(y), [0, 4 / 3], rtol=1e-6)
    assert abs(y.mean() - 1) < 0.05
    drop.eval()
    np.testing.assert_array_equal(drop(x).numpy(), x.numpy())


def test_drop_path_compiles():
    paddle.seed(1)
    compiled = paddle.jit.to_static(
        DropPath(0.5), input_spec=[paddle.static.InputSpec([None, 3])], full_graph=True
    )
    y = compiled(paddle.ones([100, 3])).numpy()
    assert {*np.unique(y)} == {0.0, 2.0}


def test_model_with_drop_path_draws_random_numbers():
    """A captured training step would repeat the same random numbers."""
    assert draws_random_numbers(paddle.nn.Sequential(DropPath(0.1)))
    assert draws_random_numbers(build_model("EfficientNetB0_small", 2))
    assert not draws_random_numbers(build_model("ResNet18", 2))
