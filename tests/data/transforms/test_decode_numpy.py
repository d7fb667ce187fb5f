"""DecodeNumpy: NumPy, DALI and all loaders read and reject the same ``.npy`` files."""

from __future__ import annotations

import io
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from loader_conformance import MAKERS, Make, check_against_reference, take
from numpy.typing import NDArray
from parity import plan
from shared_pipeline import SharedPipeline, chain_branch

from ppcls.data.bad_images.lists import BadImageError
from ppcls.data.images.header import DecodeError
from ppcls.data.images.npy import read_npy
from ppcls.data.index.files import read_folder
from ppcls.data.loaders.dali.headers import admit
from ppcls.data.sampling.epoch_samplers import SequentialSampler
from ppcls.data.sampling.order import Order
from ppcls.data.transforms.base import check_chain
from ppcls.data.transforms.dali_ops import LoweringContext
from ppcls.data.transforms.numpy_ops import run
from ppcls.data.transforms.specs import (
    CropImage,
    NormalizeImage,
    Op,
    RandCropImage,
    RandFlipImage,
    count_draws,
    plan_chain,
)
from ppcls.data.transforms.specs.basic import DecodeNumpy
from ppcls.data.transforms.specs.rng import uniforms

FIVE16, GREY, FLOAT = (
    DecodeNumpy(channels=5, dtype="uint16"),
    DecodeNumpy(channels=1),
    DecodeNumpy(channels=2, dtype="float32"),
)


def saved(array: NDArray[Any], version: tuple[int, int] | None = None) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array(file, array, version=version, allow_pickle=array.dtype == object)
    return file.getvalue()


def array(spec: DecodeNumpy, height: int = 30, width: int = 40) -> NDArray[Any]:
    rng = np.random.default_rng(height)
    drawn = rng.random((height, width, spec.channels)) * (1 if spec.dtype == "float32" else 200)
    return drawn.astype(spec.dtype)


@pytest.mark.parametrize("spec", [FIVE16, GREY, FLOAT], ids=["five16", "grey", "float"])
def test_saved_array_is_read(spec: DecodeNumpy) -> None:
    for version in ((1, 0), (2, 0), (3, 0)):
        np.testing.assert_array_equal(read_npy(spec, saved(array(spec), version)), array(spec))


@given(
    sides=st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=2, max_size=4),
    version=st.sampled_from([(1, 0), (2, 0), (3, 0)]),
    spaces=st.integers(0, 10_200),
)
def test_arrays_of_several_sizes_are_read_after_headers_of_any_length(
    sides: list[tuple[int, int]], version: tuple[int, int], spaces: int
) -> None:
    for height, width in sides * 2:
        pixels = array(GREY, height, width)
        text = saved(pixels, version)[: -pixels.nbytes]
        begin = 10 if version == (1, 0) else 12
        header = text[begin:-1] + b" " * spaces + b"\n"
        encoded = text[:8] + len(header).to_bytes(begin - 8, "little") + header + pixels.tobytes()
        if len(header) > 10_000:
            with pytest.raises(DecodeError, match="can't read its header"):
                read_npy(GREY, encoded)
        else:
            np.testing.assert_array_equal(read_npy(GREY, encoded), pixels)


def test_grey_array_needs_no_third_axis() -> None:
    np.testing.assert_array_equal(read_npy(GREY, saved(array(GREY)[:, :, 0])), array(GREY))


BAD = [
    (b"", "the file is empty"),
    (b"text", "expected a NumPy array (.npy), but can't read its header; write it with numpy.save"),
    (
        saved(array(FIVE16))[:60],
        "expected a NumPy array (.npy), but can't read its header; write it with numpy.save",
    ),
    (saved(array(FIVE16))[:-1], "the file size does not match the shape in the header; save the array again"),
    (
        saved(array(FIVE16)) + b"\0",
        "the file size does not match the shape in the header; save the array again",
    ),
    (saved(array(FIVE16).astype(">u2")), "expected an array of uint16, found >u2"),
    (saved(array(FIVE16).astype(np.int64)), "expected an array of uint16, found int64"),
    (saved(np.array([[None]])), "expected an array of uint16, found object"),
    (saved(array(FIVE16)[:, :, :3].copy()), "expected [height, width, 5], found [30, 40, 3]"),
    (saved(array(FIVE16)[:, :, 0].copy()), "expected [height, width, 5], found [30, 40]"),
    (saved(array(FIVE16)[0, 0].copy()), "expected [height, width, channels], found [5]"),
    (saved(array(FIVE16)[:0]), "expected [height, width, channels], found [0, 40, 5]"),
    (
        saved(np.asfortranarray(array(FIVE16))),
        "expected an array in C order, found Fortran order; convert it with numpy.ascontiguousarray",
    ),
]


class EncodedFiles(list[np.ndarray]):
    """Encoded files as DALI passes them."""

    def shape(self) -> list[tuple[int, ...]]:
        return [file.shape for file in self]


@pytest.mark.parametrize(("encoded", "reason"), BAD, ids=[reason for _, reason in BAD])
def test_bad_array_is_rejected_with_reason(encoded: bytes, reason: str) -> None:
    with pytest.raises(DecodeError) as caught:
        read_npy(FIVE16, encoded)
    assert str(caught.value) == reason
    files = EncodedFiles(np.frombuffer(file, np.uint8) for file in (saved(array(FIVE16)), encoded))
    with pytest.raises(DecodeError) as caught:
        admit(FIVE16, files, on_gpu=False)
    assert str(caught.value) == reason


def test_too_many_pixels_are_rejected() -> None:
    with pytest.raises(DecodeError, match="40x30 pixels are more than DecodeNumpy's max_pixels, 1199"):
        read_npy(DecodeNumpy(channels=1, max_pixels=1199), saved(array(GREY)))


@given(place=st.integers(0, 127), value=st.integers(0, 255))
def test_damaged_header_is_rejected_or_harmless(place: int, value: int) -> None:
    encoded = bytearray(saved(array(GREY)))
    encoded[place] = value
    with suppress(DecodeError):
        assert read_npy(GREY, bytes(encoded)).shape[2] == 1


CHAINS = [
    (FIVE16,),
    (FLOAT,),
    (GREY, RandFlipImage(), CropImage(size=(20, 21))),
    (FLOAT, RandFlipImage(), RandCropImage(size=(20, 16))),
    (FIVE16, RandCropImage(size=(20, 16)), NormalizeImage(scale=1 / 200, mean=(0.5,) * 5, std=(0.25,) * 5)),
    (FLOAT, CropImage(size=(20, 21)), NormalizeImage(scale=1.0, mean=(0.5, 0.4), std=(0.2, 0.3))),
]


def saved_three(spec: DecodeNumpy) -> list[bytes]:
    return [saved(array(spec, *sides)) for sides in ((30, 40), (41, 33), (64, 64))]


def draws_for(ops: tuple[Op, ...]) -> NDArray[np.float32]:
    return uniforms(3, 0, np.arange(3), count_draws(ops))


@pytest.fixture(scope="module", params=["cpu", pytest.param("gpu", marks=pytest.mark.gpu)])
def made(request: pytest.FixtureRequest) -> SharedPipeline:
    place, chains = LoweringContext(request.param, 2), map(plan, CHAINS)
    return SharedPipeline(
        {ops: chain_branch(ops, saved_three(ops[0].spec), draws_for(ops), place) for ops in chains},
        request.param,
    )


@pytest.mark.parametrize("chain", CHAINS, ids=lambda chain: "+".join(spec.kind for spec in chain))
def test_dali_matches_numpy(chain: tuple[Any, ...], made: SharedPipeline) -> None:
    ops = plan(chain)
    for file, numbers, found in zip(saved_three(chain[0]), draws_for(ops), made.images(ops), strict=True):
        expected = run(ops, file, numbers)
        assert found.dtype == expected.dtype
        np.testing.assert_allclose(found, expected, atol=1e-5 if made.device == "cpu" else 0.03)


def test_float_array_chain_has_state() -> None:
    state = check_chain([FLOAT, RandCropImage(size=(8, 8))])
    assert (state.dtype, state.channels, state.size) == ("float32", 2, (8, 8))


@pytest.mark.parametrize("kind", ["dali-cpu", "paddle-0", pytest.param("dali-gpu", marks=pytest.mark.gpu)])
def test_loaders_match_reference(kind: str, tmp_path: Path) -> None:
    for label in range(2):
        (tmp_path / str(label)).mkdir()
        for number in range(3):
            np.save(tmp_path / str(label) / f"{number}.npy", array(FIVE16, 30 + number, 40 + label))
    normalize = NormalizeImage(scale=1 / 255, mean=(0.5,) * 5, std=(0.225,) * 5)
    ops = plan_chain([FIVE16, RandCropImage(size=(16, 16)), RandFlipImage(), normalize], "CHW")
    index, order = read_folder(tmp_path, (".npy",), 2), Order(SequentialSampler(6), batch_size=4)
    make: Make = MAKERS[kind]
    check_against_reference(kind, take(make(index, order, ops)), index, order, ops, 0)
    np.save(tmp_path / "1" / "1.npy", array(GREY))
    with pytest.raises(BadImageError, match=r"1/1.npy .*: expected an array of uint16, found uint8"):
        take(make(index, order, ops))
