"""Automatic augmentation: decisions, the operations in DALI and OpenCV, and whole loaders."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from nvidia.dali import Pipeline, fn
from nvidia.dali import pipeline as dali_pipeline
from nvidia.dali.auto_aug import auto_augment, rand_augment, trivial_augment
from PIL import Image, ImageEnhance, ImageOps
from pydantic import ValidationError
from shared_pipeline import GraphBranch, Images, SharedPipeline
from skimage import data

from ppcls.data.index.folders import ImageFolderDataset
from ppcls.data.index.image_lists import ImageNetDataset
from ppcls.data.index.protocol import Index
from ppcls.data.loaders.dali.loader import DaliLoader
from ppcls.data.loaders.dali.settings import DaliSettings
from ppcls.data.loaders.paddle import PaddleLoader
from ppcls.data.sampling.epoch_samplers import SequentialSampler, ShuffledSampler
from ppcls.data.sampling.order import Cursor, Order
from ppcls.data.transforms.base import ImageState
from ppcls.data.transforms.dali_ops import Device, LoweringContext, Node, lower
from ppcls.data.transforms.dali_ops.graph import nodes_between, operator_device
from ppcls.data.transforms.dali_ops.policies import dali_suite
from ppcls.data.transforms.numpy_ops import apply
from ppcls.data.transforms.numpy_ops.policies import augment
from ppcls.data.transforms.specs import DecodeImage, NormalizeImage, Op, RandCropImage, plan_chain
from ppcls.data.transforms.specs.decisions import Decisions, count_decisions, decide
from ppcls.data.transforms.specs.mixed_policies import AugMix, RandAugmentV4
from ppcls.data.transforms.specs.policies import (
    AutoAugment,
    Policy,
    RandAugment,
    RandAugmentV3,
    TimmAutoAugment,
    TrivialAugment,
)
from ppcls.data.transforms.specs.policy_tables import (
    AUTO,
    BINS,
    RAND,
    RAND_AS_AUTO,
    TRIVIAL_WIDE,
    PolicyName,
    Suite,
    read_policies,
)
from ppcls.data.transforms.specs.rng import uniforms

POLICIES = read_policies()

SPECS: list[Policy] = [
    RandAugment(),
    RandAugment(num_layers=3, magnitude=20, num_magnitude_bins=31, max_translate_abs=40),
    RandAugment(monotonic_mag=False, magnitude=9),
    TrivialAugment(),
    TrivialAugment(max_translate_rel=0.5, num_magnitude_bins=5, fill_value=0),
    TimmAutoAugment(),
    RandAugment(source="paddleclas", magnitude=9),
    AutoAugment(source="paddleclas"),
    *(AutoAugment(policy=name) for name in POLICIES),
]


def name_of(spec: Policy) -> str:
    return "-".join([spec.kind, *map(str, spec.model_dump(exclude_defaults=True).values())])


def draws_of(spec: Policy, count: int) -> NDArray[np.float32]:
    return uniforms(7, 0, np.arange(count), spec.draws)


def chosen_of(spec: Policy, count: int) -> tuple[NDArray[np.int32], ...]:
    return decide(spec, draws_of(spec, count), np.full([count, 2], 9))[:3]


def sides_of(spec: Policy, images: Images) -> tuple[NDArray[np.float32], ...]:
    return spec.sides_for_translation(np.array([image.shape[:2] for image in images]))


# Tables


def dali_auto(name: PolicyName) -> auto_augment.Policy:
    make = getattr(auto_augment, f"get_{name}_policy")
    return make() if name == "reduced_image_net" else make(use_shape=True)


def check_suite(ours: Suite, theirs: list[Any]) -> None:
    for each in theirs:
        augmentation = ours[each.name]
        if not each.name.startswith("translate"):  # whose range is an option
            assert (augmentation.low, augmentation.high) == (each.mag_range or (0, 0))
        assert augmentation.signed == each.randomly_negate


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (RAND, rand_augment.get_rand_augment_suite()),
        (RAND_AS_AUTO, rand_augment.get_rand_augment_non_monotonic_suite()),
        (TRIVIAL_WIDE, trivial_augment.get_trivial_augment_wide_suite()),
    ],
    ids=["rand", "rand as auto", "trivial wide"],
)
def test_operations_and_ranges_equal_dali(ours: Suite, theirs: list[Any]) -> None:
    assert list(ours) == [each.name for each in theirs]
    check_suite(ours, theirs)


@pytest.mark.parametrize("name", POLICIES)
def test_sub_policies_equal_dali(name: PolicyName) -> None:
    theirs = dali_auto(name)
    assert theirs.num_magnitude_bins == BINS
    check_suite(AUTO, list(theirs.augmentations.values()))
    ours = [[(step.name, step.probability, step.bin) for step in pair] for pair in POLICIES[name]]
    assert ours == [[(each.name, p, number or 0) for each, p, number in pair] for pair in theirs.sub_policies]


@pytest.mark.parametrize("spec", SPECS, ids=name_of)
def test_translation_range_equals_dali(spec: Policy) -> None:
    for name, theirs in dali_suite(spec).items():
        assert spec.suite[name].high == (theirs.mag_range or (0, 0))[1]
        assert ("shape" in theirs.op.__code__.co_varnames) == (
            name.startswith("translate") and spec.translation[1]
        )


# Options


def test_policies_have_the_documented_defaults() -> None:
    assert RandAugment.model_validate({"num_layers": 2, "magnitude": 5}) == RandAugment()
    assert AutoAugment.model_validate({}).policy == "reduced_image_net"
    assert RandAugment(num_layers=3).draws == 6
    assert TrivialAugment().translation == (32, False)
    assert TrivialAugment(max_translate_rel=0.25).translation == (0.25, True)
    assert list(map(count_decisions, SPECS)) == [4, 3, 4, 3, 4, 4, 4, 3, 4, 3, 4, 4]


@pytest.mark.parametrize(
    ("spec", "share"),
    [
        (RandAugment(), 100 / 224),
        (RandAugmentV3(), 150 / 331),
        (RandAugmentV4(), 150 / 331),
        (AutoAugment(), 150 / 331),
        (AugMix(), 1 / 3),
        (TimmAutoAugment(), 0.45),
    ],
)
def test_policy_translates_by_the_share_of_its_source(spec: Policy, share: float) -> None:
    assert spec.suite["translate_x"].high == spec.suite["translate_y"].high == share


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: RandAugment(magnitude=11), r"expected a magnitude below num_magnitude_bins \(11\), got 11"),
        (lambda: RandAugment(num_layers=0), "expected an integer > 0, got 0"),
        (
            lambda: TimmAutoAugment(config_str="augmix-m3"),
            "expected text that starts with rand, such as rand-m9-mstd0.5-inc1",
        ),
        (lambda: TimmAutoAugment(config_str="rand-m9-inc1-w0"), "expected m, mstd, inc or n, .* 'w0'"),
        (lambda: TimmAutoAugment(config_str="rand-m9"), "expected the part inc1"),
        (lambda: TrivialAugment(fill_value=256), "expected an integer >= 0 and <= 255, got 256"),
        (lambda: TrivialAugment(num_magnitude_bins=1), "expected an integer >= 2, got 1"),
        (lambda: AutoAugment(max_translate_rel=0.1, max_translate_abs=3), "got both"),
        (lambda: AutoAugment(policy="imagenet"), "expected 'image_net', 'reduced_image_net', 'svhn'"),
    ],
)
def test_wrong_option_is_rejected(make: Callable[[], Policy], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        make()


def test_paddleclas_chain_is_accepted() -> None:
    def chain(policy: Any) -> list[Any]:
        return ["DecodeImage", {"RandCropImage": {"size": 8}}, policy, {"NormalizeImage": {"order": ""}}]

    def read(policy: Any) -> Any:
        return ImageFolderDataset.model_validate({"image_root": ".", "transform_ops": chain(policy)})

    assert read({"AutoAugment": None}).transform_ops[2] == AutoAugment()
    assert read("TrivialAugment").transform_ops[2] == TrivialAugment()
    found = read({"RandAugment": {"num_layers": 3, "magnitude": 9}}).transform_ops[2]
    assert found == RandAugment(num_layers=3, magnitude=9)
    with pytest.raises(ValidationError, match="put this transform before NormalizeImage"):
        ImageFolderDataset.model_validate(
            {"image_root": ".", "transform_ops": [*chain("ToCHWImage")[:2], "NormalizeImage", "RandAugment"]}
        )


def test_policy_needs_decoded_rgb() -> None:
    state = ImageState(encoded=False)
    assert RandAugment().after(state) == state
    with pytest.raises(ValueError, match="expected an image with 3 channels, got 4"):
        RandAugment().after(replace(state, channels=4))
    with pytest.raises(ValueError, match="expected a decoded image"):
        RandAugment().after(ImageState())


# Choices


@pytest.mark.parametrize("spec", SPECS, ids=name_of)
def test_decisions_are_within_bounds(spec: Policy) -> None:
    operations, bins, negated = chosen_of(spec, 2000)
    for each in (operations, bins, negated):
        assert each.dtype == np.int32
        assert each.shape == (2000, len(spec.stages))
    for stage, names in enumerate(spec.stages):
        assert set(operations[:, stage]) == set(range(len(names)))
    assert bins.min() >= 0
    assert bins.max() < spec.bins


@given(st.integers(0, len(SPECS) - 1), st.integers(1, 40), st.data())
def test_decisions_do_not_depend_on_batch(number: int, count: int, draw: st.DataObject) -> None:
    spec = SPECS[number]
    at = draw.draw(st.integers(0, count - 1))
    draws = draws_of(spec, count)
    sides = np.arange(1, 2 * count + 1).reshape(count, 2)
    batch, alone = decide(spec, draws, sides), decide(spec, draws[at : at + 1], sides[at : at + 1])
    for each in batch[3:]:
        np.testing.assert_array_equal(each, sides)
    for one, all_ in zip(alone, batch, strict=True):
        np.testing.assert_array_equal(one[0], all_[at])


def check_frequencies(found: NDArray[Any], expected: NDArray[np.float64]) -> None:
    """Allows five standard deviations, exceeded once in two million."""
    counts, total = np.bincount(found.ravel(), minlength=len(expected)), found.size
    assert (np.abs(counts - total * expected) <= 5 * np.sqrt(total * expected * (1 - expected)) + 1e-9).all()


@pytest.mark.parametrize("spec", [RandAugment(), TrivialAugment()], ids=name_of)
def test_operations_and_signs_are_equally_likely(spec: Policy) -> None:
    operations, bins, negated = chosen_of(spec, 30000)
    check_frequencies(operations, np.full(14, 1 / 14))
    check_frequencies(negated, np.full(2, 1 / 2))
    if isinstance(spec, RandAugment):
        assert (bins == spec.magnitude).all()
        check_frequencies(operations[:, 0] * 14 + operations[:, 1], np.full(196, 1 / 196))
    else:
        check_frequencies(bins, np.full(31, 1 / 31))
        check_frequencies(operations * 31 + bins, np.full(434, 1 / 434))


@pytest.mark.parametrize("name", POLICIES)
def test_pairs_and_probabilities_match_policy(name: PolicyName) -> None:
    spec = AutoAugment(policy=name)
    operations, bins, negated = chosen_of(spec, 30000)
    check_frequencies(negated, np.full(2, 1 / 2))
    for stage, names in enumerate(spec.stages):
        steps = [pair[stage] for pair in POLICIES[name] if stage < len(pair)]
        expected = np.array(
            [sum(each.probability for each in steps if each.name == one) / 25 for one in names]
        )
        expected[-1] = 1 - expected.sum()  # identity: nothing applied
        check_frequencies(operations[:, stage], expected)
        for number, one in enumerate(names[:-1]):
            assert set(bins[operations[:, stage] == number, stage]) == {
                each.bin for each in steps if each.name == one and each.probability
            }


def test_timm_magnitudes_are_normal_and_half_of_operations_skipped() -> None:
    spec = TimmAutoAugment(config_str="rand-inc1-mstd0.5-m7")
    operations, bins, negated = chosen_of(spec, 30000)
    check_frequencies(negated, np.full(2, 1 / 2))
    check_frequencies(operations, np.array([*[1 / 30] * 15, 1 / 2]))
    assert abs(bins.mean() - 70) < 0.2
    assert abs(bins.std() - 5) < 0.2
    strongest = TimmAutoAugment(config_str="rand-m15-mstd0.5-inc1")
    assert (chosen_of(strongest, 100)[1] == strongest.bins - 1).all()


def test_timm_policy_changes_the_given_share_of_images() -> None:
    spec = TimmAutoAugment(prob=0.25)
    operations = chosen_of(spec, 20000)[0]
    assert TimmAutoAugment().draws == spec.draws - 1
    # Each of the two operations of a changed image is skipped in half of the cases.
    assert abs((operations != 15).any(axis=1).mean() - 0.25 * 3 / 4) < 0.01


# Pixels


@pytest.fixture(scope="module")
def pictures() -> Images:
    """Returns three photographs of different sides, and an image of a single grey level."""
    scenes = [np.asarray(getattr(data, name)()) for name in ("astronaut", "chelsea", "coffee")]
    cut = [scenes[0][60:188, 80:271], scenes[1][80:181, 90:240], scenes[2][20:140, 200:320]]
    return [*(np.ascontiguousarray(each) for each in cut), np.full([20, 30, 3], 77, np.uint8)]


def branch(spec: Policy, images: Images, decided: Decisions, device: Device) -> GraphBranch:
    """Returns a graph of the policy and a flip, which needs no conditionals."""

    def lowered(node: Node, *nodes: Node) -> Node:
        node = fn.reshape(node, layout="HWC")
        context = LoweringContext(device, callbacks=False, decisions=nodes)
        return fn.flip(lower(spec, node.gpu() if device == "gpu" else node, context), horizontal=1)

    return GraphBranch([images, *decided], lowered)


WARPED = ("translate_x", "translate_y", "shear_x", "shear_y", "rotate")
ROUNDED = ("brightness", "contrast", "color", "sharpness", "auto_contrast", "equalize")


def every_choice(spec: Policy) -> Iterator[tuple[str, list[list[int]]]]:
    """Yields each operation at each stage with some of its magnitudes; the other stages do nothing."""
    nothing = [[len(names) - 1, 0, 0] for names in spec.stages]
    bins = [0, 1, spec.bins // 2, spec.bins - 1]
    for stage, names in enumerate(spec.stages):
        for (operation, name), number, negated in product(enumerate(names), bins, [0, 1]):
            yield name, [*nothing[:stage], [operation, number, negated], *nothing[stage + 1 :]]


def compare_operations(spec: Policy, pictures: Images, device: Device) -> None:
    names, choices = zip(*every_choice(spec), strict=True)
    rows = np.repeat(np.array(choices, np.int32), len(pictures), axis=0)  # [choices and pictures, stages, 3]
    images = pictures * len(choices)
    decided = (*np.ascontiguousarray(np.moveaxis(rows, 2, 0)), *sides_of(spec, images))
    mirrored = SharedPipeline({spec: branch(spec, images, decided, device)}, device).images(spec)
    for row, (image, got) in enumerate(zip(images, mirrored, strict=True)):
        wanted = apply(spec, image, tuple(each[row] for each in decided))
        difference, name = np.abs(wanted.astype(int) - got[:, ::-1]), names[row // len(pictures)]
        if name in WARPED:
            assert difference.mean() < 0.3, (name, rows[row])  # OpenCV 4 interpolates at 32nds of a pixel
        else:
            assert difference.max() <= (1 if name in ROUNDED else 0), (name, rows[row])


SINGLY = [
    RandAugment(num_layers=1),
    TrivialAugment(),
    TrivialAugment(max_translate_rel=0.5, fill_value=9, num_magnitude_bins=6),
    TimmAutoAugment(config_str="rand-m9-mstd0.5-inc1-n1"),
    AutoAugment(policy="image_net"),
]


@pytest.mark.parametrize("spec", SINGLY, ids=name_of)
def test_operations_on_cpu_match_numpy(spec: Policy, pictures: Images) -> None:
    compare_operations(spec, pictures, "cpu")


@pytest.mark.gpu
@pytest.mark.parametrize("spec", SINGLY, ids=name_of)
def test_operations_on_gpu_match_numpy(spec: Policy, pictures: Images) -> None:
    compare_operations(spec, pictures, "gpu")


def choices_for(spec: Policy, images: Images) -> Decisions:
    return *chosen_of(spec, len(images)), *sides_of(spec, images)


def augmented(specs: list[Policy], pictures: Images, device: Device, dynamic: bool = True) -> SharedPipeline:
    images = pictures * 12
    return SharedPipeline(
        {spec: branch(spec, images, choices_for(spec, images), device) for spec in specs}, device, dynamic
    )


@pytest.fixture(scope="module")
def on_cpu(pictures: Images) -> SharedPipeline:
    return augmented(SPECS, pictures, "cpu")


@pytest.fixture(scope="module")
def on_gpu(pictures: Images) -> SharedPipeline:
    return augmented(SPECS, pictures, "gpu")


def compare_policy(spec: Policy, pictures: Images, together: SharedPipeline) -> None:
    """Compares several operations one after the other, which may multiply a difference of one level."""
    images = pictures * 12
    decided = choices_for(spec, images)
    for row, (image, mirrored) in enumerate(zip(images, together.images(spec), strict=True)):
        wanted = apply(spec, image, tuple(each[row] for each in decided))
        assert mirrored.shape == wanted.shape
        assert np.abs(wanted.astype(int) - mirrored[:, ::-1]).mean() <= 1


@pytest.mark.parametrize("spec", SPECS, ids=name_of)
def test_policies_on_cpu_match_numpy(spec: Policy, pictures: Images, on_cpu: SharedPipeline) -> None:
    compare_policy(spec, pictures, on_cpu)


@pytest.mark.gpu
@pytest.mark.parametrize("spec", SPECS, ids=name_of)
def test_policies_on_gpu_match_numpy(spec: Policy, pictures: Images, on_gpu: SharedPipeline) -> None:
    compare_policy(spec, pictures, on_gpu)


@pytest.mark.parametrize("device", ["cpu", pytest.param("gpu", marks=pytest.mark.gpu)])
def test_static_executor_matches_numpy(device: Device, pictures: Images) -> None:
    compare_policy(SPECS[0], pictures, augmented(SPECS[:1], pictures, device, dynamic=False))


@pytest.mark.parametrize("spec", SPECS, ids=name_of)
def test_gpu_graph_stays_on_gpu(spec: Policy) -> None:
    """The static executor rejects a copy back to the CPU, and the dynamic one would wait for the GPU."""
    with Pipeline(batch_size=1, num_threads=1, device_id=0, exec_dynamic=False):
        outputs = 1 + count_decisions(spec)
        node, *nodes = fn.external_source(lambda: None, num_outputs=outputs, batch=True)
        pixels = fn.reshape(node, layout="HWC").gpu()
        augmented = lower(spec, pixels, LoweringContext("gpu", decisions=tuple(nodes)))
        added = nodes_between(augmented, [pixels, *nodes])
    assert augmented.device == "gpu"
    for each in added:
        inputs = {node.device for node in each.source.inputs}
        assert operator_device(each) == "gpu" or inputs <= {"cpu"}


PILLOW: list[tuple[str, float, Callable[[Image.Image], Image.Image]]] = [
    ("brightness", 1.5, lambda image: ImageEnhance.Brightness(image).enhance(1.5)),
    ("contrast", 0.3, lambda image: ImageEnhance.Contrast(image).enhance(0.3)),
    ("color", 0.25, lambda image: ImageEnhance.Color(image).enhance(0.25)),
    ("sharpness", 1.75, lambda image: ImageEnhance.Sharpness(image).enhance(1.75)),
    ("posterize", 3, lambda image: ImageOps.posterize(image, 3)),
    ("solarize", 100, lambda image: ImageOps.solarize(image, 100)),
    ("invert", 0, ImageOps.invert),
    ("auto_contrast", 0, ImageOps.autocontrast),
    ("identity", 0, lambda image: image),
]


@pytest.mark.parametrize(("name", "parameter", "by_pillow"), PILLOW, ids=[each[0] for each in PILLOW])
def test_operations_match_pillow(
    name: str, parameter: float, by_pillow: Callable[[Image.Image], Image.Image], pictures: Images
) -> None:
    for image in pictures:
        difference = np.abs(
            augment(name, image, parameter, 0).astype(int) - np.asarray(by_pillow(Image.fromarray(image)))
        )
        assert difference[1:-1, 1:-1].max() <= 2  # Pillow keeps the edge unchanged and rounds down


def test_warp_directions_equal_dali() -> None:
    """Translations move right and down, shears the lower and right part; rotation is counter-clockwise."""
    image = np.zeros([32, 32, 3], np.uint8)
    image[8, 8] = 200
    moved = {
        name: augment(name, image, by, 0)[..., 0] for name, by in (("translate_x", 4), ("translate_y", 4))
    }
    assert moved["translate_x"][8, 12] == moved["translate_y"][12, 8] == 200
    assert augment("shear_x", image, 1, 0)[8, 16:18, 0].sum() == 200
    assert augment("shear_y", image, 1, 0)[16:18, 8, 0].sum() == 200
    assert augment("rotate", image, 90, 0)[23, 8, 0] > 190


def test_uncovered_area_is_filled(pictures: Images) -> None:
    for name in WARPED:
        assert (augment(name, pictures[0], 20 if name[0] in "tr" else 0.5, 250) == 250).all(-1).mean() > 0.05


def test_conditionals_end_with_policy(pictures: Images) -> None:
    """The private functions of ``enable_conditionals`` affect only the policy's part of the graph."""
    spec = TrivialAugment()
    fed = [pictures, *chosen_of(spec, len(pictures)), *sides_of(spec, pictures)]
    pipeline = Pipeline(batch_size=len(pictures), num_threads=2, device_id=None, exec_dynamic=True)
    with warnings.catch_warnings(record=True) as seen, pipeline:
        images, *decided = fn.external_source(lambda: fed, num_outputs=len(fed), batch=True)
        images, untouched = fn.reshape(images, layout="HWC"), fn.reshape(images, layout="HWC")
        augmented = lower(spec, images, LoweringContext("cpu", callbacks=False, decisions=tuple(decided)))
        pipeline.set_outputs(fn.flip(augmented), fn.flip(untouched))
    assert [str(each.message) for each in seen] == []
    pipeline.build()
    for image, got in zip(pictures, pipeline.run()[1], strict=True):
        np.testing.assert_array_equal(got, image[:, ::-1])


@pytest.mark.parametrize(
    "name",
    ["_preprocess_pipe_object", "_preprocess_pipe_func", "Pipeline.current"],
)
def test_private_dali_functions_exist(name: str) -> None:
    """If this fails, DALI moved functions that `_conditionals` calls; see DALI's `pipeline_def`."""
    assert callable(attrgetter(name)(dali_pipeline))
    assert Pipeline(batch_size=1, num_threads=1, device_id=None)._conditionals_enabled is False


# Loaders


def planned(spec: Policy) -> tuple[Op, ...]:
    return plan_chain(
        [
            DecodeImage(),
            RandCropImage(size=(40, 32)),
            spec,
            NormalizeImage(scale=1, mean=(0,) * 3, std=(1,) * 3),
        ],
        "HWC",
    )


@pytest.fixture(scope="module")
def index(photos: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Index:
    names = [path.name for name, path in photos.items() if name.startswith("png")]
    listing = tmp_path_factory.mktemp("lists") / "list.txt"
    listing.write_text("".join(f"{name} 0\n" for name in names * 5))
    root = str(next(iter(photos.values())).parent)
    specs = tuple(op.spec for op in planned(RandAugment()))
    dataset = ImageNetDataset(image_root=root, cls_label_path=str(listing), transform_ops=specs)
    return dataset.read(1)


def epoch_of(loader: Any) -> NDArray[np.float32]:
    return np.concatenate([np.array(batch.image)[: batch.valid] for batch in loader])


@pytest.mark.parametrize("spec", SPECS[:1] + SPECS[3:6], ids=name_of)
def test_loaders_make_equal_pixels(spec: Policy, index: Index) -> None:
    order, ops = Order(ShuffledSampler(15), batch_size=4, seed=3), planned(spec)
    dali = epoch_of(DaliLoader(index, order, ops, DaliSettings(threads=2)))
    numpy = epoch_of(PaddleLoader(index, order, ops))
    plain = epoch_of(PaddleLoader(index, order, (*ops[:2], *ops[3:])))
    np.testing.assert_array_equal(dali, numpy)
    assert (np.abs(dali - plain).mean(axis=(1, 2, 3)) > 1).mean() > 0.4


@pytest.mark.gpu
@pytest.mark.parametrize("spec", [RandAugment(), TrivialAugment(), AutoAugment()], ids=name_of)
def test_gpu_loader_matches_numpy(spec: Policy, index: Index) -> None:
    """Reads PNG, which decodes to the same pixels everywhere; only resizing differs, by one level."""
    order, ops = Order(ShuffledSampler(15), batch_size=4, seed=3), planned(spec)
    dali = epoch_of(DaliLoader(index, order, ops, DaliSettings(device_id=0, threads=2)))
    numpy = epoch_of(PaddleLoader(index, order, ops))
    assert np.abs(dali - numpy).mean() < 2


@pytest.mark.parametrize("backend", ["dali", "paddle"])
def test_sample_does_not_depend_on_batch_or_rank(backend: str, index: Index) -> None:
    ops = planned(RandAugment())

    def loader(order: Order) -> DaliLoader | PaddleLoader:
        if backend == "dali":
            return DaliLoader(index, order, ops, DaliSettings(threads=2))
        return PaddleLoader(index, order, ops)

    alone = epoch_of(loader(Order(SequentialSampler(15), batch_size=1, seed=3)))
    for size, ranks in ((5, 1), (4, 2)):
        for rank in range(ranks):
            order = Order(SequentialSampler(15), batch_size=size, rank=rank, world=ranks, seed=3)
            for step, batch in enumerate(loader(order)):
                indices = order.at(Cursor(0, step)).indices[: batch.valid]
                np.testing.assert_array_equal(np.array(batch.image)[: batch.valid], alone[indices])
