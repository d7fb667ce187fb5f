"""Texts in files of strangers: no command writes them raw, or lets them add a line, whatever they replace."""

from __future__ import annotations

import asyncio
import copy
import json
import re
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import yaml
from bundles import export_bundle
from small_classifier import config_tree, export_model, write_checkpoint, write_image, write_weights
from small_embedding import embedding_tree
from small_embedding import write_model as write_embedding_model

from ppcls.cli.main import main
from ppcls.deploy.image_index import ImageIndex
from ppcls.deploy.index_folder import create_index
from ppcls.serve.limits import RequestError
from ppcls.serve.middleware import error_response
from ppcls.serve.models import LoadableModels, ServedModels
from ppcls.serve.pools import TimedPool
from ppcls.serve.service import BatchingOptions

pytestmark = [pytest.mark.hostile, pytest.mark.slow]

# Sets the title of a terminal, is one byte for ESC [, reverses text, ends the line, and is HTML.
TEXT = "\x1b]0;INJECTED\x07\x9b31m\u202egpj.exe\u2066\nINJECTED\rINJECTED\u2028INJECTED\x85INJECTED<b>"
CONTROLS = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


def variants(tree: Any) -> Iterator[tuple[str, Any]]:
    """Yields copies of plain data with `TEXT` in place of one value, as one key, and as one further key."""
    for path in places(tree):
        changed = copy.deepcopy(tree)
        parent = changed
        for key in path[:-1]:
            parent = parent[key]
        if path:
            parent[path[-1]] = TEXT
            yield f"{path} replaced", changed
        node = node_at(changed := copy.deepcopy(tree), path)
        if isinstance(node, dict):
            node[TEXT] = TEXT
            yield f"{path} with another key", changed
        if isinstance(node, str):
            node_at(changed, path[:-1])[path[-1]] = f"{node}{TEXT}"
            yield f"{path} with an end", changed


def node_at(tree: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        tree = tree[key]
    return tree


def places(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    children = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in [*children][:12]:  # a list of a thousand classes has the same places again and again
        yield from places(value, (*path, key))


class Checker:
    """Runs commands, and collects what they write raw."""

    def __init__(self, capfd: pytest.CaptureFixture[str]) -> None:
        self._capfd = capfd
        self.problems: list[str] = []
        self.shown = 0

    def run(self, name: str, *words: object) -> None:
        code = main([str(word) for word in words])
        output, errors = self._capfd.readouterr()
        assert code in (0, 1, 2, 3), errors
        self.check(f"{words[0]}: {name}", output)
        self.check(f"{words[0]}: {name}", errors)

    def check(self, name: str, text: str) -> None:
        self.shown += "INJECTED" in text
        if CONTROLS.search(text) or re.search("^INJECTED", text, re.MULTILINE) or "Traceback" in text:
            self.problems.append(f"{name}: {text}")

    def end(self) -> None:
        assert not self.problems, f"{len(self.problems)} of {self.shown}:\n" + "\n".join(self.problems[:5])
        assert self.shown  # otherwise this shows nothing


@pytest.fixture
def checker(capfd: pytest.CaptureFixture[str]) -> Checker:
    return Checker(capfd)


def put(folder: Path, check: Callable[[str], None]) -> None:
    """Loads the model in a folder as PUT /models/NAME does, and checks the answer."""

    async def answer() -> None:
        with TimedPool(1, "model") as worker:
            loadable = LoadableModels(folder.parent)
            served = ServedModels({}, worker, BatchingOptions(1, 0.0, 4), loadable)
            try:
                await served.load(folder.name)
            except RequestError as error:
                check(error_response(error.status, error.reason).body.decode())
            await served.stop()

    asyncio.run(answer())


def test_description_of_an_exported_model(tmp_path: Path, checker: Checker) -> None:
    exported = export_model(tmp_path)
    image = write_image(tmp_path / "image.png", 0)
    file = exported / "inference.yml"
    for name, tree in variants(yaml.safe_load(file.read_text(encoding="utf-8"))):
        file.write_text(yaml.safe_dump(tree), encoding="utf-8")
        checker.run(name, "infer", "--model", exported, image)
        put(exported, lambda text, name=name: checker.check(f"PUT: {name}", text))
    checker.end()


def test_config_of_a_run(tmp_path: Path, checker: Checker) -> None:
    weights = write_weights(tmp_path / "weights.safetensors")
    image = write_image(tmp_path / "images" / "a" / "image.png", 0)
    tree = config_tree(tmp_path / "gone", None)
    tree["Global"] |= {"import_modules": ["a"], "hooks": ["a:B"], "checkpoints": "auto"}
    dataset = {"name": "ImageNetDataset", "image_root": "a", "cls_label_path": "b"}
    split = {"dataset": dataset, "sampler": {"batch_size": 1}, "loader": {"num_workers": 0}}
    tree["DataLoader"] = {"Train": split, "Eval": copy.deepcopy(split)}
    for number, (name, changed) in enumerate(variants(tree)):
        files = {"model.safetensors": weights.read_bytes(), "config.yaml": yaml.safe_dump(changed).encode()}
        run = tmp_path / f"run{number}"
        write_checkpoint(run, files)
        (run / "metrics.jsonl").touch()
        (run / "config.yaml").write_bytes(files["config.yaml"])
        checker.run(name, "infer", "--model", run, image)
        if number % 4 == 0:
            checker.run(name, "eval", "--model", run, "--data", image.parent.parent)
            checker.run(name, "export", "--model", run, "--format", "onnx", "--output", run / "out")
            checker.run(name, "train", "-c", run / "config.yaml", "--print-config")
        checker.run(name, "runs", run)
        put(run, lambda text, name=name: checker.check(f"PUT: {name}", text))
        shutil.rmtree(run)
    checker.end()


def test_files_of_a_checkpoint(tmp_path: Path, checker: Checker) -> None:
    """Names of weights and classes, and the files that calibration writes."""
    weights = write_weights(tmp_path / "weights.safetensors").read_bytes()
    config = yaml.safe_dump(config_tree(tmp_path / "gone", None)).encode()
    image = write_image(tmp_path / "image.png", 0)
    rejection = {"score": "energy", "threshold": 0.0, "coverage": 0.9}
    cases: list[tuple[str, dict[str, bytes]]] = [
        ("names of weights", {"model.safetensors": safetensors.numpy.save({TEXT: np.zeros(3, np.float32)})}),
        ("names of classes", {"label_list.txt": "".join(f"{at} a{TEXT}\n" for at in range(3)).encode()}),
    ]
    for file, tree in (("temperature.json", {"temperature": 1.5}), ("rejection.json", rejection)):
        cases += [
            (f"{file} {name}", {file: json.dumps(changed).encode()}) for name, changed in variants(tree)
        ]
    for number, (name, files) in enumerate(cases):
        run = tmp_path / f"run{number}"
        write_checkpoint(run, {"model.safetensors": weights, "config.yaml": config, **files})
        checker.run(name, "infer", "--model", run, image)
        put(run, lambda text, name=name: checker.check(f"PUT: {name}", text))
    manifest = json.loads((run / "best_model" / "manifest.json").read_text())
    for name, changed in variants(manifest):
        (run / "best_model" / "manifest.json").write_text(json.dumps(changed))
        checker.run(name, "infer", "--model", run, image)
    checker.end()


def test_bundle(tmp_path: Path, checker: Checker) -> None:
    bundle = export_bundle(tmp_path)
    file = bundle / "bundle.json"
    tree = json.loads(file.read_text(encoding="utf-8"))
    tree["golden"] = tree["golden"][:1]
    tree["tolerances"]["probabilities"] = 0.0
    for name, changed in variants(tree):
        file.write_text(json.dumps(changed), encoding="utf-8")
        checker.run(name, "verify", bundle)
    checker.end()


def test_index(tmp_path: Path, checker: Checker) -> None:
    tree = embedding_tree(tmp_path / "model.safetensors")
    write_embedding_model(tree)
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump(tree))
    image = write_image(tmp_path / "image.png", 0)
    folder = tmp_path / "x.index"
    vectors = np.eye(3, 6, dtype=np.float32)
    files = tuple(Path(f"{name}{TEXT}.png") for name in "abc")
    models = [f"{config}{TEXT}", f"{tmp_path / TEXT}.yaml", f"https://host/{TEXT}", TEXT]
    (tmp_path / "other").mkdir()
    exported = export_model(tmp_path / "other")
    for model in models:
        create_index(folder, ImageIndex(files, vectors, "flat", model, np.eye(1, 6, dtype=np.float32)[0]))
        for words in (
            ["search"],
            ["search", "--model", config],
            ["search", "--model", config, "--json"],
            ["add"],
        ):
            checker.run(model, "index", words[0], folder, image, *words[1:])
        checker.run(model, "index", "search", folder, image, "--model", exported)
        checker.run(model, "index", "remove", folder, "missing")
        shutil.rmtree(folder)
    for column in ("format", "kind", "model", "probe", "width", "generation", "rows", "graph"):
        create_index(folder, ImageIndex(files, vectors, "flat", str(config)))
        with closing(sqlite3.connect(folder / "images.sqlite")) as database:
            database.execute(f"UPDATE about SET {column} = ?", (TEXT,))
            database.commit()
        for command in ("search", "add", "remove"):
            checker.run(column, "index", command, folder, image)
        shutil.rmtree(folder)
    checker.end()
