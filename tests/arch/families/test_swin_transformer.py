from __future__ import annotations

import numpy as np
import paddle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ppcls.arch.families.swin_transformer import SwinTransformer
from ppcls.arch.layers.windows import WindowPartition, relative_positions, shift_mask
from ppcls.errors import UserError
from ppcls.weights.files import fill_model

SIDES = st.integers(1, 3)


@given(SIDES, SIDES, st.integers(1, 4))
@settings(max_examples=20, deadline=None)
def test_windows_round_trip(down: int, along: int, window: int) -> None:
    height, width = down * window, along * window
    x = np.arange(2 * height * width * 3).reshape(2, height, width, 3)
    windows = WindowPartition().split(paddle.to_tensor(x), window).numpy()
    assert windows.shape == (2 * down * along, window * window, 3)
    last = x[-1, height - window :, width - window :].reshape(-1, 3)
    np.testing.assert_array_equal(windows[-1], last)
    back = WindowPartition().join(paddle.to_tensor(windows), window, height, width)
    np.testing.assert_array_equal(back.numpy(), x)


@given(SIDES, SIDES, st.integers(2, 5))
@settings(max_examples=20, deadline=None)
def test_shift_mask_separates_wrapped_regions(down: int, along: int, window: int) -> None:
    """Two tokens of a shifted window attend to each other if neither row nor column wrapped around."""
    height, width, shift = down * window, along * window, window // 2
    mask = shift_mask(height, width, window).numpy()
    assert mask.shape == (down * along, 1, window**2, window**2)
    places = np.stack(np.indices((height, width)), -1)
    rolled = np.roll(places, (-shift, -shift), (0, 1))
    windows = WindowPartition().split(paddle.to_tensor(rolled[None]), window).numpy()
    for allowed, tokens in zip(mask[:, 0] == 0, windows, strict=True):
        near = np.abs(tokens[:, None] - tokens[None]).max(-1) < window
        # In a shifted window that crosses an edge, a row is either before the shift or wrapped around.
        wrapped = tokens < shift
        first = tokens.min(0) < shift
        same = ((wrapped[:, None] == wrapped[None]) | ~first).all(-1)
        np.testing.assert_array_equal(allowed, near & same)
    assert {*np.unique(mask)} <= {0.0, -100.0}


def test_equal_displacements_share_bias() -> None:
    window = 3
    index = relative_positions(window)
    rows, columns = np.divmod(np.arange(window**2), window)
    moves = np.stack([rows[:, None] - rows, columns[:, None] - columns], -1)
    seen = {}
    for place, move in zip(index.ravel(), moves.reshape(-1, 2), strict=True):
        assert seen.setdefault(int(place), tuple(move)) == tuple(move)
    assert sorted(seen) == list(range((2 * window - 1) ** 2))


@pytest.fixture(scope="module")
def model() -> SwinTransformer:
    paddle.seed(1)
    return SwinTransformer(6, (1, 2, 1, 1), 3, 4, class_num=5)


@pytest.mark.parametrize("sides", [(32, 32), (33, 70), (3, 1)])
def test_any_image_size_is_accepted(model: SwinTransformer, sides: tuple[int, int]) -> None:
    model.eval()
    logits = model(paddle.randn([2, 3, *sides]))
    assert logits.shape == [2, 5]
    assert np.isfinite(logits.numpy()).all()


def test_padding_does_not_affect_logits(model: SwinTransformer) -> None:
    """Columns that only complete the last patch are zeros, whether the caller or the model adds them."""
    model.eval()
    x = paddle.randn([1, 3, 30, 45])
    padded = paddle.nn.functional.pad(x, [0, 3, 0, 2])
    np.testing.assert_allclose(model(x).numpy(), model(padded).numpy(), rtol=0, atol=1e-6)


def test_checkpoint_with_or_without_derived_buffers_loads(model: SwinTransformer) -> None:
    arrays = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    name = "layers.1.blocks.1.attn.relative_position_index"
    index = arrays[name]
    learnt = {key: value + 1 for key, value in arrays.items() if not key.endswith("position_index")}
    masks = {"layers.1.blocks.1.attn_mask": np.zeros((4, 16, 16), np.float32)}
    fill_model(model, learnt | masks, "here")
    state = model.state_dict()
    np.testing.assert_array_equal(state[name].numpy(), index)
    np.testing.assert_array_equal(state["head.bias"].numpy(), learnt["head.bias"])
    fill_model(model, arrays | {name: index * 0}, "here")
    np.testing.assert_array_equal(state[name].numpy(), index)
    with pytest.raises(UserError, match=r"layers\.1\.blocks\.1\.mask: not in the model"):
        fill_model(model, arrays | {"layers.1.blocks.1.mask": index}, "here")
