"""Decoders that really run out of memory: the image is a bad image, and its name is reported."""

from __future__ import annotations

import io
import re
import resource
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import httpx
import imagecodecs
import numpy as np
import psutil
import pytest
import tifffile
from paths import SUPPORT
from PIL import Image
from running import running
from runs import GUARD
from small_classifier import config_tree, write_config, write_image, write_names, write_weights

pytestmark = [pytest.mark.hostile, pytest.mark.slow]

SIDE = 5000  # pixels: 75 MB as RGB
MEMORY = 48  # MiB that are left for an image
# By OpenCV: JPEG, PNG and BMP. By Pillow: CMYK and JPEG 2000. By tifffile and imagecodecs: TIFF.
KINDS = ("JPEG", "PNG", "BMP", "CMYK", "JPEG2000", "none", "lzw", "zlib", "zstd", "packbits", "jpeg", "tiles")


def encode(kind: str, side: int = SIDE) -> bytes:
    pixels = np.zeros((side, side, 3), np.uint8)
    file = io.BytesIO()
    if kind == "CMYK":
        Image.new("CMYK", (side, side)).save(file, "JPEG")
    elif kind == "JPEG2000":
        return bytes(imagecodecs.jpeg2k_encode(pixels, codecformat="jp2", level=60))
    elif kind in ("JPEG", "PNG", "BMP"):
        image = Image.new("P", (side, side)) if kind == "BMP" else Image.fromarray(pixels)
        image.save(file, kind, compress_level=1)
    elif kind == "tiles":
        tifffile.imwrite(file, pixels, compression="zlib", tile=(1024, 1024), photometric="rgb")
    else:
        tifffile.imwrite(
            file, pixels, compression=None if kind == "none" else kind, rowsperstrip=64, photometric="rgb"
        )
    return file.getvalue()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A classifier, usual images, and the same images with large ones."""
    folder = tmp_path_factory.mktemp("memory")
    for data in ("usual", "large"):
        for label in ("a", "b"):
            for seed in range(4):
                write_image(folder / data / label / f"{seed}.png", seed)
    for kind in KINDS:
        (folder / "large" / "a" / f"{kind}.image.tif").write_bytes(encode(kind))
    tree = config_tree(write_weights(folder / "model.safetensors"), write_names(folder / "names.txt"))
    write_config(folder / "config.yaml", tree)
    return folder


# Each command, and its exit code with images for which there is no memory
COMMANDS = {
    "check": ("dataset check @", 2),
    "stats": ("dataset stats @ --out stats%", 0),
    "prediction": ("infer -c config.yaml @ -o Global.use_dali=False", 3),
    "training": (
        "train @ --output run% --model MobileNetV1_x0_25 --epochs 1 --image-size 32 --batch-size 4 "
        "--device cpu --on-error skip --val-split 0.2 -o Arch.pretrained=False Global.use_dali=False "
        "DataLoader.Train.loader.num_workers=0 DataLoader.Eval.loader.num_workers=0",
        0,
    ),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_commands_report_each_image_by_name(name: str, folder: Path, tmp_path: Path) -> None:
    command, code = COMMANDS[name]
    command = command.replace("config.yaml", str(folder / "config.yaml"))
    data = [str(folder / "usual"), str(folder / "large")]
    words = [sys.executable, str(SUPPORT / "starved_commands.py"), *data, str(MEMORY), command]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=GUARD, check=False)
    written = [path.read_text() for name in ("bad_images.txt", "stats.json") for path in tmp_path.rglob(name)]
    text = "\n".join([done.stdout, done.stderr, *written])
    assert f"CODES 0 {code}" in done.stdout, text
    assert "Traceback" not in text
    for kind in KINDS:
        reason = "(not enough memory|damaged)" if kind == "JPEG2000" else "not enough memory"
        assert re.search(rf"{kind}\.image\.tif\b.{{,200}}{reason}", text, re.DOTALL), (kind, text)


def post(client: httpx.Client, image: bytes) -> httpx.Response:
    """Sends an image, and again if there is no memory even to receive it, which ends the connection."""
    for _ in range(5):
        with suppress(httpx.TransportError):
            return client.post("/predict", content=image, headers={"Content-Type": "image/png"})
    raise AssertionError("the server answers no request")


def test_server_rejects_the_image_and_serves_others(folder: Path, tmp_path: Path) -> None:
    usual = (folder / "usual" / "a" / "0.png").read_bytes()
    kinds = [kind for kind in KINDS if kind not in ("BMP", "none")]  # whose files are long themselves
    small = [encode(kind, 4000) for kind in kinds]  # decoded in a thread
    large = [encode(kind) for kind in kinds]  # decoded in a process
    with (
        running(tmp_path, "-c", folder / "config.yaml", "--max-mib", "200") as server,
        server.client() as client,
    ):
        assert post(client, large[0]).status_code == 200
        for process in (main := psutil.Process(server.process.pid), *main.children(recursive=True)):
            size = process.memory_info().vms + (60 << 20)
            process.rlimit(psutil.RLIMIT_AS, (size, resource.RLIM_INFINITY))
        for kind, image in zip(2 * kinds, [*small, *large], strict=True):
            answer = post(client, image)
            # A small one may fit into memory that was freed.
            statuses = {200, 422} if image in small else {422}
            assert answer.status_code in statuses, (kind, answer.text)
            if answer.status_code != 200:
                assert re.search("not enough memory|damaged", answer.text), (kind, answer.text)
            assert post(client, usual).status_code == 200
        end = time.monotonic() + GUARD
        while client.get("/ready").status_code == 503:  # until another decoder runs
            assert time.monotonic() < end
            time.sleep(0.1)
