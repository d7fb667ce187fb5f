"""Messages of image decoders in C++ do not reach standard error, but all other output does."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest
from paths import ROOT
from runs import GUARD

BEGIN = """
import os, signal, sys
from ppcls.runtime.native_errors import filter_decoder_messages
from ppcls.runtime.streams import prepare_streams
prepare_streams()
filter_decoder_messages()
filter_decoder_messages()
for line in (
    b"\\x1b[0;31m[ERROR] \\x1b[0m[jpeg_parser] Could not retrieve image info",
    b"nvImageCodec failure: '#4'",
    b"libpng error: IDAT: invalid bit length repeat",
    b"Corrupt JPEG data: 14 extraneous bytes before marker 0xd9",
    b"an important message of C++",
    b"[operator] another message",
):
    os.write(2, line + b"\\n")
sys.stderr.write("Python: [jpeg_parser]\\n")
"""


@pytest.mark.parametrize(
    ("end", "code"),
    [("", 0), ("os._exit(3)", 3), ("os.abort()", -6), ("os.killpg(0, signal.SIGTERM)", -15)],
)
def test_only_messages_of_decoders_are_dropped(end: str, code: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", BEGIN + end],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=GUARD,
        check=False,
        start_new_session=True,
    )
    assert done.returncode == code
    lines = ["Python: [jpeg_parser]", "[operator] another message", "an important message of C++"]
    assert sorted(done.stderr.splitlines()) == lines


@pytest.mark.slow
def test_damaged_images_are_named_without_lines_of_dali(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for name in ("a", "b"):
        (tmp_path / "images" / name).mkdir(parents=True)
        for i in range(6):
            image = cv2.imencode(".png", rng.integers(0, 255, (32, 32, 3)).astype(np.uint8))[1].tobytes()
            (tmp_path / "images" / name / f"{i}.png").write_bytes(image if i else image[: len(image) // 2])
    jpeg = cv2.imencode(".jpg", rng.integers(0, 255, (32, 32, 3)).astype(np.uint8))[1].tobytes()
    (tmp_path / "images" / "a" / "begin.jpg").write_bytes(jpeg[: jpeg.index(b"\xff\xc0") + 4])
    options = ["--model", "ResNet18", "--epochs", "1", "--image-size", "32", "--batch-size", "2"]
    overrides = ["Arch.pretrained=False", "Global.use_dali=True"]
    overrides += [f"DataLoader.{split}.dataset.on_error=skip" for split in ("Train", "Eval")]
    done = subprocess.run(
        [
            sys.executable,
            ROOT / "tools" / "train.py",
            "images",
            "--device",
            "cpu",
            *options,
            "-o",
            *overrides,
        ],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=GUARD,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stderr.splitlines()
    named = {line.split("images/")[1].split(" ")[0] for line in lines}
    assert named == {"a/0.png", "b/0.png", "a/begin.jpg"}
    assert all(line.startswith("bad image, skipped: ") for line in lines)


def test_json_lines_that_nobody_reads_for_a_while_are_complete_or_dropped() -> None:
    code = """
import json, os, sys
from ppcls.runtime.native_errors import wrap_native_lines
from ppcls.runtime.streams import prepare_streams
prepare_streams()
wrap_native_lines()
for number in range(300):
    os.write(2, json.dumps({"time": "", "message": f"{number} " + "x" * 10_000}).encode() + b"\\n")
    os.write(2, b"text \\xff of C++\\n")
print("written", flush=True)
sys.stdin.readline()
os.write(2, b"the reader reads again\\n")
"""
    command = [sys.executable, "-c", code]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen(command, cwd=ROOT, **pipes) as process:  # type: ignore[call-overload]
        assert process.stdout.readline() == b"written\n"
        head = b"".join(process.stderr.readline() for _ in range(200))
        process.stdin.write(b"\n")
        process.stdin.close()
        rest = process.stderr.read()
    messages = [json.loads(line)["message"] for line in (head + rest).splitlines()]
    assert 100 < len(messages) < 600
    assert messages[-1] == "the reader reads again"
    assert {len(message) for message in messages if message.endswith("x")} <= set(range(10_002, 10_005))
