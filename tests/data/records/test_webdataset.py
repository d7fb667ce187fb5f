"""WebDataset: tar files of other tools, and invalid ones."""

from __future__ import annotations

import io
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from formats import FORMATS, content, opened, records, write, write_index
from paths import ROOT, SUPPORT
from runs import GUARD

from ppcls.data.records.shard import ImageRecord, OpenFiles, default_index_path
from ppcls.data.records.webdataset import WebDatasetFormat
from ppcls.errors import UserError

SAMPLES = records([b"one", b"two" * 300, b"three"], [4, 0, 17])


def make(path: Path, files: dict[str, bytes], **options: object) -> Path:
    with tarfile.open(path, "w", **options) as tar:  # type: ignore[call-overload]
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return path


def read(path: Path) -> list[tuple[bytes, int]]:
    return content(opened("webdataset", write_index("webdataset", path)))


def test_webdataset_index_equals_dalis(tmp_path: Path) -> None:
    path = make(
        tmp_path / "a.tar",
        {
            "a/1.jpg": b"x" * 700,
            "a/1.cls": b"3",
            "a/1.extra.json": b"{}",
            "b/1.png": b"y",
            "b/1.cls": b"0",
            "b/.hidden.jpg": b"z",
            "2.JPG": b"w" * 512,
            "2.cls": b"1",
        },
    )
    tool = Path(sys.executable).with_name("wds2idx")
    subprocess.run([tool, path, tmp_path / "tool.idx"], check=True, capture_output=True)
    assert FORMATS["webdataset"].build_index(path) == (tmp_path / "tool.idx").read_text()
    assert read(path) == [(b"x" * 700, 3), (b"y", 0), (b"w" * 512, 1)]


def test_webdataset_ignores_other_members(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w") as tar:
        for name, kind in (
            ("folder", tarfile.DIRTYPE),
            ("link.jpg", tarfile.SYMTYPE),
            ("pipe.cls", tarfile.FIFOTYPE),
        ):
            member = tarfile.TarInfo(name)
            member.type = kind
            member.linkname = "/etc/passwd"
            tar.addfile(member)
        for name, data in (("README", b"hello"), ("folder/1.cls", b" 7\n"), ("folder/1.webp", b"image")):
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    assert read(path) == [(b"image", 7)]


@pytest.mark.parametrize("options", [{"format": tarfile.PAX_FORMAT}, {"format": tarfile.GNU_FORMAT}], ids=str)
def test_webdataset_reads_any_names(tmp_path: Path, options: dict[str, int]) -> None:
    """Nothing is ever unpacked, so a name leads nowhere."""
    names = ["猫/" + "long" * 60, "../../etc/x", "/abs/y", "with blank/z z", "\udcff"]
    files = {
        f"{name}.{end}": data
        for name in names
        for end, data in (("jpg", name.encode(errors="replace")), ("cls", b"2"))
    }
    path = make(tmp_path / "a.tar", files, **options)
    assert read(path) == [(name.encode(errors="replace"), 2) for name in names]
    assert [each.name for each in tmp_path.iterdir() if each.name != "a.tar"] == ["a.idx"]


def test_webdataset_extensions_select_the_image(tmp_path: Path) -> None:
    path = make(tmp_path / "a.tar", {"1.left.tif": b"l", "1.right.tif": b"r", "1.cls": b"5"})
    default_index_path(path).write_text(FORMATS["webdataset"].build_index(path) or "")
    shard = WebDatasetFormat((".right.tif",)).open(path, default_index_path(path), OpenFiles())
    assert content(shard) == [(b"r", 5)]


@pytest.mark.parametrize(
    ("files", "text"),
    [
        ({"1.jpg": b"x"}, "and one .cls file, found .jpg"),
        ({"1.cls": b"1", "1.txt": b"x"}, "and one .cls file, found .cls, .txt"),
        ({"1.cls": b"1", "1.jpg": b"x", "1.png": b"y"}, "and one .cls file, found .cls, .jpg, .png"),
        (
            {"1.jpg": b"x", "1.cls": b"cat"},
            "expected a whole number in the .cls file at byte 1536, found b'cat'",
        ),
        (
            {"1.jpg": b"x", "1.cls": b"-1"},
            "expected a whole number in the .cls file at byte 1536, found b'-1'",
        ),
        (
            {"1.jpg": b"x", "1.cls": b"9" * 99},
            "expected a whole number in the .cls file at byte 1536, found b'9",
        ),
        ({"1.jpg": b"x", "1.cls": b""}, "expected a whole number in the .cls file at byte 1536, found b''"),
    ],
)
def test_webdataset_open_names_the_wrong_sample(tmp_path: Path, files: dict[str, bytes], text: str) -> None:
    path = make(tmp_path / "a.tar", {"0.jpg": b"good", "0.cls": b"0", **files})
    if "1.jpg" in files and len(files) == 2:
        path = make(tmp_path / "a.tar", files)
    with pytest.raises(UserError) as caught:
        read(path)
    line = 2 if "byte" in text else 3
    assert str(caught.value).startswith(f"{tmp_path}/a.idx, line {line}: ")
    assert text in str(caught.value)


def test_webdataset_open_counts_wrong_samples(tmp_path: Path) -> None:
    path = make(tmp_path / "a.tar", {f"{number}.jpg": b"x" for number in range(13)})
    with pytest.raises(UserError) as caught:
        read(path)
    lines = str(caught.value).splitlines()
    assert len(lines) == 11
    assert lines[-1] == "… and 3 more lines"


def test_webdataset_labels_have_up_to_18_digits(tmp_path: Path) -> None:
    assert read(make(tmp_path / "a.tar", {"1.jpg": b"x", "1.cls": b"9" * 18})) == [(b"x", 10**18 - 1)]
    shard = make(tmp_path / "b.tar", {"1.jpg": b"x", "1.cls": b"9" * 19})
    with pytest.raises(UserError, match="expected a whole number"):
        read(shard)


def test_webdataset_rejects_compressed_tar(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w:gz"):
        pass
    with pytest.raises(UserError, match=r"a\.tar: expected a complete, uncompressed tar file"):
        FORMATS["webdataset"].build_index(tmp_path / "a.tar")


def test_webdataset_rejects_damaged_header(tmp_path: Path) -> None:
    path = write("webdataset", tmp_path / "a.tar", SAMPLES)
    data = bytearray(path.read_bytes())
    data[2048 + 5] ^= 1  # the name of the second sample
    path.write_bytes(data)
    with pytest.raises(UserError) as caught:
        FORMATS["webdataset"].build_index(path)
    assert str(caught.value) == (
        f"{path}, byte 2048: expected a file header, or a block of zeros at the end, found other data"
    )


def test_webdataset_rejects_tar_without_samples(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"expected a file with WebDataset records, found none"):
        FORMATS["webdataset"].build_index(make(tmp_path / "a.tar", {".hidden.jpg": b"x"}))


@pytest.mark.parametrize("name", ["a.b.jpg", "a.gif", "jpg"])
def test_webdataset_write_rejects_names_it_could_not_read(tmp_path: Path, name: str) -> None:
    with pytest.raises(
        UserError, match=f"WebDataset can't store {name}: expected a name with a single dot that ends in .jpg"
    ):
        FORMATS["webdataset"].write(tmp_path / "a.tar", [ImageRecord(name, b"x", 0)])


def pax(path: Path, kind: bytes = tarfile.REGTYPE, **headers: str) -> Path:
    """Writes a sample, and a file with pax headers."""
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as tar:
        for name, data in (("1.jpg", b"one"), ("1.cls", b"4"), ("2.jpg", bytes(600))):
            member = tarfile.TarInfo(name)
            member.size = len(data)
            if name == "2.jpg":
                member.type = kind
                member.pax_headers = {key.replace("_", "."): value for key, value in headers.items()}
            tar.addfile(member, io.BytesIO(data))
    return path


@pytest.mark.hostile
@pytest.mark.parametrize(
    "headers",
    [
        {"size": "-512"},
        {"size": "-1536"},
        {"size": "-100000000000"},
        {"size": "99999999999999999999"},
        {"size": "x"},
        {"GNU_sparse_major": "1", "GNU_sparse_minor": "0"},
        {"GNU_sparse_major": "1", "GNU_sparse_minor": "0", "GNU_sparse_realsize": "x"},
        {"GNU_sparse_size": "999999999999", "GNU_sparse_map": "0,1,x"},
        {"GNU_sparse_size": "x", "GNU_sparse_map": "0,1"},
    ],
)
def test_damaged_pax_headers_are_named_and_end(headers: dict[str, str], tmp_path: Path) -> None:
    path = pax(tmp_path / "odd.tar", **headers)
    with pytest.raises(UserError, match=r"odd\.(tar|idx)"):
        read(path)


@pytest.mark.hostile
def test_sparse_file_at_the_end_does_not_hide_the_end(tmp_path: Path) -> None:
    """Of a sparse file, the tar contains fewer bytes than its size says."""
    path = pax(tmp_path / "sparse.tar", GNU_sparse_size="999999999999", GNU_sparse_map="0,600")
    assert read(path) == [(b"one", 4)]


@pytest.mark.hostile
def test_size_beyond_any_file_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    path = pax(tmp_path / "odd.tar", size=str(2**62))
    with pytest.raises(UserError, match=r"odd.tar: expected a complete, .*beyond the end of the largest"):
        read(path)


LONG_NAME = """
import resource, sys, tarfile
from pathlib import Path
sys.path[:0] = sys.argv[1:]
from formats import write_index
from ppcls.errors import UserError
member = tarfile.TarInfo("././@LongLink")
member.type = tarfile.GNUTYPE_LONGNAME
member.size = 8 << 30
path = Path("odd.tar")
path.write_bytes(member.tobuf(tarfile.GNU_FORMAT) + bytes(10_240))
resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30))
try:
    write_index("webdataset", path)
except UserError as error:
    print(error)
"""


@pytest.mark.hostile
def test_long_name_that_needs_gigabytes_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    words = [sys.executable, "-c", LONG_NAME, str(SUPPORT), str(ROOT)]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=GUARD, check=False)
    assert "odd.tar: expected a complete, uncompressed tar file, found: there is not enough" in done.stdout, (
        done
    )
