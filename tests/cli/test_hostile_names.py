"""Names of files and classes from strangers: no command writes them raw, or lets them add a line."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from small_classifier import config_tree, write_config, write_weights
from small_embedding import embedding_tree, write_model

from ppcls.cli.main import main

pytestmark = pytest.mark.hostile

# Sets the title of the terminal, reverses text, is one byte for ESC [, ends the line, and is HTML.
HOSTILE = {
    "escape": "\x1b]0;INJECTED\x07\x1b[31m",
    "direction": "\u202egpj.exe\u2066",
    "C1": "\x9b31mINJECTED",
    "return": "\rINJECTED",
    "line": "\nINJECTED",
    "paragraph": "\u2029INJECTED",
    "bytes": os.fsdecode(b"\xff\x9bINJECTED"),
    "HTML": "<img src=x onerror=alert(1)>&amp;\"'",
}
CONTROLS = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Class folders with good and bad images, and a model whose classes have hostile names."""
    folder = tmp_path_factory.mktemp("names")
    rng = np.random.default_rng(0)
    for label in ("a", "b", "c"):
        (folder / "data" / label).mkdir(parents=True)
        for name in HOSTILE.values():
            name = name.replace("/", "")
            pixels = rng.integers(0, 255, (32, 32, 3)).astype(np.uint8)
            Image.fromarray(pixels).save(folder / "data" / label / f"good{name}.png")
            (folder / "data" / label / f"bad{name}.png").write_bytes(b"\x89PNG\r\n\x1a\n no image")
    names = [text for key, text in HOSTILE.items() if key in ("escape", "direction", "HTML")]
    (folder / "names.txt").write_text("".join(f"{label} {name}\n" for label, name in enumerate(names)))
    tree = config_tree(write_weights(folder / "model.safetensors"), folder / "names.txt")
    tree["Global"]["output_dir"] = str(folder / "output")
    write_config(folder / "config.yaml", tree)
    tree = embedding_tree(folder / "embedder.safetensors")
    write_model(tree)
    write_config(folder / "embedder.yaml", tree)
    # Controls in names of class folders are rejected, but not changes of direction and HTML.
    shutil.copytree(folder / "data" / "a", folder / "classes" / "a")
    shutil.copytree(folder / "data" / "b", folder / "classes" / HOSTILE["direction"])
    shutil.copytree(folder / "data" / "c", folder / "classes" / HOSTILE["HTML"])
    return folder


TRAINING = (
    "--model WideResNet --image-size 32 --batch-size 4 --device cpu --on-error skip --val-split 0.3 "
    "-o Arch.depth=10 Arch.widen_factor=1 Arch.pretrained=False Global.use_dali=False "
    "DataLoader.Train.loader.num_workers=0 DataLoader.Eval.loader.num_workers=0"
)


COMMANDS = {
    "infer": "infer -c config.yaml data",
    "infer to a table": "infer -c config.yaml data --out predictions.csv",
    "infer to lines": "infer -c config.yaml data --out predictions.jsonl",
    "infer as JSON": "infer -c config.yaml data --json",
    "heat maps": "infer -c config.yaml data --explain heat",
    "export": "export -c config.yaml --format onnx --output exported",
    "prediction of the export": "infer --model exported data",
    "check": "dataset check data",
    "stats": "dataset stats data --out stats",
    "resize": "dataset resize data --max-size 16 --out small",
    "split": "dataset split data --out lists",
    "conversion": "dataset convert webdataset data --out shards",
    "audit": "dataset audit data --out audit",
    "new index": "index build images.index data --model embedder.yaml",
    "search": "index search images.index data --model embedder.yaml",
    "search as JSON": "index search images.index data --model embedder.yaml --json",
    "addition": "index add images.index data/a --model embedder.yaml",
    "removal": "index remove images.index missing",
    "bundle": "export -c config.yaml --format bundle --golden-data data --output bundle",
    "verification": "verify bundle",
    "training": f"train classes --output run --epochs 1 {TRAINING}",
    "training with DALI": f"train classes --output dali --epochs 1 {TRAINING}".replace(
        "dali=False", "dali=True"
    ),
    "prediction with DALI": "infer -c config.yaml data -o Global.use_dali=True",
    "description": f"train classes --output explained --explain-data {TRAINING}",
    "evaluation": "eval --model run --data classes --confusion confusion.csv --errors errors.csv",
    "calibration": "calibrate --model run --trust",
    "prediction of a run": "infer --model run data",
    "runs": "runs . --html runs.html",
    "tuning": "tune -c run/config.yaml --search Optimizer.lr.learning_rate=0.1..0.2 --trials 1 -o "
    "Global.output_dir=tuned",
}
# These print no name.
SILENT = ("export", "stats", "tuning")
PAGES = {"training": "run/*.html", "tuning": "tuned/*.html", "audit": "audit/*.html", "runs": "runs.html"}


@pytest.mark.parametrize(
    "command",
    # A tuning is trainings, and its table.
    [pytest.param(name, marks=[pytest.mark.slow] * (name == "tuning")) for name in COMMANDS],
)
def test_no_command_writes_hostile_names_raw(
    command: str,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(folder)
    words = COMMANDS[command].split()
    if command == "tuning" and not (folder / "run").exists():  # the test of its training was not selected
        main(COMMANDS["training"].split())
        capfd.readouterr()
    code = main(words)
    output, errors = capfd.readouterr()
    assert code in (0, 1, 2, 3), errors
    assert "Traceback" not in output + errors
    files = [path.read_bytes().decode("utf-8", "surrogateescape") for path in folder.glob("predictions.*")]
    written = [output, errors, *files]
    for text in written:
        # DALI writes these lines, without names. `ppcls` filters them, but not in the process of the tests.
        text = re.sub(r"\x1b\[0;31m\[ERROR\] \x1b\[0m\[\w+_parser\] [\w ]+\n", "", text)
        assert not CONTROLS.search(text.replace("\r\n", "\n"))
        assert not re.search("^INJECTED", text, re.MULTILINE)
    for page in folder.glob(PAGES.get(command, "none")):
        text = page.read_text(encoding="utf-8")
        assert not CONTROLS.search(text)
        assert "<img src=x" not in text
    if command not in SILENT:
        assert "INJECTED" in output + errors + "".join(written)
