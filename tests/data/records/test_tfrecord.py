"""TFRecord: checksums, and examples as TensorFlow's tools write them."""

from __future__ import annotations

import struct
import subprocess
import sys
from pathlib import Path

import pytest
from formats import FORMATS, by_dali, content, opened, records, write, write_index
from visualdl.utils.crc32 import masked_crc32c

from ppcls.data.records.messages import Example
from ppcls.data.records.shard import OpenFiles, default_index_path
from ppcls.data.records.tfrecord import TFRecordFormat
from ppcls.data.transforms.numpy_ops import DecodeError
from ppcls.errors import UserError

SAMPLES = records([b"one", b"two" * 3000, b"three"], [4, 0, 17])


def frame(message: bytes) -> bytes:
    """Frames a record by VisualDL's own checksum."""
    length = struct.pack("<Q", len(message))
    return b"".join(
        [length, struct.pack("<I", masked_crc32c(length)), message, struct.pack("<I", masked_crc32c(message))]
    )


def example(**features: list[bytes] | list[int]) -> bytes:
    made = Example()
    for name, values in features.items():
        entry = made.features.feature.add(key=name.replace("_", "/"))
        for value in values:
            kind = entry.value.bytes_list if isinstance(value, bytes) else entry.value.int64_list
            kind.value.append(value)
    return bytes(made.SerializeToString())


def make(path: Path, *messages: bytes) -> Path:
    path.write_bytes(b"".join(map(frame, messages)))
    return write_index("tfrecord", path)


def test_tfrecord_index_equals_dalis(tmp_path: Path) -> None:
    path = write("tfrecord", tmp_path / "a.tfrecord", SAMPLES)
    tool = Path(sys.executable).with_name("tfrecord2idx")
    subprocess.run([sys.executable, tool, path, tmp_path / "tool.idx"], check=True, capture_output=True)
    assert default_index_path(path).read_text() == (tmp_path / "tool.idx").read_text()


def test_tfrecord_checksums_equal_visualdls(tmp_path: Path) -> None:
    path = write("tfrecord", tmp_path / "a.tfrecord", SAMPLES)
    data, at = path.read_bytes(), 0
    while at < len(data):
        size = struct.unpack_from("<Q", data, at)[0]
        assert data[at : at + 16 + size] == frame(data[at + 12 : at + 12 + size])
        at += 16 + size


def test_tfrecord_reads_features_in_any_order(tmp_path: Path) -> None:
    """As TensorFlow's ImageNet: a dozen features, the label behind the image or before it."""
    before = example(
        image_width=[500], image_format=[b"JPEG"], image_class_label=[3], image_encoded=[b"A" * 9000]
    )
    behind = example(
        image_encoded=[b"B" * 9000], image_colorspace=[b"RGB"], image_class_label=[1], image_object_label=[]
    )
    path = make(tmp_path / "a.tfrecord", before, behind)
    assert content(opened("tfrecord", path)) == [(b"A" * 9000, 3), (b"B" * 9000, 1)]
    assert by_dali("tfrecord", [path], 2) == content(opened("tfrecord", path))


def test_tfrecord_first_label_is_subtracted(tmp_path: Path) -> None:
    path = make(tmp_path / "a.tfrecord", example(image_class_label=[1], image_encoded=[b"x"]))
    container = TFRecordFormat(first_label=1)
    assert content(container.open(path, default_index_path(path), OpenFiles())) == [(b"x", 0)]
    container.write(tmp_path / "b.tfrecord", records([b"x"], [0]))
    write_index("tfrecord", tmp_path / "b.tfrecord")
    assert content(opened("tfrecord", tmp_path / "b.tfrecord")) == [(b"x", 1)]


@pytest.mark.parametrize(
    "message",
    [
        example(image_encoded=[b"x"]),
        example(image_encoded=[b"x"], image_class_label=[]),
        example(image_encoded=[b"x"], image_class_label=[1, 2]),
        example(image_encoded=[b"x"], image_class_label=[b"cat"]),
        b"",
    ],
)
def test_tfrecord_open_reports_missing_label(tmp_path: Path, message: bytes) -> None:
    path = make(tmp_path / "a.tfrecord", message)
    with pytest.raises(UserError) as caught:
        opened("tfrecord", path)
    assert str(caught.value) == (
        f"{path}, byte 0: expected one whole number as feature 'image/class/label', found none or several"
    )


def test_tfrecord_open_rejects_other_messages(tmp_path: Path) -> None:
    path = make(tmp_path / "a.tfrecord", b"these bytes are no message")
    with pytest.raises(
        UserError, match=r"a\.tfrecord, byte 0: expected a tf\.train\.Example, found other data"
    ):
        opened("tfrecord", path)


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (example(image_class_label=[1]), "expected one image as feature 'image/encoded', found 0"),
        (example(image_class_label=[1], image_encoded=[]), "expected one image"),
        (example(image_class_label=[1], image_encoded=[b"a", b"b"]), "expected one image .*, found 2"),
        (example(image_class_label=[1], image_encoded=[b""]), "the record has an image of 0 bytes"),
    ],
)
def test_tfrecord_read_reports_missing_image(tmp_path: Path, message: bytes, text: str) -> None:
    with pytest.raises(DecodeError, match=text):
        opened("tfrecord", make(tmp_path / "a.tfrecord", message)).read(0)


def test_tfrecord_build_index_rejects_other_files(tmp_path: Path) -> None:
    (tmp_path / "a.tfrecord").write_bytes(b"\x1f\x8b compressed or other bytes")
    with pytest.raises(UserError) as caught:
        FORMATS["tfrecord"].build_index(tmp_path / "a.tfrecord")
    assert str(caught.value) == (
        f"{tmp_path}/a.tfrecord, byte 0: expected a record's length with its checksum, "
        "found other data; the file is damaged, compressed or not a TFRecord file"
    )


def test_tfrecord_build_index_rejects_truncated_record(tmp_path: Path) -> None:
    path = write("tfrecord", tmp_path / "a.tfrecord", SAMPLES)
    data = path.read_bytes()
    path.write_bytes(data[:-10])
    begin = int(default_index_path(path).read_text().split()[-2])
    with pytest.raises(UserError) as caught:
        FORMATS["tfrecord"].build_index(path)
    size = len(data) - begin
    assert str(caught.value) == (
        f"{path}, byte {begin}: expected a record of {size} bytes, found only {size - 10} bytes"
    )


@pytest.mark.hostile
def test_tfrecord_index_with_repeated_record_is_rejected(tmp_path: Path) -> None:
    path = write("tfrecord", tmp_path / "a.tfrecord", SAMPLES)
    index = default_index_path(path)
    index.write_text(index.read_text().splitlines(keepends=True)[0] * 9 + index.read_text())
    with pytest.raises(UserError, match=r"not the index of .*: its records overlap"):
        opened("tfrecord", path)


@pytest.mark.hostile
@pytest.mark.parametrize("label", [[2**63 - 1], [-(2**63)], list(range(2000))])
def test_tfrecord_label_out_of_range_is_rejected(tmp_path: Path, label: list[int]) -> None:
    path = make(tmp_path / "a.tfrecord", example(image_class_label=label, image_encoded=[b"image"]))
    with pytest.raises(UserError, match="expected one whole number as feature 'image/class/label'"):
        TFRecordFormat(first_label=1).open(path, default_index_path(path), OpenFiles())


@pytest.mark.hostile
def test_tfrecord_of_many_empty_fields_is_rejected_at_once(tmp_path: Path) -> None:
    path = make(tmp_path / "a.tfrecord", b"\x12\0" * 1_000_000)
    with pytest.raises(UserError, match="a message has more than 10000 fields"):
        opened("tfrecord", path)
