"""Files from elsewhere: no code of theirs runs, none takes more than it may, none leads out of its folder."""

from __future__ import annotations

import ast
import builtins
import contextlib
import gzip
import hashlib
import io
import json
import os
import pickle
import struct
import subprocess
import tarfile
import tracemalloc
import zlib
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from paths import ROOT
from PIL import Image

from ppcls.cli import dataset as dataset_cli
from ppcls.config.base.errors import ConfigError
from ppcls.config.base.overrides import Override
from ppcls.config.base.yaml import read_yaml
from ppcls.data.bad_images.lists import BadImageError
from ppcls.data.index.files import FileIndex, read_folder, read_list
from ppcls.data.loaders.dali.loader import DaliLoader
from ppcls.data.loaders.dali.settings import DaliSettings
from ppcls.data.loaders.paddle import PaddleLoader
from ppcls.data.records.formats import FORMATS
from ppcls.data.records.shard import OpenFiles, default_index_path
from ppcls.data.sampling.epoch_samplers import SequentialSampler
from ppcls.data.sampling.order import Order
from ppcls.data.transforms.specs import DecodeImage, NormalizeImage, ResizeImage, plan_chain
from ppcls.data.transforms.specs.basic import DecodeNumpy
from ppcls.errors import UserError
from ppcls.weights.files import read_weights
from ppcls.weights.manifest import MANIFEST, DamagedError, FileRecord, Manifest, verify
from ppcls.weights.pickled import unpickle

pytestmark = pytest.mark.hostile

REPOSITORY = ROOT
MARK = "the_code_ran"  # a file's name


# Pickles


class Calls:
    """Unpickling this calls ``function(*arguments)``."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self._call = (function, arguments)

    def __reduce__(self) -> Any:
        return self._call


class HasState:
    """Unpickling this runs ``__setstate__``."""

    def __setstate__(self, state: object) -> None:
        Path(MARK).touch()

    def __reduce__(self) -> Any:
        return (HasState, (), {"a": 1})


def python(code: str, protocol: int = 4) -> bytes:
    return pickle.dumps({"fc.weight": Calls(exec, code)}, protocol)


def weights_and(value: Any, protocol: int = 4) -> bytes:
    return pickle.dumps({"fc.weight": np.zeros(3, np.float32), "extra": value}, protocol)


TOUCH = f"touch {MARK}"
WRITES = f"open({MARK!r}, 'w')"
RUN = {
    **{f"os.system in protocol {n}": weights_and(Calls(os.system, TOUCH), n) for n in range(6)},
    "eval": weights_and(Calls(eval, WRITES)),
    "exec": python(WRITES),
    "compile": weights_and(Calls(compile, WRITES, "x", "exec")),
    "import": weights_and(Calls(builtins.__import__, "antigravity")),
    "open": weights_and(Calls(open, MARK, "w")),
    "subprocess": weights_and(Calls(subprocess.check_output, TOUCH.split())),
    "a chain of getattr": weights_and(Calls(getattr, Calls(builtins.__import__, "os"), "system")),
    "a method of an admitted type": weights_and(Calls(getattr, np.ndarray, "tofile")),
    "map over an admitted type": weights_and(Calls(map, Calls(getattr, np.ndarray, "tofile"), [MARK])),
    "numpy.load of another file": weights_and(Calls(np.load, "x.npy", None, True)),
    "a pickle in a pickle": weights_and(Calls(pickle.loads, python(WRITES))),
    "in a list in a tuple in a dict": weights_and({"a": ([Calls(os.system, TOUCH)],)}),
    "as a key": weights_and({Calls(os.mkdir, MARK): 1}),
    "among an OrderedDict's pairs": weights_and(OrderedDict(a=Calls(os.system, TOUCH))),
    "in an array of objects": weights_and(np.array([Calls(os.system, TOUCH)], dtype=object)),
    "state": weights_and(HasState()),
    "a dotted name": b"\x80\x04\x8c\x05numpy\x8c\x0endarray.tofile\x93)R.",
    "instruction INST": f"(S'{TOUCH}'\nios\nsystem\n.".encode(),
    "instruction OBJ": f"(cos\nsystem\nS'{TOUCH}'\no.".encode(),
    "instruction NEWOBJ": f"\x80\x02cos\nsystem\n(X{chr(len(TOUCH))}\0\0\0{TOUCH}t\x81.".encode("latin-1"),
    "a name on the stack": f"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c{chr(len(TOUCH))}{TOUCH}\x85R.".encode(),
}


def binary(*parts: bytes | tuple[str, int]) -> bytes:
    return b"\x80\x04" + b"".join(part if isinstance(part, bytes) else struct.pack(*part) for part in parts)


ARRAY = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\nK\0\x85C\x01btR"
FLOATS = b"cnumpy\ndtype\n(\x8c\x02f4\x89\x88tR(K\x03\x8c\x01<NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\0tb"
OBJECTS = b"cnumpy\ndtype\n(\x8c\x02O8\x89\x88tR"


def array_of(dtype: bytes, shape: bytes, content: bytes) -> bytes:
    """A pickle of one array, its parts as they are told."""
    raw = b"B" + struct.pack("<I", len(content)) + content
    return binary(b"}\x8c\x01a", ARRAY, b"(K\x01", shape, dtype, b"\x89", raw, b"tbs.")


# An honest pickle of a structured dtype says that it has objects; this one's flags say that it has none.
FORGED = pickle.dumps(np.zeros(1, [("a", object)]), 2).replace(b"K?t", b"K\0t")
NESTED = 50_000
BOMBS = {
    "bytes of 4 EiB": binary(b"\x8e", ("<Q", 1 << 62), b"abc"),
    "more bytes than there can be": binary(b"\x8e", ("<Q", (1 << 64) - 1), b"abc"),
    "text of 4 EiB": binary(b"\x8d", ("<Q", 1 << 62), b"abc"),
    "a bytearray of 4 EiB": binary(b"\x96", ("<Q", 1 << 62), b"abc"),
    "a frame of 4 EiB": binary(b"\x95", ("<Q", 1 << 62), b"}."),
    "a number of 2 GiB": binary(b"\x8b", ("<i", (1 << 31) - 1), b"abc"),
    "a number of less than nothing": binary(b"\x8b", ("<i", -1), b"abc"),
    "a number of many digits": b"I" + b"9" * 1_000_000 + b"\n.",
    "a memo of 4 billion": binary(b"}r", ("<I", (1 << 32) - 1), b"."),
    "an unknown place of the memo": binary(b"j", ("<I", (1 << 31) - 1), b"."),
    "nested lists": b"(l" * NESTED + b"a" * (NESTED - 1) + b".",
    "nested tuples": binary(b")", b"\x85" * NESTED, b"."),
    "nested tuples as a key": binary(b"})", b"\x85" * NESTED, b"K\x01s."),
    "nested tuples as a name": binary(b")", b"\x85" * NESTED, b"\x8c\x01a\x93."),
    "a list that holds itself": binary(b"]\x94h\0a."),
    "a dict that holds itself": binary(b"}\x94\x8c\x01ah\0s."),
    "dicts that double": binary(
        b"}\x94", *(b"}\x94(\x8c\x01ah%c\x8c\x01bh%cu" % (n, n) for n in range(40)), b"."
    ),
    "tuples that double": binary(b")\x94", *(b"h%ch%c\x86\x94" % (n, n) for n in range(60)), b"."),
    "marks without end": b"(" * 100_000,
    "no operands": b"ttttbR.",
    "nothing to return": b"\x80\x04.",
    "an array of more than its bytes": array_of(FLOATS, b"J\0\0\0\x7fJ\0\0\0\x7f\x86", b"abcd"),
    "an array of a negative side": array_of(FLOATS, b"J\xff\xff\xff\xffJ\xff\xff\xff\xff\x86", b"abcd"),
    "an empty array with a side beyond all": array_of(
        FLOATS, b"K\0\x8a\x08" + b"\xff" * 7 + b"\x7f\x86", b""
    ),
    "an array of 65 sides": array_of(FLOATS, b"(" + b"K\x01" * 65 + b"t", b"abcd"),
    "addresses as objects": array_of(OBJECTS, b"K\x01\x85", b"\x41" * 8),
    "objects that a dtype conceals": FORGED,
    "an array without its state, twice": binary(b"}\x8c\x01a", ARRAY, b"K\x01bs."),
    "a persistent id": b"\x80\x04\x8c\x01aQ.",
    "a persistent id in text": b"Pa\n.",
    "an extension code": b"\x80\x02\x82\x01.",
    "another codec": binary(b"c_codecs\nencode\n\x8c\x01a\x8c\x04zlib\x86R."),
    "state of a type": b"\x80\x02cnumpy\nndarray\n}U\x04markK\x01sb.",
    "state of a function": b"\x80\x02cnumpy.core.multiarray\n_reconstruct\n}U\x04markK\x01sb.",
    "slots of a type": b"\x80\x02ccollections\nOrderedDict\nN}U\x04markK\x01s\x86b.",
    "a set as a key": pickle.dumps({frozenset({1}): 1}),
    "compressed": gzip.compress(python(WRITES)),
    "compressed by zlib": zlib.compress(python(WRITES)),
}


@pytest.mark.parametrize("name", [*RUN, *BOMBS])
def test_malicious_pickle_is_not_executed(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(pickle, "Unpickler", None)
    path = tmp_path / "net.pdparams"
    path.write_bytes(RUN.get(name) or BOMBS[name])
    types = [dict(vars(each)) for each in (np.ndarray, np.dtype, OrderedDict)]
    tracemalloc.start()
    try:
        with pytest.raises(UserError, match=rf"^{path}: ") as caught:
            read_weights(path)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500
    assert most < 60 * 2**20, "bytes that a small file may cost"
    assert [each.name for each in tmp_path.iterdir()] == ["net.pdparams"], "its code ran"
    assert types == [dict(vars(each)) for each in (np.ndarray, np.dtype, OrderedDict)]


@pytest.mark.parametrize(
    "name", ["os.system in protocol 0", "eval", "instruction INST", "instruction OBJ", "state"]
)
def test_attacks_work_on_plain_pickle(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    pickle.loads(RUN[name])
    assert (tmp_path / MARK).exists()


def test_complete_file_is_read(tmp_path: Path) -> None:
    """What the bombs are made of is sound: the array alone is one."""
    (tmp_path / "a.pdparams").write_bytes(array_of(FLOATS, b"K\x02K\x01\x86", struct.pack("<2f", 1.5, -2)))
    np.testing.assert_array_equal(read_weights(tmp_path / "a.pdparams")["a"], [[1.5], [-2]])


def test_tensor_with_several_references_is_read(tmp_path: Path) -> None:
    weight, both = np.ones(2, np.float32), ("fc", 1)
    path = tmp_path / "a.pdopt"
    path.write_bytes(
        pickle.dumps({"a": weight, "b": weight, "c": [both, both], "d": {"lr": np.float64(0.5)}})
    )
    found = unpickle(path)
    np.testing.assert_array_equal(found["a"], weight)
    np.testing.assert_array_equal(found["b"], weight)
    assert (found["c"], found["d"]) == ([both, both], {"lr": 0.5})


# YAML


def laughs(levels: int, width: int = 10) -> str:
    lines = ["a0: &a0 {x: 1}"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * width)}]" for n in range(1, levels)]
    return "\n".join(lines)


def merges(levels: int) -> str:
    lines = ["a0: &a0 {x: 1, y: 2}"]
    lines += [f"a{n}: &a{n} {{<<: [*a{n - 1}, *a{n - 1}]}}" for n in range(1, levels)]
    return "\n".join(lines)


YAML_BOMBS = {
    "too large": ("a: " + "x" * 2**20, "larger than 1048576 bytes; is it a config?"),
    "too deep": ("[" * 100_000, "nested more than 50 levels deep"),
    "too deep in blocks": ("\n".join(" " * n + "a:" for n in range(200)), "nested more than 50 levels deep"),
    "too deep by aliases": (
        "a0: &a0 [1]\n" + "\n".join(f"a{n}: &a{n} [*a{n - 1}]" for n in range(1, 2000)),
        "nested more than 50 levels deep after expanding aliases",
    ),
    "a billion laughs": (laughs(12), "more than 100000 values after expanding aliases"),
    "a googol of laughs": (
        laughs(40, width=1000)[: 2**20],
        "more than 100000 values after expanding aliases",
    ),
    "merges that double": (merges(40), "more than 100000 values after expanding aliases"),
    "a list that holds itself": ("a: &a [*a]", "an alias inside its own anchor"),
    "a mapping that merges itself": ("a: &a {<<: *a}", "an alias inside its own anchor"),
    "Python's objects": ("a: !!python/object/apply:os.system ['touch the_code_ran']", "could not determine"),
    "Python's names": ("a: !!python/name:os.system", "could not determine a constructor"),
}


@pytest.mark.parametrize("name", YAML_BOMBS)
def test_yaml_beyond_its_limits_is_rejected(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text, message = YAML_BOMBS[name]
    path = tmp_path / "run.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_yaml(path)
    with pytest.raises(ConfigError):
        Override.parse(f"Global={{{text}}}" if name.startswith("too deep") else f"Global={text}x: [").apply(
            {}
        )
    assert not (tmp_path / MARK).exists()


def test_endless_config_is_rejected_without_reading_all() -> None:
    with pytest.raises(UserError, match="/dev/zero: can't read this config: not a regular file"):
        read_yaml(Path("/dev/zero"))


def test_override_path_of_excessive_depth_is_rejected() -> None:
    with pytest.raises(ConfigError, match="nested more than 50 levels deep"):
        Override.parse(".".join("a" * 5000) + "=1").apply({})


# What the code calls

NEVER = {"eval", "exec", "compile", "__import__", "execfile"}
MODULES = {
    "pickle",
    "_pickle",
    "cPickle",
    "dill",
    "cloudpickle",
    "joblib",
    "marshal",
    "shelve",
    "pty",
    "code",
}
ATTRIBUTES = {  # of modules, whatever they are imported as
    "os": {"system", "popen", "spawnl", "spawnv"},
    "subprocess": {"getoutput", "getstatusoutput"},
    "paddle": {"load"},
    "yaml": {"unsafe_load", "full_load", "Loader", "UnsafeLoader", "FullLoader"},
    "builtins": NEVER,
}


def forbidden(tree: ast.AST) -> list[str]:
    """Returns what a program has that it must not have."""
    found = []
    for node in ast.walk(tree):
        line = f"line {getattr(node, 'lineno', 0)}"
        if isinstance(node, ast.Import | ast.ImportFrom):
            origin = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for module in origin or [each.name for each in node.names]:
                if module.split(".")[0] in MODULES:
                    found.append(f"{line}: import of {module}")
                if isinstance(node, ast.ImportFrom):
                    taken = {each.name for each in node.names} & ATTRIBUTES.get(module, set())
                    found += [f"{line}: {module}.{name}" for name in sorted(taken)]
        elif isinstance(node, ast.Name) and node.id in NEVER:
            found.append(f"{line}: {node.id}")
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.attr in ATTRIBUTES.get(node.value.id, ()):
                found.append(f"{line}: {node.value.id}.{node.attr}")
        elif isinstance(node, ast.keyword) and node.arg in ("shell", "allow_pickle"):
            refused = isinstance(node.value, ast.Constant) and node.value.value is False
            found += [] if refused else [f"{line}: {node.arg}"]
    return found


def test_source_calls_no_function_that_executes_files() -> None:
    programs = [
        path for folder in ("ppcls", "tools", "examples") for path in (REPOSITORY / folder).rglob("*.py")
    ]
    assert len(programs) > 100
    found = {
        str(path.relative_to(REPOSITORY)): wrong
        for path in programs
        if (wrong := forbidden(ast.parse(path.read_text(encoding="utf-8"))))
    }
    assert not found


@pytest.mark.parametrize(
    "text",
    [
        "eval(x)",
        "f = exec",
        "import builtins; builtins.eval(x)",
        "import pickle",
        "from pickle import load as read",
        "from os import system as run",
        "import os; os.popen(x)",
        "import subprocess; subprocess.run(x, shell=True)",
        "subprocess.run(x, shell=x)",
        "import numpy; numpy.load(x, allow_pickle=True)",
        "import paddle; paddle.load(x)",
        "import yaml; yaml.load(x, Loader=yaml.Loader)",
        "importer = __import__",
    ],
)
def test_search_finds_unsafe_calls(text: str) -> None:
    assert forbidden(ast.parse(text))


def test_search_ignores_the_eval_method() -> None:
    assert not forbidden(
        ast.parse("model.eval(); subprocess.run([x], shell=False); json.load(x); re.compile(x)")
    )


# Paths


@pytest.fixture
def photos_and_secret(tmp_path: Path) -> Path:
    """A folder of a class with an image, beside a file that is none of its business."""
    root = tmp_path / "images"
    (root / "cat").mkdir(parents=True)
    Image.new("RGB", (8, 8)).save(root / "cat" / "1.jpg")
    Image.new("RGB", (8, 8)).save(tmp_path / "secret.jpg")
    return root


def listing(root: Path, *lines: str) -> Path:
    path = root.parent / "list.txt"
    path.write_text("".join(f"{line} 0\n" for line in lines))
    return path


@pytest.mark.parametrize(
    "path", ["/etc/passwd", "../secret.jpg", "cat/../../secret.jpg", "..", "//etc/passwd"]
)
def test_list_with_path_outside_its_root_is_rejected(photos_and_secret: Path, path: str) -> None:
    with pytest.raises(UserError, match=r"line 2: path .* leads out of image_root"):
        read_list(photos_and_secret, listing(photos_and_secret, "cat/1.jpg", path), " ", 1)


def test_links_out_of_the_root_are_rejected_unless_followed(photos_and_secret: Path) -> None:
    root, outside = photos_and_secret, photos_and_secret.parent
    (root / "cat" / "2.jpg").symlink_to(outside / "secret.jpg")
    (root / "dog").symlink_to(outside)
    named = listing(root, "cat/1.jpg", "cat/2.jpg", "dog/secret.jpg", "dog/gone.jpg", "gone/1.jpg")
    with pytest.raises(UserError) as caught:
        read_list(root, named, " ", 1)
    assert str(caught.value) == "\n".join(
        f"{named}, line {line}: {root}/{path} is a link that leads out of {root}; "
        "if you trust it, set follow_links: True"
        for line, path in ((2, "cat/2.jpg"), (3, "dog/secret.jpg"), (4, "dog/gone.jpg"))
    )
    assert len(read_list(root, named, " ", 1, follow_links=True)) == 5


def test_links_within_the_root_and_to_the_root_are_followed(photos_and_secret: Path, tmp_path: Path) -> None:
    (photos_and_secret / "cat" / "2.jpg").symlink_to("1.jpg")
    (photos_and_secret / "dog").symlink_to("cat")
    (tmp_path / "link").symlink_to(photos_and_secret)
    named = listing(photos_and_secret, "cat/2.jpg", "dog/2.jpg", "cat/1.jpg")
    for root in (photos_and_secret, tmp_path / "link"):
        assert len(read_list(root, named, " ", 1)) == 3


def test_link_out_of_a_class_folder_is_rejected_unless_followed(photos_and_secret: Path) -> None:
    (photos_and_secret / "cat" / "2.jpg").symlink_to(photos_and_secret.parent / "secret.jpg")
    with pytest.raises(
        UserError,
        match=r"cat/2\.jpg is a link that leads out of .*/images; if you trust it, set follow_links",
    ):
        read_folder(photos_and_secret, (".jpg",), 1)
    assert len(read_folder(photos_and_secret, (".jpg",), 1, follow_links=True)) == 2


def test_convert_rejects_links_out_of_the_source_unless_followed(
    photos_and_secret: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (photos_and_secret / "cat" / "2.jpg").symlink_to(photos_and_secret.parent / "secret.jpg")
    command = ["convert", "tfrecord", str(photos_and_secret), "--out", str(tmp_path / "out")]
    assert dataset_cli.main(command) == 2
    assert "is a link that leads out of" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    assert dataset_cli.main([*command, "--follow-links"]) == 0


NAMES = ["/etc/evil", "../evil", "a/../../evil", "..", "\\evil"]


def test_file_names_in_a_tar_are_never_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Members are read by their place; none is unpacked, none is opened by its name, no link is followed."""
    folder = tmp_path / "here"
    folder.mkdir()
    path = folder / "shard.tar"
    with tarfile.open(path, "w") as tar:
        for number, name in enumerate(NAMES):
            for ending, data in ((".jpg", b"image %d" % number), (".cls", b"%d" % number)):
                member = tarfile.TarInfo(name + ending)
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
        for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE):
            link = tarfile.TarInfo("link.jpg")
            link.type, link.linkname = kind, "/etc/passwd"
            tar.addfile(link)
    default_index_path(path).write_text(FORMATS["webdataset"].build_index(path) or "")
    opened: list[str] = []
    monkeypatch.setattr(
        os, "open", lambda name, *rest, _open=os.open: (opened.append(str(name)), _open(name, *rest))[1]
    )
    shard = FORMATS["webdataset"].open(path, default_index_path(path), OpenFiles())
    # Hidden files, such as `...jpg`, belong to no sample.
    assert [bytes(shard.read(n)) for n in range(len(shard.labels))] == [b"image %d" % n for n in (0, 1, 2, 4)]
    assert set(opened) <= {str(path), str(default_index_path(path))}
    assert sorted(each.name for each in tmp_path.rglob("*")) == ["here", "shard.idx", "shard.tar"]


def test_index_beyond_the_end_of_its_tar_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "shard.tar"
    path.write_bytes(bytes(1024))
    default_index_path(path).write_text("v1.2 1\njpg 512 999999999999 /etc/passwd cls 0 1 /etc/passwd\n")
    with pytest.raises(UserError, match="not the index of"):
        FORMATS["webdataset"].open(path, default_index_path(path), OpenFiles())


@pytest.mark.parametrize("name", ["/etc/passwd", "../../secret", "..", "a/b", "", ".hidden", "a\\n"])
def test_manifest_with_path_outside_its_folder_is_rejected(name: str, tmp_path: Path) -> None:
    files = {name: FileRecord(size=1, sha256="0" * 64)}
    tree = Manifest(serial=1, update=1, epoch=0, step=1, versions={}, files={}).model_dump(mode="json")
    tree["files"] = {key: record.model_dump() for key, record in files.items()}
    digest = hashlib.sha256(json.dumps(tree, sort_keys=True).encode()).hexdigest()
    (tmp_path / MANIFEST).write_text(json.dumps({**tree, "sha256": digest}))
    with pytest.raises(DamagedError, match=r"manifest\.json: damaged: files\..*should match pattern"):
        verify(tmp_path)


# Images

SIDE = 20_000
WEBP_SIDE = 16_383  # the format's largest


def saved(format: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    pixels = np.random.default_rng(0).integers(0, 255, (24, 24, 3), np.uint8)
    Image.fromarray(pixels).save(buffer, format, **options)
    return buffer.getvalue()


def put(data: bytes, at: int, layout: str, *values: int) -> bytes:
    packed = struct.pack(layout, *values)
    return data[:at] + packed + data[at + len(packed) :]


def huge_png() -> bytes:
    data = put(saved("PNG"), 16, ">II", SIDE, SIDE)
    return put(data, 29, ">I", zlib.crc32(data[12:29]))


def huge_jpeg() -> bytes:
    data = saved("JPEG")
    return put(data, data.index(b"\xff\xc0") + 5, ">HH", SIDE, SIDE)


def huge_bmp() -> bytes:
    return put(saved("BMP"), 18, "<ii", SIDE, SIDE)


def huge_jpeg2000() -> bytes:
    data = saved("JPEG2000")
    data = put(data, data.index(b"ihdr") + 4, ">II", SIDE, SIDE)
    at = data.index(b"\xff\x4f\xff\x51")
    return put(put(data, at + 8, ">II", SIDE, SIDE), at + 24, ">II", SIDE, SIDE)


def bare_jpeg2000() -> bytes:
    data = huge_jpeg2000()
    return data[data.index(b"\xff\x4f\xff\x51") :]


def huge_webp() -> bytes:
    data = saved("WEBP", lossless=True)
    at = data.index(b"VP8L") + 9
    return put(data, at, "<I", (WEBP_SIDE - 1) | (WEBP_SIDE - 1) << 14)


def tiff(*sides: int, compression: int = 1) -> bytes:
    """A TIFF whose width and height are told once or several times."""
    tags = [(256, 4, side) for side in sides] + [(257, 4, side) for side in sides]
    tags += [
        (258, 3, 8),
        (259, 3, compression),
        (262, 3, 2),
        (273, 4, 8),
        (277, 3, 3),
        (278, 4, sides[0]),
        (279, 4, 1728),
    ]
    entries = b"".join(
        struct.pack("<HHI", tag, kind, 1) + struct.pack("<I", value) for tag, kind, value in tags
    )
    return (
        b"II*\0"
        + struct.pack("<I", 8 + 1728)
        + bytes(1728)
        + struct.pack("<H", len(tags))
        + entries
        + bytes(4)
    )


def huge_npy() -> bytes:
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        buffer, {"descr": "|u1", "fortran_order": False, "shape": (SIDE, SIDE, 3)}
    )
    return buffer.getvalue() + bytes(1000)


HUGE: dict[str, Callable[[], bytes]] = {
    "png": huge_png,
    "jpeg": huge_jpeg,
    "bmp": huge_bmp,
    "ppm": lambda: b"P6 20000 20000 255\n" + bytes(1000),
    "jpeg 2000": huge_jpeg2000,
    "jpeg 2000 without its box": bare_jpeg2000,
    "webp": huge_webp,
    "tiff": lambda: tiff(SIDE),
    "deflated tiff": lambda: tiff(SIDE, compression=8),
    "npy": huge_npy,
}
LOADERS: dict[str, Callable[..., Any]] = {
    "dali": lambda index, order, ops: DaliLoader(index, order, ops, DaliSettings(threads=1)),
    "paddle": lambda index, order, ops: PaddleLoader(index, order, ops),
}


def load(backend: str, data: bytes, folder: Path) -> None:
    """Loads one image."""
    (folder / "image").write_bytes(data)
    index = FileIndex(folder, np.array([b"image"]), np.zeros(1, np.int64), folder)
    decoder = DecodeNumpy(channels=3) if data.startswith(b"\x93NUMPY") else DecodeImage()
    ops = plan_chain([decoder, ResizeImage(size=8), NormalizeImage()], "CHW")
    next(iter(LOADERS[backend](index, Order(SequentialSampler(1), batch_size=1), ops)))


@pytest.fixture
def no_decoder(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails where a decoder of ours is reached; DALI's are in a pipeline that gets only what is admitted."""

    def fail(*_: Any) -> None:
        raise AssertionError("decoded")

    monkeypatch.setattr(cv2, "imdecode", fail)


@pytest.mark.usefixtures("no_decoder")
@pytest.mark.parametrize("backend", LOADERS)
@pytest.mark.parametrize("name", HUGE)
def test_huge_image_is_rejected_by_its_header(name: str, backend: str, tmp_path: Path) -> None:
    side = WEBP_SIDE if name == "webp" else SIDE
    with pytest.raises(
        BadImageError, match=f"{side}x{side} pixels are more than Decode.*'s max_pixels, 100000000"
    ):
        load(backend, HUGE[name](), tmp_path)


def two_headers(first: int, second: int) -> bytes:
    """A PNG that says its size twice."""
    data = saved("PNG")
    heads = [put(data[8:33], 8, ">II", side, side) for side in (first, second)]
    return data[:8] + b"".join(put(head, 21, ">I", zlib.crc32(head[4:21])) for head in heads) + data[33:]


def box_and_stream(box: int, stream: int) -> bytes:
    """A JPEG 2000 file whose box and codestream differ."""
    data = saved("JPEG2000")
    data = put(data, data.index(b"ihdr") + 4, ">II", box, box)
    at = data.index(b"\xff\x4f\xff\x51")
    return put(put(data, at + 8, ">II", stream, stream), at + 24, ">II", stream, stream)


TWO_SIZES = {
    "png, first huge": two_headers(SIDE, 24),
    "png, last huge": two_headers(24, SIDE),
    "jpeg 2000, stream huge": box_and_stream(24, SIDE),
    "jpeg 2000, box huge": box_and_stream(SIDE, 24),
    "tiff, first huge": tiff(SIDE, 24),
    "tiff, last huge": tiff(24, SIDE),
}


@pytest.mark.parametrize("backend", LOADERS)
@pytest.mark.parametrize("name", TWO_SIZES)
def test_image_with_two_sizes_is_never_decoded_to_a_huge_one(
    name: str, backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded: list[Any] = []
    decode = cv2.imdecode
    monkeypatch.setattr(cv2, "imdecode", lambda *given: (decoded.append(decode(*given)), decoded[-1])[1])
    with contextlib.suppress(BadImageError):
        load(backend, TWO_SIZES[name], tmp_path)
    assert all(each is None or each.size <= 24 * 24 * 3 for each in decoded)
