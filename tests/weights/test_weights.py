from __future__ import annotations

import builtins
import json
import os
import pickle
import resource
import struct
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis.extra.numpy
import numpy as np
import paddle
import pytest
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st
from paddle import nn

from ppcls.arch.build import build_model
from ppcls.arch.families.vision_transformer import DistilledVisionTransformer
from ppcls.engine.core.flat_buffers import FlatBuffers
from ppcls.errors import UserError
from ppcls.runtime.host_memory import HostMemory
from ppcls.weights.files import (
    AVERAGE,
    WEIGHTS,
    copy_to_host,
    fill_model,
    pack_arrays,
    read_arrays,
    read_pdparams,
    read_weights,
    start_from,
    write_arrays,
)
from ppcls.weights.manifest import Manifest, write_file, write_manifest


class Net(nn.Layer):
    """A convolution, a BatchNorm and a classifier."""

    def __init__(self, classes: int = 3, width: int = 4) -> None:
        super().__init__()
        self.conv = nn.Conv2D(3, width, 1, bias_attr=False)
        self.bn = nn.BatchNorm2D(width)
        self.fc = nn.Linear(width, classes)


@pytest.fixture
def arrays() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(3)
    return {
        name: rng.normal(size=tensor.shape).astype(np.float32) for name, tensor in Net().state_dict().items()
    }


def content(model: nn.Layer) -> dict[str, np.ndarray]:
    return {name: tensor.numpy().copy() for name, tensor in model.state_dict().items()}


def assert_equal(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert found.keys() == expected.keys()
    for name in expected:
        np.testing.assert_array_equal(found[name], expected[name], err_msg=name)


# safetensors


def test_safetensors_hold_every_dtype_and_shape_exactly(tmp_path: Path) -> None:
    given = {
        "weight": np.array([[1.5, -np.inf], [np.nan, 1e-42]], np.float32),
        "half": np.array([0.1, 65504.0], np.float16),
        "steps": np.array(2**40, np.int64),
        "none": np.zeros((0, 3), np.float32),
    }
    write_arrays(tmp_path / "a.safetensors", {key: paddle.to_tensor(value) for key, value in given.items()})
    found = read_arrays(tmp_path / "a.safetensors")
    assert_equal(found, given)
    assert {key: value.dtype for key, value in found.items()} == {
        key: value.dtype for key, value in given.items()
    }


ARRAYS = st.one_of(
    hypothesis.extra.numpy.arrays(dtype, hypothesis.extra.numpy.array_shapes(min_dims=0, min_side=0))
    for dtype in ("float16", "float32", "float64", "int8", "uint8", "int32", "int64", "bool")
)


@given(arrays=st.dictionaries(st.text(max_size=4), ARRAYS, max_size=4))
def test_packed_arrays_equal_those_of_safetensors(arrays: dict[str, np.ndarray]) -> None:
    assert b"".join(pack_arrays(arrays)) == safetensors.numpy.save(arrays)


def test_copy_to_kept_memory_overwrites_it_if_the_size_is_equal() -> None:
    memory = HostMemory()
    first = copy_to_host({"a": paddle.full([2, 3], 1.0), "b": paddle.full([4], 2.0)}, memory)
    second = copy_to_host({"a": paddle.full([2, 3], 3.0), "b": paddle.full([4], 4.0)}, memory)
    assert [set(arrays.flat) for arrays in (first["a"], second["a"], second["b"])] == [{3}, {3}, {4}]
    larger = copy_to_host({"a": paddle.full([9], 5.0)}, memory)
    assert (larger["a"] == 5).all()
    assert (second["a"] == 3).all()


def test_write_view_of_a_buffer_copies_only_its_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = [paddle.full([2, 3], 1.0), paddle.full([5], 2.0)]
    flat, numpy = FlatBuffers(tensors), paddle.Tensor.numpy
    flat.adopt()

    def watched(tensor: paddle.Tensor) -> np.ndarray:
        assert not tensor._is_shared_buffer_with(flat.memories[0]), "numpy() would copy the whole buffer"
        return numpy(tensor)

    monkeypatch.setattr(paddle.Tensor, "numpy", watched)
    packed = safetensors.numpy.load(b"".join(pack_arrays(copy_to_host({"a": tensors[0], "b": tensors[1]}))))
    np.testing.assert_array_equal(packed["a"], np.full([2, 3], 1.0))
    np.testing.assert_array_equal(packed["b"], np.full([5], 2.0))


def test_write_transposed_tensor_keeps_its_order(tmp_path: Path) -> None:
    tensor = paddle.arange(6, dtype="float32").reshape([2, 3]).t()
    write_arrays(tmp_path / "a.safetensors", {"a": tensor})
    np.testing.assert_array_equal(read_arrays(tmp_path / "a.safetensors")["a"], [[0, 3], [1, 4], [2, 5]])


def test_write_on_full_disk_keeps_the_earlier_file(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    write_arrays(path, {"a": paddle.ones([2])})
    before = path.read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))  # as a full disk: writing more fails
    try:
        with pytest.raises(OSError, match="File too large"):
            write_arrays(path, {"a": paddle.zeros([10_000])})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == ["a.safetensors"]


def in_safetensors(dtype: str, size: int) -> bytes:
    header = json.dumps({"a": {"dtype": dtype, "shape": [2], "data_offsets": [0, size]}}).encode()
    return struct.pack("<Q", len(header)) + header + bytes(size)


@pytest.mark.parametrize("shape", [[0, 2**62], [2**62, 0], [0, 2**63 - 1], [0, 2**64], [1] * 100, [0] * 65])
def test_safetensors_with_impossible_shapes_are_named(tmp_path: Path, shape: list[int]) -> None:
    size = 0 if 0 in shape else 4
    header = json.dumps({"a": {"dtype": "F32", "shape": shape, "data_offsets": [0, size]}}).encode()
    path = tmp_path / "a.safetensors"
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(size))
    with pytest.raises(UserError, match=r"a\.safetensors: damaged, or not a safetensors file: "):
        read_arrays(path)


@pytest.mark.parametrize("damaged", [b"", b"PK", b"\xff" * 99, in_safetensors("F32", 8)[:-1]])
def test_damaged_safetensors_are_named(tmp_path: Path, damaged: bytes) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(damaged)
    with pytest.raises(UserError, match=r"a\.safetensors: damaged, or not a safetensors file: "):
        read_weights(path)


@pytest.mark.parametrize(("dtype", "size"), [("BF16", 4), ("F8_E4M3", 2)])
def test_read_type_unknown_to_numpy_is_an_error(tmp_path: Path, dtype: str, size: int) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(in_safetensors(dtype, size))
    with pytest.raises(
        UserError,
        match=r"a\.safetensors: tensors of this dtype are not supported \(.+\); save them as float32",
    ):
        read_weights(path)


@pytest.mark.parametrize("name", ["a.safetensors", "a.pdparams"])
def test_read_missing_file_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(UserError, match=rf"{name}: no such file"):
        read_weights(tmp_path / name)


@pytest.mark.parametrize("read", [read_arrays, read_pdparams])
def test_read_folder_is_an_error(tmp_path: Path, read: Callable[[Path], Any]) -> None:
    with pytest.raises(UserError, match="damaged, or not a "):
        read(tmp_path)


# .pdparams


def test_pdparams_of_paddle_save_are_read(tmp_path: Path) -> None:
    model = Net()
    paddle.save(model.state_dict(), str(tmp_path / "net.pdparams"))
    assert b"StructuredToParameterName@@" in (tmp_path / "net.pdparams").read_bytes()
    assert_equal(read_weights(tmp_path / "net.pdparams"), content(model))
    assert_equal(read_weights(tmp_path / "net"), content(model))


@pytest.mark.parametrize("protocol", [2, 3, 4])
def test_pdparams_of_plain_arrays_are_read_in_every_protocol(
    tmp_path: Path, arrays: dict[str, np.ndarray], protocol: int
) -> None:
    (tmp_path / "net.pdparams").write_bytes(pickle.dumps(OrderedDict(arrays), protocol))
    assert_equal(read_weights(tmp_path / "net.pdparams"), arrays)


def test_read_adds_the_ending_to_a_name_with_a_dot(tmp_path: Path, arrays: dict[str, np.ndarray]) -> None:
    (tmp_path / "ResNet50_v1.5.pdparams").write_bytes(pickle.dumps(arrays))
    assert_equal(read_weights(tmp_path / "ResNet50_v1.5"), arrays)


def test_read_pair_of_name_and_array_returns_the_array(tmp_path: Path) -> None:
    (tmp_path / "net.pdparams").write_bytes(
        pickle.dumps({"fc.weight": ("linear_0.w_0", np.arange(3.0)), "epoch": 3, "pair": (1, 2), "one": (1,)})
    )
    assert_equal(read_weights(tmp_path / "net.pdparams"), {"fc.weight": np.arange(3.0)})


def test_bfloat16_is_read_as_numbers(tmp_path: Path) -> None:
    exact = paddle.to_tensor([[1.0, -2.5], [3.0e30, 1.0e-30]])
    paddle.save({"a": exact.astype("bfloat16")}, str(tmp_path / "half.pdparams"))
    found = read_weights(tmp_path / "half.pdparams")["a"]
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, exact.astype("bfloat16").astype("float32").numpy())


@pytest.mark.parametrize("spelling", [b"numpy.core.multiarray", b"numpy._core.multiarray"])
def test_read_accepts_both_module_names_of_numpy(
    tmp_path: Path, arrays: dict[str, np.ndarray], spelling: bytes
) -> None:
    """Protocol 2 ends a module's name by a newline, so another of any length can take its place."""
    everything = {**arrays, "scalar": np.float64(2.5)}
    written = pickle.dumps(everything, protocol=2)
    own = next(each for each in (b"numpy._core.multiarray", b"numpy.core.multiarray") if each in written)
    (tmp_path / "net.pdparams").write_bytes(written.replace(own, spelling))
    assert_equal(read_weights(tmp_path / "net.pdparams"), arrays)


class Calls:
    """Unpickling this calls ``function(*arguments)``."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self._call = (function, arguments)

    def __reduce__(self) -> Any:
        return self._call


def attacks(trace: Path) -> dict[str, Any]:
    code = f"open({str(trace)!r}, 'w')"
    return {
        "os.system": Calls(os.system, f"touch {trace}"),
        "eval": Calls(eval, code),
        "exec": Calls(exec, code),
        "open": Calls(open, str(trace), "w"),
        "getattr": Calls(getattr, Calls(builtins.__import__, "os"), "system"),
        "getattr of an allowed one": Calls(getattr, np.ndarray, "tofile"),
        "in a tuple": ("fc.weight", Calls(os.system, f"touch {trace}")),
        "in an array": np.array([Calls(os.system, f"touch {trace}")], dtype=object),
        "as a key": {Calls(os.mkdir, str(trace)): 1},
        "bytearray": bytearray(b"harmless, but no array"),
    }


@pytest.mark.parametrize("name", list(attacks(Path("x"))))
def test_read_executes_no_code_from_the_file(
    tmp_path: Path, arrays: dict[str, np.ndarray], name: str
) -> None:
    trace = tmp_path / "trace"
    written = pickle.dumps({**arrays, "extra": attacks(trace)[name]})
    (tmp_path / "net.pdparams").write_bytes(written)
    with pytest.raises(
        UserError, match=r"net\.pdparams: rejected: .* only arrays, .* found a reference to \w+.*; save only"
    ):
        read_weights(tmp_path / "net.pdparams")
    assert not trace.exists()
    if name != "getattr of an allowed one":  # the attacks are real: the plain reader falls for them
        pickle.loads(written)
        assert trace.exists() or name in ("getattr", "bytearray")


def test_read_pickle_cannot_set_attributes_of_an_allowed_class(tmp_path: Path) -> None:
    """``BUILD`` on a class that is admitted would set its attributes."""
    written = pickle.dumps(np.ndarray, protocol=2)[:-1] + b"}U\x04markK\x01sb."
    (tmp_path / "net.pdparams").write_bytes(written)
    with pytest.raises(UserError, match="damaged"):
        read_weights(tmp_path / "net.pdparams")
    assert not hasattr(np.ndarray, "mark")


def test_read_truncated_file_is_damaged(tmp_path: Path, arrays: dict[str, np.ndarray]) -> None:
    whole = pickle.dumps(arrays)
    for length in [0, 1, 2, *range(3, len(whole), 7), len(whole) - 1]:
        (tmp_path / "net.pdparams").write_bytes(whole[:length])
        with pytest.raises(UserError, match=r"damaged, or not a \.pdparams file"):
            read_weights(tmp_path / "net.pdparams")
    (tmp_path / "net.pdparams").write_text("hello")
    with pytest.raises(
        UserError,
        match=r"not a \.pdparams file: expected only references to values of the file, found another one",
    ):
        read_weights(tmp_path / "net.pdparams")


def test_read_file_with_wrong_bytes_raises_only_user_errors(
    tmp_path: Path, arrays: dict[str, np.ndarray]
) -> None:
    whole = pickle.dumps({"fc.weight": arrays["fc.weight"]})
    rng = np.random.default_rng(0)
    refused = 0
    for _ in range(300):
        changed = bytearray(whole)
        changed[rng.integers(len(whole))] = rng.integers(256)
        (tmp_path / "net.pdparams").write_bytes(bytes(changed))
        try:
            read_weights(tmp_path / "net.pdparams")
        except UserError:
            refused += 1
    assert refused > 50


@pytest.mark.parametrize(
    ("written", "message"),
    [
        (b"\x80\x04j\x00\x00\x00\x7f.", "damaged"),
        (b"not a pickle at all", "damaged"),
        (pickle.dumps([1.0, 2.0]), "expected a mapping from names to arrays, got list"),
        (pickle.dumps({}), "contains no arrays; expected the weights of a model"),
        (pickle.dumps({"epoch": 3}), "contains no arrays; expected the weights of a model"),
        (pickle.dumps({"names": np.array(["a"])}), "contains no arrays; expected the weights of a model"),
    ],
)
def test_read_other_content_is_an_error(tmp_path: Path, written: bytes, message: str) -> None:
    (tmp_path / "net.pdparams").write_bytes(written)
    with pytest.raises(UserError, match=message):
        read_weights(tmp_path / "net.pdparams")


# Where weights are


def checkpoint(folder: Path, **arrays: float) -> Path:
    """Writes a checkpoint folder: keywords name files, and give the value of their only array."""
    folder.mkdir()
    contents = {
        f"{name}.safetensors": b"".join(pack_arrays(copy_to_host({"a": paddle.full([1], value)})))
        for name, value in arrays.items()
    }
    contents |= {"config.yaml": b"Global: {}", "label_list.txt": b"0 cat\n1 dog\n"}
    files = {name: write_file(folder / name, data) for name, data in contents.items()}
    manifest = Manifest(serial=0, update=0, epoch=0, step=0, versions={}, files=files)
    write_manifest(folder, manifest)
    return folder


def test_read_weights_of_folder_prefers_average(tmp_path: Path) -> None:
    assert read_weights(checkpoint(tmp_path / "plain", model=0.0))["a"] == 0
    assert read_weights(checkpoint(tmp_path / "averaged", model=0.0, ema=1.0))["a"] == 1


def test_read_weights_of_folder_ignores_unlisted_average(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "plain", model=0.0)
    write_arrays(folder / AVERAGE, {"a": paddle.ones([1])})
    assert read_weights(folder)["a"] == 0


@pytest.mark.parametrize("name", [AVERAGE, WEIGHTS, "config.yaml", "label_list.txt", "manifest.json"])
def test_read_weights_of_folder_rejects_missing_file(tmp_path: Path, name: str) -> None:
    folder = checkpoint(tmp_path / "averaged", model=0.0, ema=1.0)
    (folder / name).unlink()
    with pytest.raises(UserError, match=rf"averaged.*{name}"):
        read_weights(folder)


@pytest.mark.parametrize("name", [AVERAGE, WEIGHTS, "config.yaml", "label_list.txt"])
def test_read_weights_of_folder_rejects_changed_file(tmp_path: Path, name: str) -> None:
    folder = checkpoint(tmp_path / "averaged", model=0.0, ema=1.0)
    content = (folder / name).read_bytes()
    (folder / name).write_bytes(content[:-2] + bytes([content[-2] ^ 1]) + content[-1:])
    with pytest.raises(UserError, match=rf"averaged/{name}: damaged: expected {len(content)} bytes"):
        read_weights(folder)


def test_other_weights_in_a_folder_are_named(tmp_path: Path) -> None:
    file = tmp_path / "inference.safetensors"
    write_arrays(file, {"a": paddle.ones([1])})
    with pytest.raises(UserError, match=f"weights in inference.safetensors, name this file: {file}$"):
        read_weights(tmp_path)


def test_read_folder_with_only_an_average_is_an_error(tmp_path: Path) -> None:
    write_arrays(tmp_path / AVERAGE, {"a": paddle.ones([1])})
    with pytest.raises(UserError, match=r"not a checkpoint folder: model\.safetensors is missing$"):
        read_weights(tmp_path)
    (tmp_path / "best_model").mkdir()
    with pytest.raises(UserError, match=rf"; expected the best model of the run, {tmp_path}/best_model$"):
        read_weights(tmp_path)


@pytest.mark.parametrize("name", ["nothing", "weights.dat"])
def test_read_folder_without_weights_is_an_error(tmp_path: Path, name: str) -> None:
    (tmp_path / "weights.dat").write_bytes(b"")
    with pytest.raises(UserError, match=rf"{name}: no weights found; expected a checkpoint folder, a \.safe"):
        read_weights(tmp_path / name)


# Into a model


def test_fill_model_sets_all_weights(arrays: dict[str, np.ndarray]) -> None:
    model = Net()
    fill_model(model, arrays, "here")
    assert_equal(content(model), arrays)


def test_fill_model_casts_to_the_models_precision(arrays: dict[str, np.ndarray]) -> None:
    model = Net()
    fill_model(model, {name: array.astype(np.float64) for name, array in arrays.items()}, "here")
    assert model.fc.weight.dtype == paddle.float32
    assert_equal(content(model), arrays)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"fc.bias": None}, "fc.bias: missing"),
        ({"head.weight": np.zeros(1)}, "head.weight: not in the model"),
        ({"fc.weight": np.zeros((4, 5))}, r"fc.weight: expected shape \[4, 3\], got \[4, 5\]"),
        ({"fc.weight": np.zeros((4, 3), np.int64)}, "fc.weight: expected floating-point numbers, got int64"),
    ],
)
def test_fill_model_names_what_is_wrong_and_changes_nothing(
    arrays: dict[str, np.ndarray], change: dict[str, Any], message: str
) -> None:
    model = Net()
    before = content(model)
    given = {name: array for name, array in {**arrays, **change}.items() if array is not None}
    with pytest.raises(UserError, match=f"^here: weights of another model .*: {message}$"):
        fill_model(model, given, "here")
    assert_equal(content(model), before)


def test_fill_model_names_a_few_of_many() -> None:
    many = {f"layer{i}": np.zeros(1) for i in range(20)}
    with pytest.raises(UserError) as caught:
        fill_model(Net(), many, "here")
    assert str(caught.value).endswith("; and 22 more")
    assert str(caught.value).count(";") == 5


def test_start_from_fills_all_of_the_same_model(arrays: dict[str, np.ndarray]) -> None:
    model = Net()
    assert start_from(model, arrays, "here") == ([], "", "")
    assert_equal(content(model), arrays)


def test_start_from_keeps_the_initial_classifier_for_other_classes(arrays: dict[str, np.ndarray]) -> None:
    model = Net(classes=7)
    fresh = content(model)
    assert start_from(model, arrays, "here").random == ["fc.bias", "fc.weight"]
    found = content(model)
    for name in fresh:
        expected = fresh if name.startswith("fc.") else arrays
        np.testing.assert_array_equal(found[name], expected[name], err_msg=name)


def with_prefix(prefix: str, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {f"{prefix}{name}": array for name, array in arrays.items()}


PADDLECLAS_FILES = {
    "a loss": (("",), True, "without those of the loss"),
    "a student and its teacher": (("Teacher.", "Student."), False, "of Student"),
    "a student, its peer and a loss": (("Student1.", "Student."), True, "of Student"),
    "one model of a distillation": (("net.",), False, "of net"),
}


@pytest.mark.parametrize("kind", PADDLECLAS_FILES)
@pytest.mark.parametrize("classes", [3, 7])
def test_weights_of_the_network_are_selected_in_files_of_paddleclas(
    tmp_path: Path, arrays: dict[str, np.ndarray], kind: str, classes: int
) -> None:
    prefixes, has_loss, selected = PADDLECLAS_FILES[kind]
    saved = {}
    for number, prefix in enumerate(prefixes):
        other = {name: array * 2.0 ** (number + 1 - len(prefixes)) for name, array in arrays.items()}
        saved |= with_prefix(prefix, other)
    if has_loss:
        saved |= {
            "loss_func.1.centers": np.ones((3, 4), np.float32),
            "loss_func.0.bias": np.ones(1, np.float32),
        }
    path = tmp_path / "best_model.pdparams"
    paddle.save({name: paddle.to_tensor(array) for name, array in saved.items()}, str(path))
    model = Net(classes=classes)
    report = start_from(model, read_weights(path), path)
    assert report.selected == selected
    assert report.random == ([] if classes == 3 else ["fc.bias", "fc.weight"])
    expected = {name: array for name, array in arrays.items() if name not in report.random}
    assert_equal({name: array for name, array in content(model).items() if name in expected}, expected)
    if classes == 3:
        inferred = Net()
        fill_model(inferred, read_weights(path), path)
        assert_equal(content(inferred), arrays)


def test_weights_of_several_models_without_a_student_are_an_error(arrays: dict[str, np.ndarray]) -> None:
    saved = with_prefix("first.", arrays) | with_prefix("second.", arrays)
    with pytest.raises(UserError, match="x: contains the weights of several models, first, second; save"):
        start_from(Net(), saved, "x")


def test_start_from_replaces_classifiers_of_transformers() -> None:
    arrays = content(DistilledVisionTransformer(16, 16, 6, 1, 2, class_num=3))
    fresh = start_from(DistilledVisionTransformer(16, 16, 6, 1, 2, class_num=5), arrays, "here").random
    assert fresh == ["head.bias", "head.weight", "head_dist.bias", "head_dist.weight"]


@pytest.mark.parametrize(
    ("name", "classifier"),
    [("ShuffleNetV2_x0_25", "_fc"), ("RegNetX_200MF", "out"), ("GhostNet_x0_5", "fc_1"), ("LeNet", "fc.2")],
)
def test_start_from_finds_a_classifier_of_any_name(name: str, classifier: str) -> None:
    channels = 1 if name == "LeNet" else 3
    arrays = content(build_model(name, 5, input_image_channel=channels))
    fresh = start_from(build_model(name, 7, input_image_channel=channels), arrays, "here").random
    assert fresh == [f"{classifier}.bias", f"{classifier}.weight"]


@pytest.mark.parametrize(
    ("channels", "text"),
    [
        (1, "weights of 3 input channels averaged for 1"),
        (2, "weights of 3 input channels averaged for 2"),
        (5, "weights of 3 input channels repeated for 5"),
    ],
)
def test_start_from_adapts_the_first_layer_to_other_input_channels(channels: int, text: str) -> None:
    before = build_model("PPLCNet_x0_25", 5)
    after = build_model("PPLCNet_x0_25", 7, input_image_channel=channels)
    report = start_from(after, content(before), "here")
    (name,) = [name for name, array in content(after).items() if array.shape[1:2] == (channels,)][:1]
    assert report == (["fc.bias", "fc.weight"], f"{name}: {text}", "")
    gray = paddle.rand([1, 1, 32, 32])
    expected, found = (
        getattr(model, name.partition(".")[0])(gray.expand([1, count, 32, 32])).numpy()
        for model, count in ((before, 3), (after, channels))
    )
    if channels < 3:
        np.testing.assert_allclose(found, expected, atol=1e-5)
    assert found.shape == expected.shape


@pytest.mark.parametrize(
    ("model", "change"),
    [
        (lambda: Net(width=5), {}),
        (lambda: Net(classes=7), {"fc.weight": np.zeros((9, 3), np.float32)}),
        (lambda: Net(classes=7), {"fc.weight": np.zeros(3, np.float32)}),
        (lambda: Net(classes=7), {"fc.bias": None}),
        (lambda: Net(classes=7), {"fc.extra": np.zeros(3, np.float32)}),
    ],
    ids=["other widths", "classifier of other features", "other rank", "no bias", "unknown name"],
)
def test_start_from_rejects_other_differences(
    arrays: dict[str, np.ndarray], model: Callable[[], Net], change: dict[str, Any]
) -> None:
    given = {name: array for name, array in {**arrays, **change}.items() if array is not None}
    made = model()
    before = content(made)
    with pytest.raises(UserError, match="weights of another model"):
        start_from(made, given, "here")
    assert_equal(content(made), before)


@pytest.mark.parametrize("name", ["w.pdparams", "w.pth", "w.safetensors"])
def test_read_weights_web_page_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("\n<!DOCTYPE html><title>Sign in</title>")
    with pytest.raises(UserError, match=f"{name}: expected weights, got a web page; download"):
        read_weights(tmp_path / name)


@pytest.mark.hostile
@pytest.mark.parametrize("name", ["pipe.pdparams", "pipe.pth", "pipe.safetensors"])
def test_read_weights_pipe_is_rejected(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    with pytest.raises(UserError, match=f"{name}: damaged, .*not a regular file"):
        read_weights(tmp_path / name)
