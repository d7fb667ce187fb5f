"""Serves weights locally instead of PaddleClas's server and the Hugging Face Hub, to test documents."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import paddle
import safetensors.numpy

from ppcls.arch.build import build_model
from ppcls.weights.torch_names import to_timm

# Published files with random weights, and their architectures.
FILES = {
    "RegNetX_200MF_pretrained.pdparams": "RegNetX_200MF",
    "legendary_models/ResNet50_pretrained.pdparams": "ResNet50",
    "legendary_models/ResNet50_vd_ssld_pretrained.pdparams": "ResNet50_vd",
    "legendary_models/MobileNetV3_small_x1_0_pretrained.pdparams": "MobileNetV3_small_x1_0",
}


class _Handler(SimpleHTTPRequestHandler):
    def end_headers(self) -> None:
        self.send_header("ETag", f'"{hashlib.sha256(self.path.encode()).hexdigest()}"')
        self.send_header("X-Repo-Commit", "0" * 40)
        super().end_headers()

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def weights_server(folder: Path) -> Iterator[dict[str, str]]:
    """Serves random weights from a new folder; yields the environment variables that select this server."""
    (folder / "legendary_models").mkdir(parents=True)
    for file, name in FILES.items():
        paddle.save(build_model(name).state_dict(), str(folder / file))
    hub = folder / "timm/resnet50.a1_in1k/resolve/main"
    hub.mkdir(parents=True)
    model = build_model("ResNet50")
    arrays = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    safetensors.numpy.save_file(to_timm(model, arrays, "ResNet50"), hub / "model.safetensors")
    (hub / "config.json").write_text(json.dumps({"architecture": "resnet50", "pretrained_cfg": {}}))
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Handler, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}"
    yield {
        "PPCLS_WEIGHTS_URL": url,
        "PPCLS_HOME": f"{folder}/home",
        "PPCLS_OFFLINE": "0",
        "HF_ENDPOINT": url,
        "HF_HOME": f"{folder}/hub",
    }
    server.shutdown()
    server.server_close()
