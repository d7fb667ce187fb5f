"""Mixed batches of every loader, against plain NumPy, one row at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import paddle
import pytest
from loader_conformance import FAST, MAKERS, Arrays, arrays, assert_equal, take
from numpy.typing import NDArray

from ppcls.data.index.files import FileIndex
from ppcls.data.loaders.batch import Loader
from ppcls.data.loaders.mixing import MixedLoader, _partners, decide_mix, mix_images, mix_in_place, mix_labels
from ppcls.data.loaders.paddle import PaddleLoader
from ppcls.data.sampling.epoch_samplers import IdentitySampler, ShuffledSampler
from ppcls.data.sampling.order import Cursor, Order
from ppcls.data.sampling.sizes import MultiScale
from ppcls.data.transforms.base import Layout
from ppcls.data.transforms.batch import (
    BatchTransform,
    CutmixOperator,
    Mix,
    MixupOperator,
    MixWindow,
    OpSampler,
    SampledCutmix,
    SampledMixup,
)
from ppcls.data.transforms.specs import (
    DecodeImage,
    NormalizeImage,
    Op,
    RandCropImage,
    RandFlipImage,
    plan_chain,
)
from ppcls.loss.build import build_criterion
from ppcls.loss.classification import CELoss
from ppcls.metric.functional.single_label import topk_correct

CLASSES = 7
SIZE = 21
SOMETIMES = OpSampler(
    MixupOperator=SampledMixup(alpha=1.0, prob=0.4), CutmixOperator=SampledCutmix(alpha=1.0, prob=0.4)
)
SPECS = {"mixup": MixupOperator(alpha=1.0), "cutmix": CutmixOperator(), "sometimes": SOMETIMES}
ORDER = Order(ShuffledSampler(SIZE), batch_size=4, seed=3, group=2)  # six steps, the last of one sample


def chain(layout: Layout) -> tuple[Op, ...]:
    return plan_chain(
        [DecodeImage(), RandCropImage(size=(24, 20)), RandFlipImage(), NormalizeImage()], layout
    )


@pytest.fixture(scope="session")
def index(photos: dict[str, Path]) -> FileIndex:
    """21 photographs of seven classes."""
    names = [path for name, path in photos.items() if name.startswith(("jpeg", "png", "grey", "bmp", "prog"))]
    names = (names * 2)[:SIZE]
    return FileIndex(
        root=names[0].parent,
        paths=np.array([path.name.encode() for path in names]),
        labels=np.arange(SIZE) % CLASSES,
        source=names[0].parent,
    )


@pytest.fixture(
    params=[pytest.param(name, marks=pytest.mark.gpu if "gpu" in name else ()) for name in MAKERS]
)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


Make = Callable[..., Loader]


@pytest.fixture
def make(kind: str, index: FileIndex) -> Make:
    def loader(spec: BatchTransform | None, order: Order = ORDER, layout: Layout = "CHW") -> Loader:
        plain = MAKERS[kind](index, order, chain(layout))
        return plain if spec is None else MixedLoader(plain, spec, CLASSES, layout)

    return loader


def reference(plain: Arrays, mix: Mix, layout: Layout) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
    """Mixes a batch row by row and pixel by pixel, as in the papers."""
    images, labels, valid = plain[:3]
    mixed = images.astype(np.float64)
    hard = np.eye(CLASSES)[labels]
    shares = hard.copy()
    for row in range(len(labels)):
        other = row ^ 1
        if max(row, other) >= valid:
            continue
        own = np.full(images.shape[-2:] if layout == "CHW" else images.shape[1:3], mix.kept)
        if mix.window is not None:
            own[:] = 1
            own[mix.window.top : mix.window.bottom, mix.window.left : mix.window.right] = 0
        own = own[None] if layout == "CHW" else own[..., None]
        mixed[row] = own * images[row] + (1 - own) * images[other]
        shares[row] = (
            mix.kept * np.eye(CLASSES)[labels[row]] + (1 - mix.kept) * np.eye(CLASSES)[labels[other]]
        )
    return mixed.astype(np.float32), shares


@pytest.mark.parametrize("layout", ["CHW", "HWC"])
@pytest.mark.parametrize(
    ("kind", "spec"),
    [
        *(pytest.param(kind, spec, id=f"{kind}-{name}") for kind in FAST for name, spec in SPECS.items()),
        pytest.param(
            "dali-gpu", SOMETIMES, id="dali-gpu-sometimes", marks=pytest.mark.gpu
        ),  # all three occur
    ],
)
def test_pairs_match_reference(make: Make, spec: BatchTransform, layout: Layout) -> None:
    plain, mixed = (take(make(each, layout=layout), epochs=2) for each in (None, spec))
    assert len(plain) == len(mixed) == 12
    changed = 0
    for number, (before, after) in enumerate(zip(plain, mixed, strict=True)):
        mix = decide_mix(spec, ORDER.seed, Cursor(number // 6, number % 6), (20, 24))
        image, label = reference(before, mix, layout)
        assert (after[0].dtype, after[1].dtype) == (np.float32, np.float32)
        np.testing.assert_allclose(after[0], image, rtol=0, atol=2e-6)
        np.testing.assert_allclose(after[1], label, rtol=0, atol=1e-6)
        np.testing.assert_allclose(after[1].sum(axis=1), 1.0, rtol=0, atol=1e-6)
        assert after[2:] == before[2:]
        changed += np.abs(image - before[0]).max() > 0.5
    assert changed >= 6


@pytest.mark.parametrize(
    ("kind", "size", "worlds"),
    [
        *((kind, size, (2, 4)) for kind in FAST for size in (21, 18)),
        pytest.param("dali-gpu", 21, (2,), marks=pytest.mark.gpu),
    ],
)
def test_mixed_batches_do_not_depend_on_ranks(make: Make, size: int, worlds: tuple[int, ...]) -> None:
    whole_order = replace(ORDER, sampler=ShuffledSampler(size), batch_size=8)
    whole = take(make(SOMETIMES, whole_order))
    for world in worlds:
        ranks = [
            take(make(SOMETIMES, replace(whole_order, batch_size=8 // world, world=world, rank=rank)))
            for rank in range(world)
        ]
        for one, *parts in zip(whole, *ranks, strict=True):
            assert sum(part[2] for part in parts) == one[2]
            for place in (0, 1):
                together = np.concatenate([part[place][: part[2]] for part in parts])
                np.testing.assert_array_equal(together, one[place][: one[2]])


@pytest.mark.parametrize("kind", ["dali-cpu", "paddle-0"])
def test_window_follows_changing_size(kind: str, index: FileIndex) -> None:
    """The window is chosen for the size of the step's images."""
    sizes = MultiScale(sizes=(16, 28))
    plain, mixed = (MAKERS[kind](index, ORDER, chain("CHW"), sizes=sizes) for _ in range(2))
    found = take(MixedLoader(mixed, CutmixOperator(), CLASSES, "CHW"))
    for number, (before, after) in enumerate(zip(take(plain), found, strict=True)):
        side = before[0].shape[2]
        mix = decide_mix(CutmixOperator(), ORDER.seed, Cursor(0, number), (side, side))
        for one, two in zip(reference(before, mix, "CHW"), after[:2], strict=True):
            np.testing.assert_allclose(two, one, rtol=0, atol=1e-6)
    assert {each[0].shape[2] for each in found} == {16, 28}


@pytest.mark.parametrize("kind", FAST)
def test_resume_from_every_step_equals_uninterrupted(make: Make) -> None:
    loader = make(SOMETIMES)
    states, undisturbed = [loader.state_dict()], []
    for _ in range(2):
        for batch in loader:
            undisturbed.append(arrays(batch))
            states.append(loader.state_dict())
    assert states[3] == ORDER.state_dict(Cursor(0, 3))
    for step in (0, 2, 5, 6, 9):
        resumed = make(SOMETIMES)
        resumed.load_state_dict(states[step])
        assert resumed.state_dict() == states[step]
        assert_equal(take(resumed), undisturbed[step : 6 if step < 6 else 12])


ENDING = SOMETIMES.model_copy(update={"last_epoch": 2})


@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize("kind", [*FAST, pytest.param("dali-gpu", marks=pytest.mark.gpu)])
def test_epochs_after_the_last_one_are_not_mixed(make: Make, world: int) -> None:
    """Shapes and dtypes stay the same, so that captured CUDA graphs fit. Resumed runs do not mix either."""
    orders = [replace(ORDER, batch_size=8 // world, world=world, rank=rank) for rank in range(world)]
    for order in orders:
        plain, mixed, found = (take(make(spec, order), epochs=4) for spec in (None, SOMETIMES, ENDING))
        steps = len(order)
        assert_equal(found[: 2 * steps], mixed[: 2 * steps])
        for before, after in zip(plain[2 * steps :], found[2 * steps :], strict=True):
            np.testing.assert_array_equal(after[0], before[0])
            np.testing.assert_array_equal(after[1], np.eye(CLASSES, dtype=np.float32)[before[1]])
            assert after[2:] == before[2:]
        assert [[(part.shape, part.dtype) for part in batch[:2]] for batch in found] == [
            [(part.shape, part.dtype) for part in batch[:2]] for batch in mixed
        ]
        for epoch, step in ((1, 1), (2, 0), (2, 1), (3, 2)):
            resumed = make(ENDING, order)
            resumed.load_state_dict(order.state_dict(Cursor(epoch, step)))
            start = epoch * steps + step
            assert_equal(take(resumed), found[start : (epoch + 1) * steps])


@pytest.mark.parametrize("kind", FAST)
def test_interrupted_iteration_continues(make: Make) -> None:
    expected = take(make(SOMETIMES), epochs=2)
    loader = make(SOMETIMES)
    assert len(loader) == 6
    found = [arrays(batch) for batch in islice(loader, 2)]
    assert_equal(found + take(loader, epochs=2), expected)


def test_retained_batch_is_not_overwritten(make: Make) -> None:
    loader = make(MixupOperator())
    kept = [(batch, arrays(batch)) for _ in range(2) for batch in loader]
    assert_equal([arrays(batch) for batch, _ in kept], [copy for _, copy in kept])


@pytest.mark.parametrize("kind", FAST)
def test_images_of_identity_are_partners(make: Make) -> None:
    """Their common label keeps weight 1."""
    sampler = IdentitySampler(np.arange(SIZE) % CLASSES, 2, 3)
    order = replace(ORDER, sampler=sampler, batch_size=6, group=2)
    for _, label, valid, _, _ in take(make(MixupOperator(), order)):
        np.testing.assert_allclose(label[:valid].max(axis=1), 1.0, atol=1e-6)


def test_order_that_separates_pairs_is_rejected(index: FileIndex) -> None:
    loader = PaddleLoader(index, replace(ORDER, group=1), chain("CHW"))
    with pytest.raises(ValueError, match="expected an order with an even group, got group 1"):
        MixedLoader(loader, MixupOperator(), CLASSES, "CHW")


WINDOW = MixWindow(2, 7, 0, 3)
MIXES = [
    *map(Mix, (0.5, 0.7, 0.99, 1.0)),
    Mix(1 - 15 / 80, WINDOW),
    Mix(0.0, MixWindow(0, 8, 0, 10)),
    Mix(1.0, MixWindow(3, 3, 0, 5)),
]


def check_tensors(mix: Mix, layout: Layout, valid: int, dtype: str = "float32") -> None:
    rng = np.random.default_rng(2)
    shape = (6, 3, 8, 10) if layout == "CHW" else (6, 8, 10, 3)
    image = rng.normal(size=shape).astype(dtype)
    label = rng.integers(0, CLASSES, 6)
    wanted = reference((image.copy(), label, valid, 1.0, True), mix, layout)
    rows = valid - valid % 2
    found = mix_images(paddle.to_tensor(image), mix, rows, layout)
    assert found.numpy().dtype == dtype
    np.testing.assert_allclose(found.numpy(), wanted[0], rtol=0, atol=1e-6 if dtype == "float32" else 4e-3)
    np.testing.assert_array_equal(found.numpy()[rows:], image[rows:])
    shares = mix_labels(paddle.to_tensor(label), mix, rows, CLASSES)
    np.testing.assert_allclose(shares.numpy(), wanted[1], rtol=0, atol=1e-6)


@pytest.mark.parametrize("valid", [6, 5, 2, 1, 0])
@pytest.mark.parametrize("layout", ["CHW", "HWC"])
@pytest.mark.parametrize("mix", MIXES)
def test_cpu_tensors_match_reference(mix: Mix, layout: Layout, valid: int) -> None:
    check_tensors(mix, layout, valid)


@pytest.mark.parametrize("mix", MIXES)
def test_float16_cpu_tensors_match_reference(mix: Mix) -> None:
    check_tensors(mix, "CHW", 5, "float16")


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("valid", [6, 5, 1])
@pytest.mark.parametrize("layout", ["CHW", "HWC"])
@pytest.mark.parametrize("mix", [Mix(0.7), Mix(1 - 15 / 80, WINDOW), Mix(0.0, MixWindow(0, 8, 0, 10))])
def test_gpu_tensors_match_reference(mix: Mix, layout: Layout, valid: int, dtype: str) -> None:
    """Runs each operator once; the test above runs all other numbers on a CPU."""
    check_tensors(mix, layout, valid, dtype)


@pytest.fixture
def _device_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    """Uses the code for a GPU, whose operators work on a CPU too."""
    monkeypatch.setattr("ppcls.data.loaders.mixing._on_cpu", lambda image: False)


@pytest.mark.usefixtures("_device_operators")
@pytest.mark.parametrize("valid", [6, 5, 2, 1, 0])
@pytest.mark.parametrize("layout", ["CHW", "HWC"])
@pytest.mark.parametrize("mix", MIXES)
def test_gpu_operators_match_reference_on_cpu(mix: Mix, layout: Layout, valid: int) -> None:
    check_tensors(mix, layout, valid)


def test_mix_in_place_keeps_surrounding_memory() -> None:
    images = np.random.default_rng(0).normal(size=(4, 3, 5, 6)).astype(np.float32)
    around = np.zeros((6, *images.shape[1:]), np.float32)
    around[1:5] = images
    mix_in_place(around[1:5], Mix(0.75), "CHW")
    assert not around[0].any()
    assert not around[5].any()
    np.testing.assert_allclose(around[2], 0.75 * images[1] + 0.25 * images[0], atol=1e-6)


def test_partners_swaps_pairs() -> None:
    rows = paddle.arange(7)
    assert _partners(rows, 6).tolist() == [1, 0, 3, 2, 5, 4, 6]
    assert _partners(rows, 0).tolist() == list(range(7))


@pytest.mark.parametrize("epsilon", [None, 0.1])
def test_loss_is_weighted_sum_of_both_labels(epsilon: float | None) -> None:
    rng = np.random.default_rng(1)
    logits = paddle.to_tensor(rng.normal(size=(6, CLASSES)).astype(np.float32) * 3)
    label = paddle.to_tensor(rng.integers(0, CLASSES, 6))
    criterion = build_criterion((CELoss(epsilon=epsilon),))
    mixed = criterion(logits, mix_labels(label, Mix(0.3), 6, CLASSES))
    hard = [float(criterion(logits, each)) for each in (label, _partners(label, 6))]
    assert float(mixed) == pytest.approx(0.3 * hard[0] + 0.7 * hard[1], rel=1e-5)


def test_metric_counts_more_probable_class() -> None:
    label = paddle.to_tensor([0, 1, 2, 3])
    shares = mix_labels(label, Mix(0.3), 4, CLASSES)
    logits = paddle.nn.functional.one_hot(paddle.to_tensor([1, 0, 2, 2]), CLASSES)
    assert topk_correct(logits, shares, (1,)).tolist() == [3]
    assert topk_correct(logits, mix_labels(label, Mix(0.7), 4, CLASSES), (1,)).tolist() == [1]
