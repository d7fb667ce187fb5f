from __future__ import annotations

import numpy as np
import paddle
import pytest

from ppcls.arch.build import build_model
from ppcls.arch.layers.drop_path import DropPath, StepMasks, attach_masks, draws_random_numbers


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


def _factors(masks: StepMasks, update: int, calls: int = 2) -> list[np.ndarray]:
    masks.begin_step(update)
    masks.begin_forward()
    return [masks.draw([1000], 0.25).numpy().copy() for _ in range(calls)]


def test_step_masks_depend_on_seed_rank_update_step_and_call():
    kinds = [
        *_factors(StepMasks(1, 0), 0),
        *_factors(StepMasks(2, 0), 0),
        *_factors(StepMasks(1, 1), 0),
        *_factors(StepMasks(1, 0), 1),
    ]
    masks = StepMasks(1, 0)
    _factors(masks, 0)
    kinds += _factors(masks, 0)  # the second step of an update
    for first, one in enumerate(kinds):
        np.testing.assert_allclose(np.unique(one), [0, 4 / 3], rtol=1e-6)
        assert abs(one.mean() - 1) < 0.1
        for other in kinds[first + 1 :]:
            assert (one != other).mean() > 0.2


def test_step_masks_of_a_resumed_run_are_equal_and_keep_their_address():
    masks = StepMasks(1, 0)
    first = [_factors(masks, update) for update in range(3)]
    address = masks.draw([1000], 0.25).data_ptr()
    resumed = StepMasks(1, 0)
    np.testing.assert_array_equal(_factors(resumed, 2), first[2])
    _factors(masks, 3)
    assert masks.draw([1000], 0.25).data_ptr() == address


def test_step_masks_repeat_within_a_step():
    masks = StepMasks(1, 0)
    first = _factors(masks, 4)
    masks.begin_forward()
    np.testing.assert_array_equal([masks.draw([1000], 0.25).numpy() for _ in range(2)], first)


def test_attached_masks_replace_paddles_generator():
    model = paddle.nn.Sequential(
        DropPath(0.5), paddle.nn.Dropout(0.5), paddle.nn.Dropout(0.5, mode="downscale_in_infer")
    )
    masks = StepMasks(1, 0)
    attach_masks(model, masks)
    assert not draws_random_numbers(model)
    x = paddle.ones([64, 40])
    masks.begin_step(0)
    paddle.seed(1)
    first = model(x).numpy()
    masks.begin_step(0)
    assert (model(x).numpy() != first).any()
    masks.begin_step(1)
    second = StepMasks(1, 0)
    attach_masks(model, second)
    second.begin_step(0)
    np.testing.assert_array_equal(model(x).numpy(), first)
    assert {*np.unique(first)} == {0.0, 4.0}  # the last layer does not scale
    model.eval()
    np.testing.assert_allclose(model(x).numpy(), 0.5)


@pytest.mark.parametrize("change", [0, 1])
def test_program_must_read_the_recorded_factors(change: int) -> None:
    masks = StepMasks(1, 0)
    with masks.recorded() as draws:
        for size in (3, 4):
            masks.draw([size], 0.25)
    assert draws == [([3], 0.25, 4 / 3), ([4], 0.25, 4 / 3)]
    factors = [masks.draw(*draw) for draw in draws]
    with masks.replaced(factors):
        assert [masks.draw([size], 0.25) for size in (3, 4)] == factors
    with pytest.raises(AssertionError), masks.replaced(factors):
        masks.draw([3 + change], 0.25)


def test_layers_without_masks_still_draw_random_numbers():
    model = paddle.nn.Sequential(paddle.nn.Dropout2D(0.5), paddle.nn.Dropout(0.5, axis=0))
    attach_masks(model, StepMasks(1, 0))
    assert draws_random_numbers(model[:1])
    assert draws_random_numbers(model[1:])
