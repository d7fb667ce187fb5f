"""Both loaders read the reference's pixels from every kind of image, or reject it before decoding."""

from __future__ import annotations

from typing import Any

import cv2
import numpy as np
import pytest
from dali_decode import decode_by_dali
from image_kinds import HEIGHT, WIDTH, Kind, make_kinds
from numpy.typing import NDArray
from nvidia.dali.tensors import TensorListCPU

from ppcls.data.images.decode import decode
from ppcls.data.images.header import NO_IMAGE, DecodeError, check_header
from ppcls.data.images.jpeg import find_gpu_obstacle
from ppcls.data.images.read_header import read_header
from ppcls.data.loaders.dali.headers import admit
from ppcls.data.transforms.specs import DecodeImage

KINDS = make_kinds()
HAS_SAFE_OPENCV = tuple(map(int, cv2.__version__.split(".")[:2])) >= (4, 12)
SUPPORTED = [name for name, kind in KINDS.items() if kind.pixels is not None]
REJECTED = [name for name, kind in KINDS.items() if kind.pixels is None]
SPECS = [
    DecodeImage(channels=channels, dtype=dtype)
    for channels in (1, 2, 3, 4, 5)
    for dtype in ("uint8", "uint16")
]


def is_accepted(name: str, kind: Kind, channels: int) -> bool:
    """Whether a supported file can be decoded to ``channels``, according to the documentation."""
    assert kind.pixels is not None
    stored = kind.pixels.shape[2]
    if name.startswith(("jp2", "j2k")) and kind.pixels.dtype == np.uint16 and not HAS_SAFE_OPENCV:
        return False
    if channels == 3:
        if name.startswith("j2k grey"):  # OpenCV and DALI fail
            return False
        return stored in (1, 3) if name.startswith("tiff") else True
    return stored == channels and (channels != 2 or name.startswith("tiff"))


def expected_pixels(kind: Kind, spec: DecodeImage) -> NDArray[Any]:
    assert kind.pixels is not None
    pixels = kind.pixels
    if spec.channels == 3:
        pixels = pixels[:, :, :1].repeat(3, axis=2) if pixels.shape[2] < 3 else pixels[:, :, :3]
    if pixels.dtype == spec.dtype:
        return pixels
    return (
        pixels.astype(np.uint16) * 257 if spec.dtype == "uint16" else np.rint(pixels / 257).astype(np.uint8)
    )


def decode_all(spec: DecodeImage, names: list[str]) -> dict[str, NDArray[Any]]:
    return {name: decode(spec, KINDS[name].encoded) for name in names}


def accepted_by(spec: DecodeImage) -> list[str]:
    return [name for name in SUPPORTED if is_accepted(name, KINDS[name], spec.channels)]


def check_pixels(spec: DecodeImage, found: dict[str, NDArray[Any]], lossy: float = 0) -> None:
    level = 257 if spec.dtype == "uint16" else 1
    wrong = {}
    for name, pixels in found.items():
        expected = expected_pixels(KINDS[name], spec)
        assert pixels.shape == expected.shape, name
        assert pixels.dtype == spec.dtype, name
        difference = np.abs(pixels.astype(int) - expected)
        is_lossy = lossy and (name.startswith("jpeg") or "lossy" in name or "tiff jpeg" in name)
        worst = (
            difference.mean() - level * lossy
            if is_lossy
            else difference.max() - level * KINDS[name].tolerance
        )
        if worst > 0:
            wrong[name] = worst
    assert not wrong, ", ".join(f"{name}: {worst}" for name, worst in wrong.items())


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: f"{spec.channels} {spec.dtype}")
def test_numpy_reads_the_pixels_of_the_reference(spec: DecodeImage) -> None:
    names = accepted_by(spec)
    assert len(names) >= (2 if spec.channels == 5 else 4) or spec.channels == 5
    check_pixels(spec, decode_all(spec, names))


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: f"{spec.channels} {spec.dtype}")
def test_dali_reads_the_pixels_of_the_reference(spec: DecodeImage) -> None:
    names = accepted_by(spec)
    found = decode_by_dali(spec, [KINDS[name].encoded for name in names], "cpu")
    check_pixels(spec, dict(zip(names, found, strict=True)))


WRONG_ON_GPU = (
    *("jpeg rgb", "jpeg rgb without adobe", "jpeg lossless"),
    *("png palette 1", "png palette 2", "png palette 4"),
)


@pytest.mark.parametrize("name", WRONG_ON_GPU)
def test_gpu_decoder_does_not_receive_kinds_that_it_decodes_wrongly(name: str) -> None:
    file = TensorListCPU([np.frombuffer(KINDS[name].encoded, np.uint8)])
    height, width, _ = expected_pixels(KINDS[name], DecodeImage()).shape
    shape = TensorListCPU([np.array([height, width, 3], np.int64)])
    ends = [TensorListCPU([np.asarray(file[0])[part]]) for part in (slice(2), slice(-2, None))]
    assert admit(DecodeImage(), file, shape, *ends, on_gpu=False).tolist() == [[height, width]]
    with pytest.raises(DecodeError, match="to wrong colours on a GPU; decode on the CPU with"):
        admit(DecodeImage(), file, shape, *ends, on_gpu=True)


@pytest.mark.parametrize("name", ["jpeg rgb", "jpeg rgb without adobe", "jpeg lossless"])
def test_jpegs_that_end_anywhere_are_no_error(name: str) -> None:
    """A frame header that ends too early is none. Only a complete one says how a GPU decodes."""
    encoded = KINDS[name].encoded
    found = [find_gpu_obstacle(memoryview(encoded[:end])) for end in range(len(encoded))]
    complete = next(end for end, kind in enumerate(found) if kind is not None)
    assert found[:complete] == [None] * complete
    assert {*found[complete:]} == {find_gpu_obstacle(memoryview(encoded))}


@pytest.mark.parametrize("name", [name for name in REJECTED if name.startswith(("jpeg with", "jpeg frame"))])
def test_dali_does_not_receive_jpegs_that_it_decodes_in_another_way(name: str) -> None:
    file = TensorListCPU([np.frombuffer(KINDS[name].encoded, np.uint8)])
    shape = TensorListCPU([np.array([HEIGHT, WIDTH, 3], np.int64)])
    ends = [TensorListCPU([np.asarray(file[0])[part]]) for part in (slice(2), slice(-2, None))]
    with pytest.raises(DecodeError, match=r"EXIF segments|not supported"):
        admit(DecodeImage(), file, shape, *ends, on_gpu=False)


@pytest.mark.gpu
@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: f"{spec.channels} {spec.dtype}")
def test_gpu_reads_the_pixels_of_the_reference(spec: DecodeImage) -> None:
    names = [name for name in accepted_by(spec) if name not in WRONG_ON_GPU]
    found = decode_by_dali(spec, [KINDS[name].encoded for name in names], "gpu")
    check_pixels(spec, dict(zip(names, found, strict=True)), lossy=3)  # the GPU decodes by other arithmetic


@pytest.mark.parametrize("name", REJECTED)
def test_header_rejects_kinds_that_no_loader_decodes(name: str) -> None:
    with pytest.raises(DecodeError) as caught:
        check_header(DecodeImage(), read_header(KINDS[name].encoded))
    assert str(caught.value) != NO_IMAGE


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param(spec, id=f"{spec.channels} {spec.dtype}", marks=pytest.mark.slow if is_rare else ())
        for spec in SPECS[::2]
        for is_rare in [spec.channels in (2, 4, 5)]
    ],
)
def test_loaders_reject_the_same_files(spec: DecodeImage) -> None:
    accepted = accepted_by(spec)
    for name in [name for name in KINDS if name not in accepted]:
        encoded = KINDS[name].encoded
        with pytest.raises(DecodeError):
            decode(spec, encoded)
        with pytest.raises((DecodeError, RuntimeError)):
            decode_by_dali(spec, [encoded], "cpu")
