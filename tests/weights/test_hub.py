"""Weights from the Hugging Face hub, or rather from a local server that answers as it does."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from ppcls.engine.preprocessing import compare_preprocessing
from ppcls.errors import UserError
from ppcls.recipe.load import load_config
from ppcls.recipe.schema import Config
from ppcls.weights.files import read_weights

SETTINGS = {"mean": [0.5] * 3, "std": [0.25] * 3, "crop_pct": 0.95, "interpolation": "bicubic"}
CONFIG = json.dumps({"architecture": "resnet50", "pretrained_cfg": SETTINGS}).encode()
CONTENT = safetensors.numpy.save({"w": np.arange(10, dtype=np.float32)})
MODEL = Path("hf-hub:timm/resnet50.a1_in1k")


def compared(config: Config, source: str) -> list[str]:
    return compare_preprocessing(config.chains, config.Arch.name, source)


class Hub(BaseHTTPRequestHandler):
    def do_HEAD(self) -> None:
        self.answer()

    def do_GET(self) -> None:
        self.answer()

    def answer(self) -> None:
        files = {"model.safetensors": CONTENT, "config.json": CONFIG}
        folder, _, file = self.path.rpartition("/")
        if folder != "/timm/resnet50.a1_in1k/resolve/main" or file not in files:
            self.send_response(404)
            self.send_header("X-Error-Code", "EntryNotFound" if "resnet18" in self.path else "RepoNotFound")
            self.send_header("X-Repo-Commit", "0" * 40)
            self.end_headers()
            return
        self.send_response(200)
        self.send_header("X-Repo-Commit", "0" * 40)
        content = files[file]
        self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[ThreadingHTTPServer]:
    constants = pytest.importorskip("huggingface_hub.constants")
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}"
    # The package read HF_ENDPOINT and HF_HOME when it was imported.
    monkeypatch.setattr(constants, "ENDPOINT", url)
    monkeypatch.setattr(
        constants, "HUGGINGFACE_CO_URL_TEMPLATE", url + "/{repo_id}/resolve/{revision}/{filename}"
    )
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.delenv("PPCLS_OFFLINE")
    yield server
    server.shutdown()
    server.server_close()


def test_weights_of_the_hub_are_downloaded_once(
    hub: ThreadingHTTPServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.testing.assert_array_equal(read_weights(MODEL)["w"], np.arange(10))
    monkeypatch.setenv("PPCLS_OFFLINE", "1")
    np.testing.assert_array_equal(read_weights(MODEL)["w"], np.arange(10))


def test_preprocessing_unlike_that_of_the_hub_is_a_warning(hub: ThreadingHTTPServer) -> None:
    overrides = {"DataLoader.Eval": None, "Global.eval_during_train": False}
    config = load_config("ResNet50", {**overrides, "Arch.pretrained": str(MODEL)})
    normalize = "NormalizeImage with mean [0.5, 0.5, 0.5] and std [0.25, 0.25, 0.25]"
    assert compared(config, str(MODEL)) == [
        f"warning: {MODEL} expects other images: DataLoader.Train: {normalize}; Infer: {normalize}; Infer: "
        "ResizeImage with interpolation bicubic; Infer: ResizeImage with resize_short 236 (crop ratio 0.95)"
    ]
    same = load_config(
        "ResNet50",
        {
            **overrides,
            "DataLoader.Train.dataset.transform_ops.3.NormalizeImage.mean": [0.5] * 3,
            "DataLoader.Train.dataset.transform_ops.3.NormalizeImage.std": [0.25] * 3,
            "Infer": None,
        },
    )
    assert compared(same, str(MODEL)) == []


def test_weights_of_another_architecture_expect_its_preprocessing() -> None:
    (warning,) = compared(load_config("ResNet50"), "EfficientNet_lite0")
    assert "EfficientNet_lite0 expects other images: DataLoader.Train: NormalizeImage with mean" in warning


def test_model_of_the_hub_without_settings_gives_no_warning(hub: ThreadingHTTPServer) -> None:
    assert compared(load_config("ResNet50"), "hf-hub:timm/resnet18.a1_in1k") == []


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("hf-hub:timm/resnet18.a1_in1k", r"resnet18.a1_in1k: this model has no file model\.safetensors"),
        ("hf-hub:timm/nothing", "hf-hub:timm/nothing: the download failed: .*404"),
        ("hf-hub:a/b/c", "hf-hub:a/b/c: expected hf-hub:OWNER/MODEL"),
    ],
)
def test_missing_model_of_the_hub_is_an_error(hub: ThreadingHTTPServer, name: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        read_weights(Path(name))


def test_offline_hub_is_an_error(hub: ThreadingHTTPServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PPCLS_OFFLINE", "1")
    with pytest.raises(UserError, match=r"resnet50.a1_in1k: not downloaded yet: PPCLS_OFFLINE forbids"):
        read_weights(MODEL)


def test_endpoint_of_the_environment_is_used(hub: ThreadingHTTPServer, tmp_path: Path) -> None:
    home = {"HF_ENDPOINT": f"http://127.0.0.1:{hub.server_port}", "HF_HOME": str(tmp_path / "home")}
    code = f"from ppcls.weights.hub import fetch_from_hub; print(fetch_from_hub({str(MODEL)!r}))"
    command = [sys.executable, "-c", code]
    run = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, **home})
    assert run.stdout.startswith(home["HF_HOME"])


def test_missing_client_of_the_hub_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(UserError, match="pip install huggingface_hub"):
        read_weights(MODEL)
