"""Bundles from strangers: names that lead out, zip files that expand, damaged and changed files."""

from __future__ import annotations

import copy
import json
import shutil
import stat
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from bundles import export_bundle
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ppcls.classifier import Classifier
from ppcls.cli.export import verify
from ppcls.deploy.bundle.archive import extract
from ppcls.deploy.bundle.schema import check_files, check_name, read_bundle_file
from ppcls.errors import UserError


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export_bundle(tmp_path_factory.mktemp("bundle"))


@pytest.fixture
def bundle(original: Path, tmp_path: Path) -> Path:
    return shutil.copytree(original, tmp_path / "bundle")


def change(bundle: Path, path: list[Any], value: Any) -> None:
    tree = json.loads((bundle / "bundle.json").read_text(encoding="utf-8"))
    node = tree
    for key in path[:-1]:
        node = node[key]
    node[path[-1]] = value
    (bundle / "bundle.json").write_text(json.dumps(tree), encoding="utf-8")


@pytest.mark.parametrize(
    "name",
    [
        "../x",
        "/etc/passwd",
        "golden/../../x",
        "",
        "a//b",
        "a\\b",
        "C:x",
        ".hidden",
        "con",
        "golden/NUL.txt",
        "a\0b",
    ],
)
def test_name_that_leads_out_is_rejected(name: str, bundle: Path) -> None:
    with pytest.raises(ValueError, match="expected the path of a file in the bundle"):
        check_name(name)
    change(bundle, ["golden", 0, "image"], name)
    with pytest.raises(UserError, match=r"golden.*expected the path of a file"):
        read_bundle_file(bundle)


@pytest.mark.parametrize(
    ("path", "value", "reason"),
    [
        (["version"], 2, "expected version 1"),
        (["format"], "zip", "ppcls-bundle"),
        (["model", "temperature"], 0, "temperature"),
        (["classes"], [], "classes"),
        (["classes"], ["a"], "class [12] of"),
        (["golden", 0, "height"], 10**9, "height"),
        (["golden", 0, "classes"], [7], "expected a number below 3"),
        (["golden", 0, "decoded"], "inference.bin", "expected a record of inference.bin"),
        (["golden", 0, "height"], 1, "files: golden/00.decoded.bin: expected [0-9,]+ bytes"),
        (
            ["prepared_shape"],
            [3, 16384, 16384],
            "00.prepared.bin: expected 3,221,225,472 bytes",
        ),
        (
            ["files", "golden/00.logits.bin", "size"],
            1 << 40,
            "00.logits.bin: expected 12 bytes",
        ),
        (["decision", "threshold"], [0.5], "expected 3 values"),
        (["rejection"], {"threshold": 2}, "rejection"),
        (["decision", "method"], "binary", "binary needs two classes"),
        (["extra"], 1, "unknown key"),
    ],
)
def test_invalid_description_is_an_error(bundle: Path, path: list[Any], value: Any, reason: str) -> None:
    change(bundle, path, value)
    with pytest.raises(UserError, match=reason):
        read_bundle_file(bundle)


@given(data=st.data())
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_changed_description_is_read_or_is_a_user_error(original: Path, tmp_path: Path, data: Any) -> None:
    tree = json.loads((original / "bundle.json").read_text(encoding="utf-8"))
    changed = copy.deepcopy(tree)
    node: Any = changed
    while True:
        key = data.draw(st.sampled_from(sorted(node) if isinstance(node, dict) else range(len(node))))
        if not isinstance(node[key], (dict, list)) or not node[key] or data.draw(st.booleans()):
            break
        node = node[key]
    node[key] = data.draw(
        st.none()
        | st.integers()
        | st.floats(allow_nan=False)
        | st.text()
        | st.lists(st.integers())
        | st.just({})
    )
    folder = tmp_path / "changed"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    (folder / "bundle.json").write_text(json.dumps(changed), encoding="utf-8")
    with suppress(UserError):
        read_bundle_file(folder)


def test_links_and_changed_files_are_rejected(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    secret = bundle.with_name("secret")
    sample = bundle / "golden/00.decoded.bin"
    sample.rename(secret)
    sample.symlink_to(secret)
    with pytest.raises(UserError, match="contains no links"):
        check_files(bundle, read_bundle_file(bundle))
    sample.unlink()
    assert verify([str(bundle)]) == 2
    sample.write_bytes(b"x")
    assert verify([str(bundle)]) == 2
    errors = capsys.readouterr().err
    assert "00.decoded.bin: missing; expected SHA-256" in errors
    assert "damaged or changed" in errors


def test_description_that_is_a_link_is_rejected(bundle: Path, tmp_path: Path) -> None:
    (bundle / "bundle.json").replace(tmp_path / "elsewhere.json")
    (bundle / "bundle.json").symlink_to(tmp_path / "elsewhere.json")
    with pytest.raises(UserError, match="expected a file, found a link"):
        read_bundle_file(bundle)


def test_model_with_weights_elsewhere_is_rejected(bundle: Path) -> None:
    file = bundle / "inference.onnx"
    model = onnx.load(file)
    options = {"location": "weights.bin", "size_threshold": 0, "convert_attribute": True}
    onnx.save(model, file, save_as_external_data=True, **options)
    change(bundle, ["files", "inference.onnx"], record(file))
    with pytest.raises(UserError, match="weights in other files are not supported"):
        Classifier.from_bundle(bundle, verify=True)


def record(file: Path) -> dict[str, Any]:
    import hashlib

    data = file.read_bytes()
    return {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def test_classifier_of_a_bundle_predicts(bundle: Path) -> None:
    classifier = Classifier.from_bundle(bundle, verify=True, device="cpu")
    assert len(classifier.predict(bundle / "golden/00.png").class_ids) == 2  # type: ignore[union-attr]
    with pytest.raises(UserError, match="--extract"):
        Classifier.from_bundle(bundle / "bundle.json")


def write_zip(path: Path, *entries: tuple[str, bytes, int]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data, mode in entries:
            entry = zipfile.ZipInfo(name)
            entry.external_attr = mode << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, data)
    return path


FILE = stat.S_IFREG | 0o644


@pytest.mark.parametrize(
    ("entries", "reason"),
    [
        ([("../evil", b"x", FILE)], "expected the path of a file"),
        ([("/etc/evil", b"x", FILE)], "expected the path of a file"),
        ([("a", b"/etc/passwd", stat.S_IFLNK | 0o777)], "found a link"),
        ([("a", b"x", FILE), ("A", b"y", FILE)], "contained twice"),
        ([("a", b"x", stat.S_IFIFO)], "found a link or a device"),
    ],
)
def test_zip_file_that_leads_out_is_rejected(
    tmp_path: Path, entries: list[tuple[str, bytes, int]], reason: str
) -> None:
    path = write_zip(tmp_path / "evil.zip", *entries)
    with pytest.raises(UserError, match=reason):
        extract(path, tmp_path / "new")
    assert list(tmp_path.iterdir()) == [path]


def write_small_bundle(path: Path, *others: tuple[str, bytes, int]) -> Path:
    """Writes the zip file of a bundle without golden samples, with an incomplete model."""
    model = np.arange(200, dtype="u1").tobytes()
    outputs = {"file": "inference.onnx", "name": "ResNet18", "input": "x", "probabilities": "y"}
    tree = {
        "format": "ppcls-bundle",
        "version": 1,
        "model": {
            **outputs,
            "logits": None,
            "prepared": None,
            "activation": "softmax",
            "precision": "float32",
        },
        "classes": ["cat"],
        "decision": {"method": "topk"},
        "prepared_shape": None,
        "tolerances": {"decoding": [8, 1], "resizing": [1, 1], "logits": 1, "probabilities": 1},
        "golden": [],
        "files": {"inference.onnx": {"size": len(model), "sha256": "0"}},
    }
    entries = [("bundle.json", json.dumps(tree).encode(), FILE), ("inference.onnx", model, FILE), *others]
    return write_zip(path, *entries)


def declare(path: Path, size: int, declared: int) -> None:
    """Changes the size without compression that a zip file declares for its files of one size."""
    data = path.read_bytes()
    changed = data.replace(size.to_bytes(4, "little"), declared.to_bytes(4, "little"))
    assert changed != data
    path.write_bytes(changed)


def test_zip_file_is_extracted(tmp_path: Path) -> None:
    path = write_small_bundle(tmp_path / "small.zip", ("README.md", b"x", FILE))
    extract(path, tmp_path / "new")
    assert {file.name for file in (tmp_path / "new").iterdir()} == {
        "bundle.json",
        "inference.onnx",
        "README.md",
    }


def test_binary_rule_has_one_threshold(tmp_path: Path) -> None:
    folder = tmp_path / "new"
    extract(write_small_bundle(tmp_path / "small.zip"), folder)
    change(folder, ["classes"], ["cat", "dog"])
    change(folder, ["decision"], {"method": "binary", "threshold": [0.5, 0.5]})
    with pytest.raises(UserError, match="binary needs one number, got 2"):
        read_bundle_file(folder)


SIZE = 70_001  # of a file whose declared size is changed: its bytes are nowhere else in the zip file


@pytest.mark.parametrize(
    ("declared", "reason"),
    [
        (0xFFFF_FFF0, "bytes expand to 4,294,967,..., expected at most 67,"),  # 4 GiB
        (0x0480_0000, "bytes expand to 75,498,..., expected at most 67,"),  # 72 MiB
        (
            0x0400_0001,
            "files that bundle.json does not list have 67,1..,... bytes",
        ),
        (1000, "not a zip file of a bundle, or damaged"),
    ],
)
def test_zip_file_that_expands_is_rejected(tmp_path: Path, declared: int, reason: str) -> None:
    path = write_small_bundle(tmp_path / "bomb.zip", ("zeros", bytes(SIZE), FILE))
    declare(path, SIZE, declared)
    with pytest.raises(UserError, match=reason):
        extract(path, tmp_path / "new")
    assert list(tmp_path.iterdir()) == [path]


def test_zip_file_with_many_files_that_expand_is_rejected(tmp_path: Path) -> None:
    others = ((str(number), bytes(SIZE), FILE) for number in range(80))
    path = write_small_bundle(tmp_path / "bomb.zip", *others)
    declare(path, SIZE, 1 << 20)
    with pytest.raises(UserError, match="bytes expand to 83,88"):
        extract(path, tmp_path / "new")
    assert list(tmp_path.iterdir()) == [path]


def test_zip_file_without_a_bundle_is_rejected(tmp_path: Path) -> None:
    path = write_zip(tmp_path / "photos.zip", ("a", b"x", FILE))
    with pytest.raises(UserError, match=r"expected the file bundle\.json"):
        extract(path, tmp_path / "new")
    path = write_zip(tmp_path / "large.zip", ("bundle.json", bytes(1 << 20), FILE))
    with pytest.raises(UserError, match=r"bundle\.json: not JSON"):
        extract(path, tmp_path / "new")


def test_zip_file_with_other_sizes_than_its_description_is_rejected(tmp_path: Path) -> None:
    path = write_small_bundle(tmp_path / "small.zip")
    declare(path, 200, 201)
    with pytest.raises(UserError, match=r"inference\.onnx: expected 200 bytes.* found 201"):
        extract(path, tmp_path / "new")


@given(position=st.integers(0, 2000), value=st.integers(0, 255))
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_damaged_zip_file_is_a_user_error_or_complete(tmp_path: Path, position: int, value: int) -> None:
    path = write_small_bundle(tmp_path / "small.zip", ("b/c", b"y", FILE))
    data = bytearray(path.read_bytes())
    data[position % len(data)] = value
    path.write_bytes(data)
    shutil.rmtree(tmp_path / "new", ignore_errors=True)
    try:
        extract(path, tmp_path / "new")
    except UserError:
        assert not (tmp_path / "new").exists()
