"""TIFF files of 16x16 pixels whose strip or tile contains 200 million bytes, in each compression."""

from __future__ import annotations

import gc
import io
import re
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import imagecodecs
import numpy as np
import psutil
import pytest
import tifffile
from loader_conformance import FAST, MAKERS
from paths import SUPPORT
from PIL import Image
from running import running
from runs import GUARD
from small_classifier import config_tree, write_config, write_image, write_names, write_weights

from ppcls.data.bad_images.quarantine import Quarantine
from ppcls.data.index.files import FileIndex
from ppcls.data.sampling.epoch_samplers import SequentialSampler
from ppcls.data.sampling.order import Order
from ppcls.data.transforms.specs import DecodeImage, NormalizeImage, ResizeImage, plan_chain

pytestmark = [pytest.mark.hostile, pytest.mark.slow]

SIZE = 200_000_000  # bytes of a strip or tile without compression
MEMORY = 48  # MiB that are left for an image
PIXELS = np.random.default_rng(0).integers(0, 256, (16, 16, 3), np.uint8)
KINDS = ("none", "lzw", "zlib", "zstd", "packbits", "jpeg", "progressive jpeg", "ycbcr jpeg")
COMPRESSIONS = {"none": 1, "lzw": 5, "zlib": 8, "zstd": 50_000, "packbits": 32_773}


def compress(kind: str) -> bytes:
    """Returns a strip or tile that contains `SIZE` zeros, or 60 million pixels for JPEG."""
    if kind == "none":
        return bytes(20_000_000)
    if kind == "packbits":
        return b"\x81\0" * (SIZE // 128)
    if kind == "zlib":
        packer = zlib.compressobj(9)
        return b"".join(packer.compress(bytes(1_000_000)) for _ in range(SIZE // 1_000_000)) + packer.flush()
    if kind in ("lzw", "zstd"):
        encode = {"lzw": imagecodecs.lzw_encode, "zstd": imagecodecs.zstd_encode}[kind]
        return bytes(encode(np.zeros(SIZE, np.uint8)))
    file = io.BytesIO()
    Image.new("RGB", (10_000, 6_000)).save(file, "JPEG", progressive=kind.startswith("progressive"))
    return file.getvalue()


def bomb(kind: str, tile: bool) -> bytes:
    """Returns a TIFF file with another strip or tile at its end."""
    file = io.BytesIO()
    jpeg = "jpeg" in kind
    photometric = "ycbcr" if kind.startswith("ycbcr") else "rgb"
    shape = (16, 16) if tile else None
    compression = "jpeg" if jpeg else None
    tifffile.imwrite(file, PIXELS, compression=compression, tile=shape, photometric=photometric)
    encoded = bytearray(file.getvalue())
    large = compress(kind)
    with tifffile.TiffFile(io.BytesIO(encoded)) as pages:
        tags = pages.pages[0].tags
        for tag, value in ((324 if tile else 273, len(encoded)), (325 if tile else 279, len(large))):
            assert tags[tag].count == 1
            struct.pack_into("<HI", encoded, tags[tag].offset + 2, 4, 1)
            struct.pack_into("<I", encoded, tags[tag].offset + 8, value)
        if not jpeg:
            struct.pack_into("<H", encoded, tags[259].offset + 8, COMPRESSIONS[kind])
    return bytes(encoded) + large


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A classifier, usual images, and the same images with bombs."""
    folder = tmp_path_factory.mktemp("bombs")
    for data in ("usual", "large"):
        for seed in range(4):
            write_image(folder / data / "a" / f"{seed}.png", seed)
    for compression in COMPRESSIONS:  # so that the codecs are loaded
        tifffile.imwrite(
            folder / "usual" / "a" / f"{compression}.tif", PIXELS, compression=COMPRESSIONS[compression]
        )
    for kind in KINDS:
        for tile in (False, True):
            name = f"{kind} {'tile' if tile else 'strip'}.tif"
            (folder / "large" / "a" / name).write_bytes(bomb(kind, tile))
    tree = config_tree(write_weights(folder / "model.safetensors"), write_names(folder / "names.txt"))
    write_config(folder / "config.yaml", tree)
    return folder


def test_infer_needs_no_memory_for_them(folder: Path, tmp_path: Path) -> None:
    command = f"infer -c {folder / 'config.yaml'} @ -o Global.use_dali=False"
    data = [str(folder / "usual"), str(folder / "large")]
    words = [sys.executable, str(SUPPORT / "starved_commands.py"), *data, str(MEMORY), command]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=GUARD, check=False)
    text = done.stdout + done.stderr
    assert re.search("^CODES 0 [03]$", done.stdout, re.MULTILINE), text
    assert "Traceback" not in text
    lines = {
        Path(line.partition(": ")[0]).name: line for line in done.stdout.splitlines() if "/large/" in line
    }
    assert lines.keys() == {path.name for path in (folder / "large" / "a").iterdir()}
    for name, line in lines.items():
        assert "memory" not in line, line
        assert " %" in line if name.endswith(".png") else " %" in line or "error: " in line, line


@pytest.mark.parametrize("kind", FAST)
def test_loaders_need_no_memory_for_them(kind: str, folder: Path, tmp_path: Path) -> None:
    names = sorted(path.name.encode() for path in (folder / "large" / "a").iterdir())
    index = FileIndex(folder / "large" / "a", np.array(names), np.arange(len(names)), folder)
    ops = plan_chain([DecodeImage(), ResizeImage(size=8), NormalizeImage()], "CHW")
    quarantine = Quarantine(index, tmp_path / "bad_images.txt")
    order = Order(SequentialSampler(len(names)), batch_size=4)
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before = psutil.Process().memory_info().rss
    loader = MAKERS[kind](index, order, ops, quarantine=quarantine)  # type: ignore[call-arg]
    labels = [label for batch in loader for label in batch.label.numpy()[: batch.valid].tolist()]
    loader.release()
    (peak,) = re.findall(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())
    assert {number for number, name in enumerate(names) if name.endswith(b".png")} <= set(labels)
    assert int(peak) * 1024 - before < SIZE


def test_server_answers_at_once_and_needs_no_memory(folder: Path, tmp_path: Path) -> None:
    with running(tmp_path, "-c", folder / "config.yaml") as server, server.client() as client:
        process = psutil.Process(server.process.pid)
        usual = (folder / "usual" / "a" / "0.png").read_bytes()
        headers = {"Content-Type": "image/tiff"}
        assert client.post("/predict", content=usual, headers=headers).status_code == 200
        before = process.memory_info().rss
        for path in sorted((folder / "large" / "a").glob("*.tif")):
            answer = client.post("/predict", content=path.read_bytes(), headers=headers)
            assert answer.status_code in (200, 422), (path, answer.text)
            assert "memory" not in answer.text
        (peak,) = re.findall(r"VmHWM:\s+(\d+)", Path(f"/proc/{process.pid}/status").read_text())
        assert int(peak) * 1024 - before < SIZE
        assert client.get("/ready").status_code == 200
