"""The cache of decoded images: equal samples, one decoding per machine, changed files, kills, free space."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from loader_conformance import Arrays, assert_equal, take
from runs import GUARD

from ppcls.config.base.errors import ConfigError
from ppcls.data.bad_images.lists import BadImageError
from ppcls.data.build import build_loader
from ppcls.data.image_cache import cached_index, decoding, place
from ppcls.data.image_cache.cached_index import CachedIndex, ImageCache
from ppcls.data.image_cache.decoding import Decoded, decode_by_numpy
from ppcls.data.image_cache.store import CachedImage, ImageStore
from ppcls.data.images.header import DecodeError
from ppcls.data.index.files import FileIndex
from ppcls.data.index.protocol import describe_index
from ppcls.data.loaders.batch import Loader
from ppcls.data.transforms.specs import DecodeImage, plan_chain
from ppcls.errors import UserError
from ppcls.recipe.load import load_config
from ppcls.runtime.start import Runtime

YAML = """
Global: {{use_dali: {use_dali}}}
Arch: {{name: ResNet18, class_num: 99, input_image_channel: {channels}}}
Optimizer: {{name: SGD, lr: {{name: Constant, learning_rate: 0.1}}}}
Metric: {{Eval: [TopkAcc: {{topk: 1}}]}}
DataLoader:
  Train:
    dataset:
      name: ImageNetDataset
      image_root: {folder}
      cls_label_path: {folder}/list.txt
      on_error: {on_error}
      transform_ops: [{chain}]
    sampler: {{batch_size: 5, drop_last: False, shuffle: True}}
    loader: {{num_workers: 0, dali: {{num_threads: 2}}}}
    cache: {cache}
"""
CHAINS = {
    "crop": "DecodeImage, RandCropImage: {size: 24}, RandFlipImage, NormalizeImage",
    "pil crop": "DecodeImage, RandCropImage: {size: 24, backend: pil, interpolation: random}, NormalizeImage",
    "bgr": "DecodeImage: {to_rgb: False}, RandCropImage: {size: 24}, RandGrayscale, NormalizeImage",
    "grey": "DecodeImage: {channels: 1, dtype: uint16}, ResizeImage: {size: 24}, NormalizeImage: "
    "{scale: 1.0/65535.0, mean: [0.5], std: [0.2]}",
    "eval": "DecodeImage, ResizeImage: {resize_short: 30}, CropImage: {size: 24}, NormalizeImage",
    "pil eval": "DecodeImage, ResizeImage: {size: 30, backend: pil}, CropImage: {size: 24}, NormalizeImage",
}
CHAINS["bgr"] = CHAINS["bgr"].replace("RandGrayscale, ", "")
GREY = ("grey", "greypng")
CHAIN = plan_chain([DecodeImage()], "HWC")
CODE = """
import sys
from pathlib import Path
import numpy as np
from ppcls.data.image_cache import place
from ppcls.data.image_cache.cached_index import ImageCache
from ppcls.data.images.header import DecodeError
from ppcls.data.index.files import FileIndex
from ppcls.data.transforms.specs import DecodeImage, plan_chain

place.SHARED_MEMORY = Path(sys.argv[1])
root = Path(sys.argv[2])
paths = np.array(sorted(path.name.encode() for path in root.glob("*.jpg")))
index = FileIndex(root, paths, np.zeros(len(paths), np.int64), root)
cache = ImageCache("memory", "DataLoader.Train.cache", index, plan_chain([DecodeImage()], "HWC"), "a")

def decode(chunks):
    for positions in chunks:
        print("decoded", len(positions), flush=True)
        yield [np.full((2, 3, 3), at, np.uint8) for at in positions]

cached = cache.open(decode, lambda: None)
print("open", sum(cached.read(at)[-1] for at in range(len(paths))), flush=True)
sys.stdin.readline()
"""


@pytest.fixture(autouse=True)
def _places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PPCLS_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(place, "SHARED_MEMORY", tmp_path / "shm")
    (tmp_path / "shm").mkdir()
    monkeypatch.setattr(cached_index, "_CHUNK", 16)


@pytest.fixture
def folder(photos: dict[str, Path], tmp_path: Path) -> Path:
    """Photographs of all formats."""
    root = tmp_path / "images"
    root.mkdir()
    for name, path in photos.items():
        if name.endswith("odd") or name.startswith(("jpeg420", *GREY)):
            shutil.copy(path, root)
    write_list(root)
    return root


def write_list(root: Path, kinds: tuple[str, ...] = ()) -> None:
    names = sorted(path.name for path in root.iterdir() if path.suffix != ".txt")
    names = [name for name in names if not kinds or name.startswith(kinds)]
    (root / "list.txt").write_text("".join(f"{name} {at}\n" for at, name in enumerate(names)))


def loader_of(folder: Path, cache: str, **values: Any) -> Any:
    values = {"use_dali": False, "on_error": "raise", "chain": CHAINS["crop"], "channels": 3, **values}
    file = folder.parent / "run.yaml"
    file.write_text(YAML.format(folder=folder, cache=cache, **values))
    config = load_config(file, [f"Global.output_dir={folder.parent / 'run'}"])
    split = config.DataLoader.Train
    assert split is not None
    return build_loader(split, "Train", Runtime(), config.Global, config.Arch, 99)


def batches(folder: Path, cache: str, **values: Any) -> list[Arrays]:
    loader: Loader = loader_of(folder, cache, **values)
    try:
        return take(loader, epochs=2)
    finally:
        loader.release()


@pytest.mark.parametrize(
    ("name", "use_dali"),
    [(name, use_dali) for name in CHAINS for use_dali in (True, False) if use_dali or "pil" not in name],
)
def test_samples_have_the_same_bits(
    name: str,
    use_dali: bool,
    folder: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cached_index, "_CHUNK", 3)
    monkeypatch.setattr(decoding, "_PIPELINE_CHUNKS", 2)
    if name == "grey":
        write_list(folder, GREY)
    options = {"use_dali": use_dali, "chain": CHAINS[name], "channels": 1 if name == "grey" else 3}
    expected = batches(folder, "null", **options)
    for cache in ("disk", "memory", "memory"):
        assert_equal(batches(folder, cache, **options), expected)
    assert capfd.readouterr().err.count("images are decoded") == 2


def test_the_loader_describes_the_files(folder: Path) -> None:
    cached, plain = (loader_of(folder, cache) for cache in ("disk", "null"))
    assert isinstance(cached.index, FileIndex)
    assert describe_index(cached.index) == describe_index(plain.index)
    assert cached.index.read(3) == plain.index.read(3)


@pytest.mark.parametrize("use_dali", [True, False], ids=["dali", "paddle"])
def test_bad_images_are_reported_and_skipped_as_without_a_cache(
    use_dali: bool, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for name, content in {
        "0.jpg": b"",
        "1.jpg": b"no image",
        "m.jpg": b"\xff\xd8\xff",
        "z.jpg": None,
    }.items():
        (folder / name).write_bytes(content or b"x")
    write_list(folder)
    (folder / "z.jpg").unlink()
    (folder / "0.jpg").chmod(0o644)
    results, errors, messages = [], [], []
    for cache in ("null", "disk", "disk"):
        shutil.rmtree(folder.parent / "run", ignore_errors=True)
        results.append(batches(folder, cache, use_dali=use_dali, on_error="skip"))
        errors.append(sorted(re.findall("bad image, skipped: .*", capfd.readouterr().err)))
        with pytest.raises(BadImageError) as error:
            batches(folder, cache, use_dali=use_dali)
        messages.append(str(error.value))
    assert len(errors[0]) == 4
    assert errors[0] == errors[1] == errors[2]
    assert messages[0] == messages[1] == messages[2]
    for found in results[1:]:
        assert_equal(found, results[0])


@pytest.fixture
def index(tmp_path: Path) -> FileIndex:
    """Forty files. The tests decode them to pixels that name their positions."""
    root = tmp_path / "small"
    root.mkdir()
    for at in range(40):
        (root / f"{at:02d}.jpg").write_bytes(b"x" * (at + 1))
    paths = np.array([b"%02d.jpg" % at for at in range(40)])
    return FileIndex(root, paths, np.zeros(40, np.int64), root)


def pixels_of(position: int) -> np.ndarray:
    return np.full((1 + position % 3, 4, 3), position, np.uint8)


class Decoder:
    """Counts the decoded positions."""

    def __init__(self) -> None:
        self.decoded: list[int] = []

    def __call__(self, chunks: Sequence[list[int]]) -> Decoded:
        for positions in chunks:
            yield self.decode(positions)

    def decode(self, positions: list[int]) -> list[Any]:
        self.decoded += positions
        return [pixels_of(at) for at in positions]


def stored_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("pixels-*"))


def open_cache(index: FileIndex, decode: Any, kind: Any = "disk") -> CachedIndex:
    return ImageCache(kind, "DataLoader.Train.cache", index, CHAIN, "test").open(decode, lambda: None)


def check(cached: CachedIndex) -> None:
    for at in range(len(cached)):
        values = np.frombuffer(cached.read(at), np.uint8, offset=128)
        assert values.tolist() == pixels_of(at).reshape(-1).tolist()


def test_only_changed_files_are_decoded_again(index: FileIndex) -> None:
    first = Decoder()
    check(open_cache(index, first))
    assert first.decoded == [*range(40)]
    for change in ("size", "time"):
        path = Path(index.name(7))
        status = path.stat()
        if change == "size":
            path.write_bytes(b"longer than before")
            os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
        else:
            os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
        again = Decoder()
        check(open_cache(index, again))
        assert again.decoded == [7]
    other = FileIndex(index.root, index.paths[:39], index.labels[:39], index.source)
    assert len(open_cache(other, Decoder())) == 39


def test_a_path_that_is_listed_several_times_is_decoded_once(index: FileIndex) -> None:
    positions = [5, 9, 5, 0, 9, 5, 30]
    repeated = FileIndex(index.root, index.paths[positions], index.labels[positions], index.source)
    first = Decoder()
    cached = open_cache(repeated, first)
    assert first.decoded == [0, 1, 3, 6]
    found = [np.frombuffer(cached.read(at), np.uint8, offset=128)[0] for at in range(len(positions))]
    assert found == [0, 1, 0, 3, 1, 0, 6]
    Path(index.name(9)).write_bytes(b"changed")
    again = Decoder()
    open_cache(repeated, again)
    assert again.decoded == [1]


def test_a_file_that_changes_after_it_was_decoded_ahead_is_decoded_at_the_next_start(
    index: FileIndex,
) -> None:
    class Ahead(Decoder):
        def __call__(self, chunks: Sequence[list[int]]) -> Decoded:
            decoded = [*super().__call__(chunks)]
            Path(index.name(39)).write_bytes(b"changed")
            yield from decoded

    open_cache(index, Ahead())
    again = Decoder()
    check(open_cache(index, again))
    assert again.decoded == [39]


def test_images_are_decoded_while_others_are_stored(folder: Path) -> None:
    started = threading.Event()

    class Slow(FileIndex):
        def read(self, position: int) -> bytes:
            if position == 1:
                started.set()
            return super().read(position)

    names = np.array([b"png-odd.png"] * 2)
    with closing(
        decode_by_numpy(Slow(folder, names, np.zeros(2, np.int64), folder), CHAIN, 2)([[0], [1]])
    ) as chunks:
        next(chunks)
        assert started.wait(GUARD)


def test_several_threads_store_the_images_of_a_chunk(
    index: FileIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    together = threading.Barrier(8)
    write_pixels = ImageStore._append_to

    def wait_for_all(*args: Any) -> Any:
        together.wait(GUARD)
        return write_pixels(*args)

    monkeypatch.setattr(ImageStore, "_append_to", wait_for_all)
    check(open_cache(index, Decoder()))


def test_chunks_of_large_images_have_fewer_of_them(index: FileIndex, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ImageCache, "_estimate", lambda *_: 40 * 1000)
    monkeypatch.setattr(cached_index, "_CHUNK_BYTES", 5000)
    sizes: list[int] = []

    class Counting(Decoder):
        def decode(self, positions: list[int]) -> list[Any]:
            sizes.append(len(positions))
            return super().decode(positions)

    check(open_cache(index, Counting()))
    assert sizes == [5] * 8


@pytest.mark.parametrize("kind", ["disk", "memory"])
def test_a_file_that_becomes_bad_is_no_longer_used(index: FileIndex, kind: Any) -> None:
    """Nor by a process that waits meanwhile and does not compare the files itself."""

    class Rejecting(Decoder):
        def decode(self, positions: list[int]) -> list[Any]:
            pixels = super().decode(positions)
            return [None if at in (3, 5) else image for at, image in zip(positions, pixels, strict=True)]

    check(open_cache(index, Decoder(), kind))
    (index.root / "03.jpg").write_bytes(b"")
    (index.root / "05.jpg").unlink()
    (index.root / "06.jpg").touch()
    for decoded in ([3, 5, 6], [3, 5]):  # bad files are tried at each start
        again = Rejecting()
        cached = open_cache(index, again, kind)
        assert again.decoded == decoded
        (journal,) = (index.root.parent / ("home" if kind == "disk" else "shm")).rglob("journal")
        waiting = CachedIndex(index, CHAIN, ImageStore(journal.parent, 40), np.arange(40))
        for each in (cached, waiting):
            for bad in (3, 5):
                with pytest.raises((DecodeError, FileNotFoundError)):
                    each.read(bad)
    (index.root / "03.jpg").write_bytes(b"good again")
    (index.root / "05.jpg").write_bytes(b"good again")
    check(open_cache(index, Decoder(), kind))


@pytest.mark.parametrize(
    "used", [pytest.param(False, marks=pytest.mark.slow), True], ids=["alone", "beside another run"]
)
def test_replaced_images_are_removed_when_no_other_run_uses_them(
    index: FileIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, used: bool
) -> None:
    def start() -> subprocess.Popen[str]:
        command = [sys.executable, "-c", CODE.replace('"memory"', '"disk"'), str(tmp_path), str(index.root)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        while not process.stdout.readline().startswith("open"):
            pass
        return process

    sizes = []
    for _ in range(3):
        for path in index.root.iterdir():
            status = path.stat()
            os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
        with start() as process:
            sizes.append(stored_bytes(tmp_path / "home"))
            other = start() if used and len(sizes) == 1 else None
            process.communicate("end\n", timeout=GUARD)
        assert process.returncode == 0
        if other is not None:
            beside = other
    growth = [size / sizes[0] for size in sizes]
    assert growth == ([1, 2, 3] if used else [1, 1, 1])
    if used:
        beside.communicate("end\n", timeout=GUARD)
        assert beside.returncode == 0


def test_processes_that_start_together_decode_once(index: FileIndex) -> None:
    ready = threading.Barrier(4)
    waits: list[int] = []

    class Slow(Decoder):
        def decode(self, positions: list[int]) -> list[Any]:
            while not waits:  # until another one waits
                pass
            return super().decode(positions)

    decoders = [Slow() for _ in range(4)]

    def start(decoder: Decoder) -> None:
        cache = ImageCache("disk", "key", index, CHAIN, "test")
        ready.wait()
        check(cache.open(decoder, lambda: waits.append(1)))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(start, decoders))
    assert sorted(len(decoder.decoded) for decoder in decoders) == [0, 0, 0, 40]


def test_an_interrupted_decoding_continues(index: FileIndex) -> None:
    class Failing(Decoder):
        def decode(self, positions: list[int]) -> list[Any]:
            if len(self.decoded) == 32:
                raise KeyboardInterrupt
            return super().decode(positions)

    with pytest.raises(KeyboardInterrupt):
        open_cache(index, Failing())
    rest = Decoder()
    check(open_cache(index, rest))
    assert rest.decoded == [*range(32, 40)]


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_damaged_files_never_give_other_pixels(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """The state after a kill or a power failure: files have any earlier size, or zeros at their end."""
    root = tmp_path_factory.mktemp("store")
    store = ImageStore(root, 12)
    for begin in (0, 4, 8):
        store.append([CachedImage(at, pixels_of(at), (at, 1)) for at in range(begin, begin + 4)])
    size = (root / "journal").stat().st_size
    end = data.draw(st.integers(0, size))
    os.truncate(root / "journal", end)
    if data.draw(st.booleans()):
        os.truncate(root / "journal", size)  # zeros
    elif data.draw(st.booleans()):
        pixels = root / f"pixels-{data.draw(st.integers(0, 3))}"
        os.truncate(pixels, data.draw(st.integers(0, pixels.stat().st_size)))
    again = ImageStore(root, 12)
    missing = np.flatnonzero((again.states < 0).any(axis=1)).tolist()
    again.map()
    for at in range(12):
        stored = again.read(at)
        assert (stored is None) == (at in missing)
        assert stored is None or stored[128:].tolist() == pixels_of(at).reshape(-1).tolist()
    again.append([CachedImage(at, pixels_of(at), (at, 1)) for at in missing])
    last = ImageStore(root, 12)
    last.map()
    for at in range(12):
        stored = last.read(at)
        assert stored is not None
        assert stored[128:].tolist() == pixels_of(at).reshape(-1).tolist()


@pytest.mark.parametrize(
    ("kind", "fix"), [("memory", "set it to disk"), ("disk", "set PPCLS_HOME to a larger")]
)
def test_missing_space_is_an_error_before_images_are_decoded(
    kind: Any, fix: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cached_index, "free_bytes", lambda *_: 1000)
    with pytest.raises(
        UserError, match=rf"^DataLoader\.Train\.cache: can't store 20 .*: they need .*; {fix}"
    ):
        loader_of(folder, kind)


def test_the_estimated_size_is_that_of_the_files(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needed = 0

    def keep(cache: ImageCache, need: int, _: int) -> None:
        nonlocal needed
        needed = need

    monkeypatch.setattr(ImageCache, "_check_room", keep)
    for chain in ("crop", "eval"):
        shutil.rmtree(folder.parent / "home", ignore_errors=True)
        loader_of(folder, "disk", chain=CHAINS[chain])
        assert needed == stored_bytes(folder.parent / "home")


@pytest.mark.parametrize("name", ["use.lock", "fill.lock", "journal", "pixels-0", "pixels-7"])
def test_a_folder_that_cannot_be_used_is_an_error(index: FileIndex, tmp_path: Path, name: str) -> None:
    check(open_cache(index, Decoder()))
    (path,) = (tmp_path / "home").rglob(name)
    path.unlink()
    path.mkdir()
    with pytest.raises(
        UserError, match=r"^DataLoader\.Train\.cache: can't use .*: Is a directory; set PPCLS_"
    ):
        open_cache(index, Decoder())


def test_a_full_disk_is_an_error_and_keeps_what_is_stored(
    index: FileIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    append = ImageStore.append

    def fail(store: ImageStore, images: list[CachedImage]) -> None:
        if images[0].position:
            raise OSError(28, "No space left on device")
        append(store, images)

    with monkeypatch.context() as patch:
        patch.setattr(ImageStore, "append", fail)
        with pytest.raises(UserError, match=r"can't store 24 decoded images in .*: No space left on device"):
            open_cache(index, Decoder())
    rest = Decoder()
    check(open_cache(index, rest))
    assert rest.decoded == [*range(16, 40)]


def test_shared_memory_survives_kills_and_is_freed_by_the_last_process(
    index: FileIndex, tmp_path: Path
) -> None:
    def start() -> subprocess.Popen[str]:
        command = [sys.executable, "-c", CODE, str(tmp_path / "shm"), str(index.root)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        lines.append(process.stdout.readline())
        if lines[-1].startswith("decoded"):
            lines.append(process.stdout.readline())
        return process

    def stored() -> list[Path]:
        return [*(tmp_path / "shm").rglob("journal")]

    lines: list[str] = []
    killed = start()
    assert lines == ["decoded 40\n", f"open {sum(range(40))}\n"]
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    assert len(stored()) == 1
    lines.clear()
    first, last = start(), start()
    assert lines == [f"open {sum(range(40))}\n"] * 2
    for process, left in ((first, 1), (last, 0)):
        process.communicate("end\n", timeout=GUARD)
        assert process.returncode == 0
        assert len(stored()) == left


def test_caches_of_killed_runs_make_room(index: FileIndex, monkeypatch: pytest.MonkeyPatch) -> None:
    left, used = (place.caches_folder("memory") / name for name in ("left", "used"))
    for folder in (left, used):
        folder.mkdir(parents=True)
    with (used / "use.lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        monkeypatch.setattr(cached_index, "free_bytes", lambda *_: 1000 if left.exists() else 1 << 30)
        check(open_cache(index, Decoder(), "memory"))
    assert not left.exists()
    assert used.exists()


def test_what_cannot_be_cached_is_an_error(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"DataLoader\.Train\.cache: expected null: DecodeNumpy decodes no"):
        loader_of(folder, "disk", chain="DecodeNumpy, RandCropImage: {size: 24}, NormalizeImage")
    with pytest.raises(ConfigError, match=r"DataLoader\.Train\.cache: "):
        loader_of(folder, "ram")


def test_a_folder_of_another_user_is_rejected(index: FileIndex, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = place.caches_folder("memory")
    folder.symlink_to(index.root)
    with pytest.raises(UserError, match="belongs to another user"):
        open_cache(index, Decoder(), "memory")


def test_numpy_decoder_skips_bad_images(folder: Path) -> None:
    (folder / "0.jpg").write_bytes(b"")
    names = np.array([b"0.jpg", b"png-odd.png"])
    decode = decode_by_numpy(FileIndex(folder, names, np.zeros(2, np.int64), folder), CHAIN, 2)
    ((bad, good),) = decode([[0, 1]])
    assert bad is None
    assert good is not None
    assert good.shape == (145, 217, 3)
