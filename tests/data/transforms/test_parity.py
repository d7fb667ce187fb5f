"""Every transform in DALI, on the CPU and a GPU, fused and not, against numpy_ops."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from nvidia.dali import Pipeline, fn
from parity import (
    Case,
    alone_and_fused,
    by_opencv,
    compare,
    compare_as_wholes,
    decoded,
    encode,
    normalized,
    plan,
    run_chains,
)
from shared_pipeline import SharedPipeline

from ppcls.data.transforms.base import Transform
from ppcls.data.transforms.dali_ops import LoweringContext, lower_chain
from ppcls.data.transforms.dali_ops.graph import nodes_between, operator_device, operator_name
from ppcls.data.transforms.numpy_ops import run
from ppcls.data.transforms.specs import (
    CropImage,
    DecodeImage,
    NormalizeImage,
    RandCropImage,
    RandFlipImage,
    ResizeImage,
    ToCHWImage,
)
from ppcls.data.transforms.specs.blur import BlurImage
from ppcls.data.transforms.specs.decisions import count_decisions, decide
from ppcls.data.transforms.specs.erasing import Cutout, GridMask, HideAndSeek, RandomErasing
from ppcls.data.transforms.specs.fuse import DecodeRandCrop, FusedTransform, fuse
from ppcls.data.transforms.specs.geometry import (
    Pad,
    RandCropImageV2,
    RandomCropImage,
    RandomRot90,
    RandomRotation,
)
from ppcls.data.transforms.specs.mixed_policies import AugMix, RandAugmentV4
from ppcls.data.transforms.specs.photometric import ColorJitter, GaussianBlur, PCALighting, RandomGrayscale
from ppcls.data.transforms.specs.policies import (
    AutoAugment,
    RandAugment,
    RandAugmentV3,
    TimmAutoAugment,
    TrivialAugment,
)
from ppcls.data.transforms.specs.rng import uniforms
from ppcls.registry import TRANSFORMS

DECODE, NORMALIZE, TO_CHW, FLIP = DecodeImage(), NormalizeImage(), ToCHWImage(), RandFlipImage()


def resize(width: int, height: int, interpolation: str = "bilinear") -> ResizeImage:
    return ResizeImage(size=(width, height), backend="pil", interpolation=interpolation)


ALONE: dict[str, list[Case]] = {
    "DecodeImage": [decoded(), Case((DecodeImage(to_rgb=False),), "exact")],
    "ResizeImage": [
        decoded(ResizeImage(resize_short=96), how="bilinear"),
        decoded(ResizeImage(resize_short=301), how="bilinear"),
        decoded(ResizeImage(size=(101, 67)), how="bilinear"),
        decoded(resize(101, 67), how="antialias"),
        decoded(resize(401, 390), how="bilinear"),
        decoded(resize(101, 67, "bicubic"), how="overshoot"),
        decoded(resize(101, 67, "lanczos"), how="overshoot"),
        decoded(resize(101, 67, "nearest"), how="nearest"),
        decoded(ResizeImage(resize_short=96, backend="pil"), how="antialias"),
    ],
    "CropImage": [decoded(CropImage(size=(101, 68))), decoded(CropImage(size=(96, 143)))],
    "RandCropImage": [
        decoded(RandCropImage(size=(96, 64)), how="bilinear"),
        decoded(RandCropImage(size=(224, 224), scale=(0.02, 0.3), ratio=(0.3, 3.0)), how="bilinear"),
        decoded(RandCropImage(size=(48, 48), backend="pil"), how="antialias"),
        decoded(RandCropImage(size=(48, 48), backend="pil", interpolation="bicubic"), how="overshoot"),
        decoded(RandCropImage(size=(48, 48), backend="pil", interpolation="random"), how="overshoot"),
    ],
    "RandFlipImage": [decoded(RandFlipImage(flip_code=code)) for code in (1, 0, -1)],
    "NormalizeImage": [
        decoded(NORMALIZE),
        decoded(NormalizeImage(scale=1.0, mean=(127.5,), std=(60.0,))),
        decoded(NormalizeImage(channel_num=4)),
        decoded(NormalizeImage(channel_num=3, order="hwc")),
        decoded(NormalizeImage(output_fp16=True), how="half"),
        decoded(NormalizeImage(output_fp16=True, channel_num=4), how="half"),
        decoded(NormalizeImage(scale=-0.01, mean=(0.1, 0.2, 0.3), std=(3.0, 2.0, 1.0))),
    ],
    "ToCHWImage": [decoded(TO_CHW)],
    "Pad": [
        decoded(Pad(padding=4, fill=114)),
        decoded(Pad(padding=[0, 1, 20, 33], fill=[124, 116, 104])),
        decoded(Pad(padding=[7, 40], padding_mode="edge")),
        decoded(Pad(padding=[300, 9], padding_mode="reflect")),
    ],
    "RandomCropImage": [decoded(RandomCropImage(size=(101, 68))), decoded(RandomCropImage(size=(176, 145)))],
    "RandCropImageV2": [decoded(RandCropImageV2(size=(101, 68)))],
    "RandomRotation": [
        decoded(RandomRotation(degrees=30, interpolation="bilinear", fill=114), how="turned"),
        decoded(RandomRotation(prob=1, degrees=(-180, 180), interpolation="bilinear"), how="turned"),
        decoded(RandomRotation(prob=1, degrees=90), how="nearest"),
        decoded(RandomRotation(prob=0, degrees=(90, 90))),
        Case((DECODE, NORMALIZE, RandomRotation(degrees=30, interpolation="bilinear")), "turned"),
    ],
    "ColorJitter": [
        decoded(ColorJitter(brightness=0.4, contrast=0.4, saturation=0.4, hue=0.1), how="bilinear"),
        decoded(ColorJitter(brightness=3, contrast=2, saturation=3, hue=0.5), how="bilinear", gain=9),
        decoded(ColorJitter()),
    ],
    "RandomGrayscale": [decoded(RandomGrayscale(prob=0.5), how="bilinear"), decoded(RandomGrayscale(prob=0))],
    "PCALighting": [
        decoded(PCALighting(), how="bilinear"),
        decoded(PCALighting(alphastd=3), how="bilinear"),
        decoded(PCALighting(alphastd=0)),
    ],
    "GaussianBlur": [
        decoded(GaussianBlur(), how="blurred"),
        decoded(GaussianBlur(prob=1, kernel_size=5, sigma=1.5), how="blurred"),
        decoded(GaussianBlur(prob=0)),
        Case((DECODE, NORMALIZE, GaussianBlur()), "exact"),
    ],
    "BlurImage": [
        decoded(BlurImage(ratio=1), how="blurred"),
        decoded(BlurImage(gaussian_max_ksize=30, motion_max_angle=180), how="blurred"),
        decoded(BlurImage(ratio=0)),
        Case((DECODE, NORMALIZE, BlurImage()), "exact"),
    ],
    "RandomRot90": [decoded(RandomRot90()), Case((DECODE, NORMALIZE, RandomRot90()), "exact")],
    "RandomErasing": [
        decoded(RandomErasing(mean=(124, 116, 104))),
        normalized(RandomErasing(EPSILON=1, sh=1 / 3, mean=(0.1, -0.2, 1.5), use_log_aspect=True)),
        normalized(RandomErasing(mode="rand")),
        normalized(RandomErasing(EPSILON=1, sl=0.3, mode="pixel")),
        Case((DECODE, NormalizeImage(output_fp16=True), RandomErasing(mode="pixel")), "half"),
    ],
    "Cutout": [
        decoded(Cutout(n_holes=3, length=60, fill_value=9)),
        normalized(Cutout(fill_value=(0.1, 0.2, 0.3))),
        decoded(Cutout(n_holes=2, length=60, fill_value=None)),
    ],
    "GridMask": [
        decoded(GridMask(d1=20, d2=80, prob=0.7)),
        decoded(GridMask(d1=5, d2=60, ratio=0.3, mode=1, prob=0.7)),
        normalized(GridMask(d1=20, d2=80, rotate=360, mode=1, ratio=0.6), how="edges"),
        decoded(GridMask(d1=20, d2=80, rotate=360), how="edges"),
    ],
    "HideAndSeek": [
        decoded(HideAndSeek()),
        normalized(HideAndSeek(hide_prob=0.3, grid_sizes=(9, 50))),
    ],
    "AutoAugment": [decoded(AutoAugment(), how="augmented")],
    "RandAugment": [decoded(RandAugment(), how="augmented")],
    "RandAugmentV3": [decoded(RandAugmentV3(num_layers=1, magnitude=7), how="augmented")],
    "RandAugmentV4": [decoded(RandAugmentV4(), how="augmented")],
    "AugMix": [
        decoded(AugMix(prob=1, aug_prob_coeff=1.0, mixture_width=2, aug_severity=10), how="augmented"),
        decoded(AugMix(prob=0), how="exact"),
    ],
    "TrivialAugment": [decoded(TrivialAugment(), how="augmented")],
    "TimmAutoAugment": [decoded(TimmAutoAugment(), how="augmented")],
}
COMBINED = [
    decoded(
        *(RandCropImage(size=(96, 80)), FLIP, NORMALIZE),
        *(RandomErasing(EPSILON=1, mode="pixel"), Cutout(length=20), TO_CHW),
        how="bilinear",
    ),
    decoded(
        *(
            ResizeImage(resize_short=96),
            Pad(padding=4, padding_mode="reflect"),
            RandomCropImage(size=(90, 88)),
        ),
        *(FLIP, Cutout(length=20), NORMALIZE, TO_CHW),
        how="bilinear",
    ),
    decoded(RandCropImage(size=(96, 96)), FLIP, NORMALIZE, TO_CHW, how="bilinear"),
    decoded(RandCropImage(size=(96, 96)), FLIP, NORMALIZE, how="bilinear"),
    decoded(ResizeImage(resize_short=96), CropImage(size=(85, 84)), NORMALIZE, TO_CHW, how="bilinear"),
    decoded(ResizeImage(size=(96, 80)), CropImage(size=(85, 66)), FLIP, NORMALIZE, how="bilinear"),
    decoded(CropImage(size=(120, 120)), RandFlipImage(flip_code=-1), FLIP, NORMALIZE, TO_CHW),
    decoded(FLIP, RandCropImage(size=(64, 64)), RandFlipImage(flip_code=0), NORMALIZE, how="bilinear"),
    decoded(FLIP, CropImage(size=(90, 91)), NORMALIZE, TO_CHW),
    decoded(CropImage(size=(90, 91)), FLIP, NormalizeImage(channel_num=4), TO_CHW),
    decoded(CropImage(size=(90, 91)), FLIP, NormalizeImage(channel_num=4, output_fp16=True), how="half"),
    Case((DecodeImage(to_rgb=False), RandCropImage(size=(64, 64)), NORMALIZE), "bilinear"),
]
CASES = [*(case for cases in ALONE.values() for case in cases), *COMBINED]


def name_of(case: Case) -> str:
    def short(spec: Transform) -> str:
        options = spec.model_dump(exclude_defaults=True)
        return spec.kind + "".join(f"-{value}".replace(" ", "") for value in options.values())

    return "+".join(map(short, case.chain))


@pytest.fixture(scope="module")
def photos(photos: dict[str, Path]) -> dict[str, Path]:
    """JPEGs, parts of which are decoded for a crop, and PNGs. test_decode.py decodes all formats."""
    formats = ("jpeg420", "jpeg444", "progressive", "grey", "cmyk", "turned", "png")
    return {name: path for name, path in photos.items() if name.startswith(tuple(f"{f}-" for f in formats))}


@pytest.fixture(scope="module")
def on_cpu(photos: dict[str, Path]) -> SharedPipeline:
    fused = (by_opencv(case.chain) for case in WHOLE)
    return run_chains([*alone_and_fused(case.chain for case in CASES), *fused], photos, "cpu")


@pytest.fixture(scope="module")
def by_dali_operators(photos: dict[str, Path]) -> SharedPipeline:
    return run_chains((plan(case.chain) for case in WITH_CALLBACKS), photos, "cpu", callbacks=False)


@pytest.fixture(scope="module")
def on_gpu(photos: dict[str, Path]) -> SharedPipeline:
    return run_chains(alone_and_fused(case.chain for case in CASES), photos, "gpu")


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_dali_on_cpu_matches_numpy(case: Case, on_cpu: SharedPipeline, photos: dict[str, Path]) -> None:
    compare(case, on_cpu.images(plan(case.chain)), photos)


def calls_python(case: Case) -> bool:
    """Returns whether the graph calls OpenCV or NumPy instead of an operator of DALI."""
    ops = plan(case.chain)
    count = 1 + sum(count_decisions(op.spec) for op in ops)
    with Pipeline(batch_size=1, num_threads=1, device_id=None):
        files, *nodes = fn.external_source(lambda: None, num_outputs=count, batch=True)
        added = nodes_between(lower_chain(ops, files, nodes, LoweringContext("cpu"))[-1], [files, *nodes])
    return any(operator_name(each).startswith("python_function") for each in added)


WITH_CALLBACKS = [case for case in CASES if calls_python(case)]


@pytest.mark.parametrize("case", WITH_CALLBACKS, ids=name_of)
def test_dali_operators_on_cpu_match_numpy(
    case: Case, by_dali_operators: SharedPipeline, photos: dict[str, Path]
) -> None:
    """Runs the operators of a GPU's graph on the CPU."""
    compare(case, by_dali_operators.images(plan(case.chain)), photos)


FUSED = [case for case in CASES if fuse(plan(case.chain)) != plan(case.chain)]


@pytest.mark.parametrize("case", FUSED, ids=name_of)
def test_fused_on_cpu_matches_numpy(case: Case, on_cpu: SharedPipeline, photos: dict[str, Path]) -> None:
    compare(case, on_cpu.images(fuse(plan(case.chain))), photos)


WHOLE = [case for case in CASES if by_opencv(case.chain) != fuse(plan(case.chain))]


@pytest.mark.parametrize("case", WHOLE, ids=name_of)
def test_whole_chain_on_cpu_matches_numpy(
    case: Case, on_cpu: SharedPipeline, photos: dict[str, Path]
) -> None:
    compare(case, on_cpu.images(by_opencv(case.chain)), photos)


@pytest.mark.gpu
@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_dali_on_gpu_matches_numpy(case: Case, on_gpu: SharedPipeline, photos: dict[str, Path]) -> None:
    compare_as_wholes(case, on_gpu.images(plan(case.chain)), photos)


@pytest.mark.gpu
@pytest.mark.parametrize("case", FUSED, ids=name_of)
def test_fused_on_gpu_matches_numpy(case: Case, on_gpu: SharedPipeline, photos: dict[str, Path]) -> None:
    compare_as_wholes(case, on_gpu.images(fuse(plan(case.chain))), photos)


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_gpu_graph_stays_on_gpu(case: Case) -> None:
    """The static executor rejects a copy back to the CPU, and the dynamic one would wait for the GPU."""
    ops = fuse(plan(case.chain))
    count = 1 + sum(count_decisions(op.spec) for op in ops)
    with Pipeline(batch_size=1, num_threads=1, device_id=0, exec_dynamic=False):
        files, *nodes = fn.external_source(lambda: None, num_outputs=count, batch=True)
        images = lower_chain(ops, files, nodes, LoweringContext("gpu"))[-1]
        added = nodes_between(images, [files, *nodes])
    assert images.device == "gpu"
    for each in added:
        inputs = {node.device for node in each.source.inputs}
        assert operator_device(each) == "gpu" or inputs <= {"cpu"}


def test_every_transform_has_its_own_case() -> None:
    assert set(ALONE) == set(TRANSFORMS) - {"DecodeNumpy"}, "add cases of the new transform to ALONE"
    for name, cases in ALONE.items():
        assert cases
        for case in cases:
            assert {spec.kind for spec in case.chain} - {"NormalizeImage"} | {name} == {"DecodeImage", name}


@pytest.mark.parametrize("name", [name for name in ALONE if ALONE[name][0].chain[-1].draws])
def test_last_draw_affects_decisions(name: str) -> None:
    spec = ALONE[name][0].chain[-1]
    draws, sides = uniforms(5, 0, np.arange(500), spec.draws), np.full([500, 2], 400)
    other = draws.copy()
    other[:, -1] = 1 - draws[:, -1]
    pairs = zip(decide(spec, draws, sides), decide(spec, other, sides), strict=True)
    assert any((one != two).any() for one, two in pairs)


def test_every_fused_transform_is_compared() -> None:
    ops = {op for case in FUSED for op in fuse(plan(case.chain)) + by_opencv(case.chain)}
    seen = {type(op.spec) for op in ops if isinstance(op.spec, FusedTransform)}
    assert seen == {*FusedTransform.__subclasses__(), *DecodeRandCrop.__subclasses__()}


def test_photographs_reveal_wrong_window_flip_or_channels(photos: dict[str, Path]) -> None:
    """A wrong window, flip or channel order changes many pixels of the photographs."""
    for file in encode(photos):
        image = run(plan((DECODE,)), file, np.zeros(0, np.float32)).astype(float)
        assert np.abs(image - image[:, ::-1]).mean() > 5
        assert np.abs(image - image[::-1]).mean() > 5
        assert np.abs(image[1:] - image[:-1]).mean() > 1


def test_exif_orientation_is_applied(photos: dict[str, Path]) -> None:
    none = np.zeros(0, np.float32)
    for scene in ("landscape", "portrait", "odd"):
        files = (photos[f"{kind}-{scene}"].read_bytes() for kind in ("turned", "png"))
        turned, upright = (run(plan((DECODE,)), file, none).astype(float) for file in files)
        assert np.abs(turned - upright).mean() < 3
