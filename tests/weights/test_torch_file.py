"""Files of PyTorch, read without it. tests/support/torch_files were saved by PyTorch 2.13 and 2.15.

``average.pth.tar`` and ``plain.ckpt`` have the keys that timm's training script saves, with and without a
moving average.
"""

from __future__ import annotations

import zipfile
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from paths import SUPPORT

from ppcls.arch.build import build_model
from ppcls.errors import UserError
from ppcls.weights.files import read_weights
from ppcls.weights.torch_file import read_torch
from ppcls.weights.torch_names import from_torch, is_torch, to_timm

pytestmark = pytest.mark.hostile

FILES = sorted((SUPPORT / "torch_files").glob("*.pth"))
# torch.manual_seed(0): a transposed float32 tensor, bfloat16, a slice of int64, a scalar, a parameter
NUMBER_BYTES = {"0": 4, "1": 2, "2": 8, "3": 8, "4": 4}  # of each storage
TRANSPOSED = [1.54099607, -1.08452237, -0.71925759, -0.29342890]
CONTENT = {
    "b": [-0.85546875, 1.1015625, -1.0703125, 0.12255859375, -0.56640625],
    "c": [[1, 2], [4, 5]],
    "d": 7,
}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_read_torch_file_of_each_format_returns_contiguous_arrays(path: Path) -> None:
    arrays = read_torch(path)
    assert list(arrays) == ["a", "b", "c", "d", "e"]
    assert arrays["a"].shape == (4, 3)
    np.testing.assert_allclose(arrays["a"].ravel()[:4], TRANSPOSED, rtol=1e-6)
    assert arrays["a"].flags.c_contiguous
    assert arrays["b"].dtype == np.float32
    for name, values in CONTENT.items():
        np.testing.assert_array_equal(arrays[name], values)


@pytest.mark.parametrize(("name", "first"), [("average.pth.tar", 1.0), ("plain.ckpt", 0.0)])
def test_checkpoint_of_timm_is_read_and_its_average_is_preferred(name: str, first: float) -> None:
    arrays = read_weights(SUPPORT / "torch_files" / name)
    assert list(arrays) == ["weight"]
    np.testing.assert_array_equal(arrays["weight"], first + np.arange(6.0).reshape(2, 3))


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "model.", "module._orig_mod.", "backbone."])
def test_prefixes_of_modules_around_the_network_are_removed(prefix: str) -> None:
    model = build_model("PPLCNetV2_small", 4)
    weights = to_timm(model, {name: tensor.numpy() for name, tensor in model.state_dict().items()}, "small")
    wrapped = {f"{prefix}{name}": array for name, array in weights.items()}
    wrapped["n_averaged"] = np.array(5)
    plain, found = from_torch(model, weights), from_torch(model, wrapped)
    assert found.keys() == plain.keys()
    assert all(np.array_equal(found[name], plain[name]) for name in plain)


@given(st.sampled_from(FILES), st.lists(st.tuples(st.integers(0, 3000), st.integers(0, 255)), max_size=4))
@example(FILES[0], [(0, 0)])
def test_read_torch_mutated_file_raises_only_user_error(
    tmp_path_factory: pytest.TempPathFactory, path: Path, changes: list[tuple[int, int]]
) -> None:
    content = bytearray(path.read_bytes())
    for place, value in changes:
        content[place % len(content)] = value
    mutated = tmp_path_factory.mktemp("mutated") / "weights.pth"
    mutated.write_bytes(content)
    with suppress(UserError):
        read_torch(mutated)


@pytest.mark.parametrize("size", [0, 10, 500])
def test_read_torch_truncated_file_raises_user_error(tmp_path: Path, size: int) -> None:
    for path in FILES:
        (tmp_path / "weights.pth").write_bytes(path.read_bytes()[:size])
        with pytest.raises(UserError, match=r"weights.pth: damaged"):
            read_torch(tmp_path / "weights.pth")


def test_read_torch_compressed_archive_is_rejected(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "bomb.pth", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", bytes(10_000_000))
    with pytest.raises(UserError, match=r"bomb.pth: rejected: .*compressed"):
        read_torch(tmp_path / "bomb.pth")


def test_read_torch_code_in_pickle_is_rejected(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "evil.pth", "w") as archive:
        archive.writestr("archive/data.pkl", b"cposix\nsystem\n(S'true'\ntR.")
    with pytest.raises(UserError, match=r"evil.pth: rejected: .*posix.system"):
        read_torch(tmp_path / "evil.pth")


@pytest.mark.parametrize(
    ("count", "found"), [(1, "an integer of 2039 bits"), (100_000, "100000 dimensions and 100000 strides")]
)
def test_read_torch_shape_of_huge_numbers_is_rejected_without_multiplying_them(
    tmp_path: Path, count: int, found: str
) -> None:
    storage = b"(Vstorage\nctorch\nFloatStorage\nV0\nVcpu\nK\x01tQ"
    shape, strides = b"(" + (b"\x8a\xff" + b"\x7f" * 255) * count + b"t", b"(" + b"K\x00" * count + b"t"
    tensor = b"ctorch._utils\n_rebuild_tensor_v2\n(" + storage + b"K\x00" + shape + strides + b"tR"
    with zipfile.ZipFile(tmp_path / "bomb.pth", "w") as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02}Vweight\n" + tensor + b"s.")
        archive.writestr("archive/data/0", bytes(4))
    with pytest.raises(UserError, match=rf"bomb.pth: damaged, .* found {found}; copy or download"):
        read_torch(tmp_path / "bomb.pth")


def test_from_torch_renames_statistics_and_transposes_linear_layers() -> None:
    model = build_model("EfficientNet_lite0", 10, "NCHW", 3)
    arrays = {
        "_bn0.running_mean": np.zeros(32, np.float32),
        "_bn0.num_batches_tracked": np.array(5),
        "_blocks.0._depthwise_conv.weight": np.zeros((32, 1, 3, 3), np.float32),
        "_blocks.3._project_conv.weight": np.zeros((40, 144, 1, 1), np.float32),
        "_fc.weight": np.zeros((10, 1280), np.float32),
    }
    assert is_torch(model, arrays)
    converted = from_torch(model, arrays)
    assert {name: array.shape for name, array in converted.items()} == {
        "bn1._mean": (32,),
        "blocks.0.0.conv_dw.weight": (32, 1, 3, 3),
        "blocks.2.0.conv_pwl.weight": (40, 144, 1, 1),
        "classifier.weight": (1280, 10),
    }
    assert not is_torch(model, model.state_dict())


@pytest.mark.parametrize("name", ["zip", "wrapped", "legacy"])
def test_read_torch_file_of_another_byte_order_returns_the_same_values(name: str, tmp_path: Path) -> None:
    """A file as a big-endian machine writes it."""
    source = SUPPORT / "torch_files" / f"{name}.pth"
    path = tmp_path / "big.pth"
    expected = read_torch(source)
    if zipfile.is_zipfile(source):
        with zipfile.ZipFile(source) as archive, zipfile.ZipFile(path, "w") as swapped:
            for member in archive.namelist():
                content = archive.read(member)
                if member.endswith("/byteorder"):
                    continue
                if "/data/" in member:
                    size = NUMBER_BYTES[member.rpartition("/")[2]]
                    content = np.frombuffer(content, f"<u{size}").byteswap().tobytes()
                swapped.writestr(member, content)
            swapped.writestr(archive.namelist()[0].split("/")[0] + "/byteorder", b"big")
    else:
        content = source.read_bytes()
        assert content.count(b"little_endian") == 1
        at = content.index(b"little_endian")
        true = content.index(b"\x88", at)
        content = content[:true] + b"\x89" + content[true + 1 :]
        path.write_bytes(content)
        numbers = read_torch(path)["c"]
        assert numbers.tolist() == expected["c"].byteswap().tolist()
        return
    for key, values in read_torch(path).items():
        np.testing.assert_array_equal(values, expected[key])


def test_read_torch_unknown_byte_order_is_rejected(tmp_path: Path) -> None:
    source = SUPPORT / "torch_files" / "zip.pth"
    with zipfile.ZipFile(source) as archive, zipfile.ZipFile(tmp_path / "odd.pth", "w") as odd:
        for member in archive.namelist():
            odd.writestr(member, b"pdp" if member.endswith("/byteorder") else archive.read(member))
    with pytest.raises(UserError, match=r"odd\.pth: .*expected the byte order little or big, found b'pdp'"):
        read_torch(tmp_path / "odd.pth")
