from __future__ import annotations

import time
from collections.abc import Callable
from threading import Thread

import numpy as np
import paddle
import pytest
from small_net import Net, make_state

from ppcls.data.loaders.batch import Batch
from ppcls.data.transforms.specs import DecodeImage, NormalizeImage, ToCHWImage
from ppcls.data.transforms.specs.basic import DecodeNumpy
from ppcls.engine.evaluation.report_inputs import ReportImages, TurnLock, unnormalize, weight_histograms
from ppcls.recipe.schema import Config

NORMALIZE = NormalizeImage(mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.1))


def normalized(pixels: np.ndarray, spec: NormalizeImage) -> np.ndarray:
    scaled = pixels.astype(np.float32) * spec.scale
    return (scaled - np.array(spec.mean, np.float32)) / np.array(spec.std, np.float32)


@pytest.mark.parametrize("rgb", [True, False])
@pytest.mark.parametrize("fill", [0, 1])
def test_unnormalize_returns_the_original_pixels(rgb: bool, fill: int) -> None:
    pixels = np.random.default_rng(1).integers(0, 256, (5, 7, 3), np.uint8)
    chain = [DecodeImage(to_rgb=rgb), NORMALIZE, ToCHWImage()]
    image = np.pad(normalized(pixels, NORMALIZE), ((0, 0), (0, 0), (0, fill)))
    np.testing.assert_array_equal(unnormalize(image, chain), pixels if rgb else pixels[:, :, ::-1])


def test_unnormalize_scales_16_bit_pixels_and_other_numbers() -> None:
    deep = np.random.default_rng(1).integers(0, 256, (4, 4, 1)).astype(np.uint8)
    spec = NormalizeImage(scale=1 / 65535, mean=(0.5,), std=(0.5,))
    chain = [DecodeImage(channels=1, dtype="uint16"), spec]
    np.testing.assert_array_equal(unnormalize(normalized(deep * np.uint16(257), spec), chain), deep)
    spec = NormalizeImage(scale=1.0, mean=(0.0,), std=(1.0,))
    numbers = np.array([-3.0, np.nan, 5.0], np.float32).reshape(1, 3, 1)
    shown = unnormalize(numbers, [DecodeNumpy(channels=1, dtype="float32"), spec])
    assert shown.ravel().tolist() == [0, 96, 255]
    numbers[0, 1] = np.inf
    shown = unnormalize(numbers, [DecodeNumpy(channels=1, dtype="float32"), spec])
    assert shown.ravel().tolist() == [0, 96, 255]
    assert not unnormalize(np.ones((2, 2, 1)), [DecodeNumpy(channels=1, dtype="float32"), spec]).any()


def batch(value: float, label: paddle.Tensor, valid: int) -> Batch:
    return Batch(paddle.full([len(label), 3, 4, 4], value), label, valid, 1.0, True)


def test_first_batch_of_each_epoch_is_stored_unchanged(make_config: Callable[..., Config]) -> None:
    pictures = ReportImages(make_config().DataLoader, "NCHW", None, ("cat", "dog"))
    state = make_state()

    def show(batch: Batch) -> None:
        pictures.on_batch(state, batch)
        batch.image.zero_()  # as memory that is used again

    assert pictures.augmented() == []
    for value in (2.0, -2.0):
        show(batch(value, paddle.to_tensor([0, 1, 2]), valid=2))
    shown = pictures.augmented()
    assert [each.caption for each in shown] == ["cat", "dog"]
    assert all((each.pixels == 255).all() for each in shown), "0.5 + 2 * 0.25 of 255"
    assert pictures.augmented() is shown
    for _ in range(len(state.loader)):
        next(iter(state.loader))
    assert state.epoch == 1
    shares = paddle.to_tensor([[0.25, 0.0, 0.75, 0.0]])
    show(batch(-2.0, shares, valid=1))
    (mixed,) = pictures.augmented()
    assert mixed.caption == "0.75 2 + 0.25 cat"
    assert not mixed.pixels.any()


def test_evaluated_samples_are_read_while_they_can_be(make_config: Callable[..., Config]) -> None:
    config = make_config()
    split = config.DataLoader.Eval
    assert split is not None
    index = split.dataset.read(4)
    pictures = ReportImages(config.DataLoader, config.Arch.data_format, index, ())
    found = pictures.evaluated(1)
    assert found is not None
    assert found.title == index.name(1)
    assert found.pixels.dtype == np.uint8
    assert found.pixels.shape[2] == 3
    assert ReportImages(config.DataLoader, config.Arch.data_format, None, ()).evaluated(1) is None

    class Gone:
        def __getattr__(self, name: str) -> object:
            return getattr(index, name)

        def read(self, position: int) -> bytes:
            return b"no image"

    assert ReportImages(config.DataLoader, config.Arch.data_format, Gone(), ()).evaluated(1) is None  # type: ignore[arg-type]


def test_histogram_counts_every_number_between_its_edges() -> None:
    model = Net()
    found = weight_histograms(model)
    assert list(found) == ["conv.weight", "bn.weight", "bn.bias", "fc.weight", "fc.bias"], "what is trained"
    trained = dict(model.named_parameters())
    for name, histogram in found.items():
        values = trained[name].numpy().ravel()
        assert histogram.counts.sum() == len(values)
        assert len(histogram.edges) == len(histogram.counts) + 1
        assert histogram.edges[0] <= values.min() <= values.max() <= histogram.edges[-1]
    np.testing.assert_allclose(
        found["conv.weight"].counts, np.histogram(model.conv.weight.numpy(), bins=40)[0], atol=1
    )


def test_histogram_of_equal_numbers_exists_and_of_non_finite_ones_does_not() -> None:
    model = Net()
    with paddle.no_grad():
        model.fc.bias.set_value(paddle.to_tensor([1.0, float("nan"), 0.0, 0.0]))
    found = weight_histograms(model)
    assert "fc.bias" not in found
    assert found["bn.weight"].counts.sum() == 4, "all ones"
    assert (found["bn.weight"].edges[0], found["bn.weight"].edges[-1]) == (0.5, 1.5)


def test_histogram_counts_half_precision_weights() -> None:
    model = Net()
    model.conv.weight = paddle.create_parameter([2, 2], "float32")
    model.to(dtype="bfloat16")
    assert weight_histograms(model)["fc.weight"].counts.sum() == 16


def test_thread_that_waits_gets_the_lock_before_one_that_asks_again() -> None:
    lock = TurnLock()
    order = []

    def wait() -> None:
        with lock:
            order.append("waiting")

    thread = Thread(target=wait)
    with lock:
        thread.start()
        while not lock._next.locked():  # until the thread waits
            time.sleep(0.001)
    with lock:
        order.append("again")
    thread.join()
    assert order == ["waiting", "again"]
