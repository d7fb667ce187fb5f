"""Downloads of published weights from a local server that also fails in every way that servers do."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import paddle
import pytest
from PIL import Image
from runs import GUARD

from ppcls.arch.build import build_model
from ppcls.cli.main import main as ppcls
from ppcls.cli.models import main
from ppcls.errors import UserError
from ppcls.weights import download as downloads
from ppcls.weights.files import fetch_weights, read_weights
from ppcls.zoo import ZOO, architecture, package_file

FILE = "PPLCNet_x0_25_pretrained.pdparams"
VALUES = np.arange(50_000, dtype=np.float32)


class Server:
    """A server of one file.

    Attributes:
        content: Content of every file.
        answers: Statuses of the next answers; an answer without one is 200 or 206. A negative number cuts the
            connection after as many bytes.
        delay: Seconds before each answer.
        requests: Headers of all requests.
    """

    def __init__(self) -> None:
        self.content, self.version = b"", '"1"'
        self.answers: list[int] = []
        self.delay = 0.0
        self.requests: list[dict[str, str]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.requests.append({"path": self.path, **self.headers})
                time.sleep(outer.delay)
                outer.answer(self)

            def log_message(self, *_: object) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._http.server_port}"
        threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        status = self.answers.pop(0) if self.answers else 200
        if status > 200:
            request.send_error(status)
            return
        start, content = 0, self.content
        if "Range" in request.headers and request.headers["If-Range"] == self.version:
            start = int(request.headers["Range"].removeprefix("bytes=").removesuffix("-"))
        request.send_response(206 if start else 200)
        if start:
            request.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        request.send_header("Content-Length", str(len(content) - start))
        request.send_header("ETag", self.version)
        request.end_headers()
        request.wfile.write(content[start : start - status if status < 0 else None])

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Server]:
    paddle.save({"w": paddle.to_tensor(VALUES)}, str(tmp_path / "source.pdparams"))
    server = Server()
    server.content = (tmp_path / "source.pdparams").read_bytes()
    monkeypatch.setenv("PPCLS_WEIGHTS_URL", server.url)
    monkeypatch.setenv("PPCLS_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    monkeypatch.delenv("PPCLS_OFFLINE")
    monkeypatch.setattr(downloads, "RETRY_DELAYS", (0.0, 0.0))
    yield server
    server.close()


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "home" / "weights"


def names(folder: Path) -> set[str]:
    """Returns the names of the files in a folder, except locks."""
    return {path.name for path in folder.iterdir() if path.suffix != ".lock"}


def test_read_weights_by_name_downloads_once(server: Server, cache: Path) -> None:
    for _ in range(2):
        np.testing.assert_array_equal(read_weights(Path("PPLCNet_x0_25"))["w"], VALUES)
    assert [request["path"] for request in server.requests] == [f"/legendary_models/{FILE}"]
    assert names(cache) == {FILE, f"{FILE}.sha256"}
    assert (cache / f"{FILE}.sha256").read_text() == f"{hashlib.sha256(server.content).hexdigest()}  {FILE}\n"


def test_files_of_paddleclas_are_used_without_a_download(server: Server, tmp_path: Path) -> None:
    folder = tmp_path / "user" / ".paddleclas" / "weights"
    folder.mkdir(parents=True)
    (folder / FILE).write_bytes(server.content)
    assert fetch_weights(Path("PPLCNet_x0_25")) == folder / FILE
    assert not server.requests


def test_cut_connections_are_resumed(server: Server) -> None:
    server.answers = [-1000, 503, -2000]
    downloads.RETRY_DELAYS = (0.0,) * 3
    np.testing.assert_array_equal(read_weights(Path("PPLCNet_x0_25"))["w"], VALUES)
    assert [request.get("Range") for request in server.requests] == [
        None,
        "bytes=1000-",
        "bytes=1000-",
        "bytes=3000-",
    ]


def test_interrupted_download_is_resumed_by_the_next_run(server: Server, cache: Path) -> None:
    server.answers = [-1000, 503, 503]
    with pytest.raises(
        UserError, match=r"503 Service Unavailable; 0.0 MB are kept.*HTTPS_PROXY.*save the file"
    ):
        read_weights(Path("PPLCNet_x0_25"))
    assert names(cache) == {f".{FILE}.part", f".{FILE}.part.etag"}
    np.testing.assert_array_equal(read_weights(Path("PPLCNet_x0_25"))["w"], VALUES)
    assert server.requests[-1]["Range"] == "bytes=1000-"
    assert names(cache) == {FILE, f"{FILE}.sha256"}


def test_download_of_a_changed_file_restarts(server: Server) -> None:
    server.answers = [-1000, 503, 503]
    with pytest.raises(UserError, match="503"):
        read_weights(Path("PPLCNet_x0_25"))
    server.version = '"2"'
    np.testing.assert_array_equal(read_weights(Path("PPLCNet_x0_25"))["w"], VALUES)


def _not_found(server: Server) -> None:
    server.answers = [404]


def _html(server: Server) -> None:
    server.content = b"\n<!DOCTYPE html><html>Please log in</html>"


def _noise(server: Server) -> None:
    server.content = b"\xff" * len(server.content)


def _half_a_file(server: Server) -> None:
    server.content = server.content[: len(server.content) // 2]


def _code(server: Server) -> None:
    server.content = b"cposix\nsystem\n(S'true'\ntR."


@pytest.mark.parametrize(
    ("prepare", "message"),
    [
        (
            _not_found,
            r"127.0.0.1.*PPLCNet_x0_25_pretrained.pdparams: the server answered 404 Not Found; get the",
        ),
        (_html, "127.0.0.1.*: the server sent a web page instead of weights"),
        (_half_a_file, "127.0.0.1.*pretrained.pdparams: damaged"),
        (_noise, "127.0.0.1.*pretrained.pdparams: damaged, or not a .pdparams file"),
        (_code, "127.0.0.1.*pretrained.pdparams: rejected: .*posix.system"),
    ],
)
def test_wrong_answer_is_reported_and_leaves_no_file(
    server: Server, cache: Path, prepare: Callable[[Server], None], message: str
) -> None:
    prepare(server)
    with pytest.raises(UserError, match=message):
        read_weights(Path("PPLCNet_x0_25"))
    assert len(server.requests) == 1
    assert names(cache) == set()


def test_changed_file_is_an_error(server: Server, cache: Path) -> None:
    path = fetch_weights(Path("PPLCNet_x0_25"))
    path.write_bytes(server.content + b"\0")
    with pytest.raises(UserError, match=r"pretrained.pdparams: damaged or replaced: expected SHA-256"):
        read_weights(Path("PPLCNet_x0_25"))
    path.unlink()
    (cache / f"{FILE}.sha256").write_text("0" * 64 + f"  {FILE}\n")
    with pytest.raises(UserError, match=r"expected SHA-256 0{64}, got "):
        read_weights(Path("PPLCNet_x0_25"))
    assert names(cache) == {f"{FILE}.sha256"}


def test_offline_is_an_error_without_a_request(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PPCLS_OFFLINE", "1")
    with pytest.raises(
        UserError, match=r"PPCLS_OFFLINE forbids downloads; save http://127.*pdparams as this"
    ):
        read_weights(Path("PPLCNet_x0_25"))
    assert not server.requests


def test_missing_network_is_an_error(server: Server, cache: Path) -> None:
    server.close()
    with pytest.raises(UserError, match=r"the download failed: .*refused; check the network and the proxy"):
        read_weights(Path("PPLCNet_x0_25"))
    assert names(cache) == set()


def test_slow_server_is_an_error_after_the_timeout(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(downloads, "TIMEOUT", 0.05)
    server.delay = 0.3
    with pytest.raises(UserError, match="the download failed: timed out"):
        read_weights(Path("PPLCNet_x0_25"))
    while len(server.requests) < 3:  # the server may read a request after its client has given up
        time.sleep(0.01)
    assert len(server.requests) == 3


def test_proxy_of_the_environment_is_used(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PPCLS_WEIGHTS_URL", "http://weights.invalid/")
    monkeypatch.setenv("http_proxy", server.url)
    np.testing.assert_array_equal(read_weights(Path("PPLCNet_x0_25"))["w"], VALUES)
    assert server.requests[0]["path"] == f"http://weights.invalid/legendary_models/{FILE}"


def test_too_small_disk_is_an_error_before_the_download(
    server: Server, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=1000))
    with pytest.raises(
        UserError, match=r"pdparams: can't store .*, but the disk has less free space; free some space"
    ):
        read_weights(Path("PPLCNet_x0_25"))
    assert names(cache) == set()


def test_full_disk_keeps_what_was_received(
    server: Server, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = downloads._Download._append

    def fill_disk(*arguments: object) -> None:
        server.answers = [-1000]
        with pytest.raises(downloads.httpx.TransportError):
            real(*arguments)  # type: ignore[arg-type]
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    server.answers = [-1000]
    monkeypatch.setattr(downloads._Download, "_append", fill_disk)
    with pytest.raises(UserError, match=r"can't store .*: No space left on device; free some space"):
        read_weights(Path("PPLCNet_x0_25"))
    assert names(cache) == {f".{FILE}.part", f".{FILE}.part.etag"}


def test_cache_that_cannot_be_written_is_an_error(server: Server, cache: Path) -> None:
    cache.parent.write_text("a file where the folder should be")
    with pytest.raises(UserError, match=r"can't store the download .*set PPCLS_HOME to a writable folder"):
        read_weights(Path("PPLCNet_x0_25"))


def test_parallel_processes_download_once(server: Server) -> None:
    server.delay = 0.2
    results: list[Path] = []
    threads = [
        threading.Thread(target=lambda: results.append(fetch_weights(Path("PPLCNet_x0_25"))))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 4
    assert len(server.requests) == 1


def test_models_fetch_prints_the_path(
    server: Server, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["fetch", "PPLCNet_x0_25"]) == 0
    assert capsys.readouterr().out == f"{cache / FILE}\n"
    assert main(["fetch", "PPLCNet_x0_26"]) == 2
    error = capsys.readouterr().err
    assert "PPLCNet_x0_26: no published weights with this name; did you mean 'PPLCNet_x0_25'?" in error


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "EfficientNet_lite4",
            "EfficientNet_lite4 has no published weights; nearest with weights: EfficientNet_lite0",
        ),
        ("resnet50", r"resnet50 has no published weights; nearest with weights: ResNe.*"),
        ("PPLCNet_x0_26", "the name of an architecture; did you mean 'PPLCNet_x0_25'"),
        ("ResNet50_ssld", "the name of an architecture; did you mean"),
    ],
)
def test_name_without_weights_names_the_nearest(server: Server, name: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        read_weights(Path(name))
    assert not server.requests


def test_missing_distilled_weights_name_the_option(server: Server) -> None:
    with pytest.raises(UserError, match="ResNet50_ssld has no published weights; set `use_ssld: False`"):
        read_weights(architecture("ResNet50").weights_file(ssld=True))


@pytest.mark.parametrize(
    ("overrides", "file"),
    [
        (["Arch.pretrained=True"], "PPLCNet_x0_5_pretrained.pdparams"),
        (["Arch.pretrained=True", "Arch.use_ssld=True"], "PPLCNet_x0_5_ssld_pretrained.pdparams"),
        (["Global.pretrained_model=PPLCNet_x0_5_ssld"], "PPLCNet_x0_5_ssld_pretrained.pdparams"),
    ],
)
def test_training_downloads_the_weights_that_the_config_names(
    server: Server, tmp_path: Path, overrides: list[str], file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    paddle.save(build_model("PPLCNet_x0_5", 1000).state_dict(), str(tmp_path / "source.pdparams"))
    server.content = (tmp_path / "source.pdparams").read_bytes()
    for number in range(40):
        path = tmp_path / "pictures" / str(number % 2) / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (40, 40), (6 * number, 90, 90)).save(path)
    keys = ["Global.device=cpu", "Global.epochs=1", f"Global.output_dir={tmp_path / 'run'}", *overrides]
    command = ["train", str(tmp_path / "pictures"), "--model", "PPLCNet_x0_5", "--image-size", "32"]
    assert ppcls([*command, *(part for key in keys for part in ("-o", key))]) == 0
    assert [request["path"] for request in server.requests] == [f"/legendary_models/{file}"]
    assert "fc.bias, fc.weight are random, for 2 classes" in capsys.readouterr().out


def test_killed_download_leaves_no_file(server: Server, cache: Path) -> None:
    server.delay = 20.0
    code = "from ppcls.cli.main import main; main(['models', 'fetch', 'PPLCNet_x0_25'])"
    with subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + GUARD
        while not server.requests and time.monotonic() < deadline:
            time.sleep(0.05)
        process.kill()
    assert names(cache) == set()


def test_changed_file_of_a_package_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "weights_package" / Path(ZOO["EfficientNet_lite0"].package).name
    file.parent.mkdir()
    file.write_bytes(package_file(ZOO["EfficientNet_lite0"].package).read_bytes()[:-1])
    monkeypatch.setattr("ppcls.weights.files.package_file", lambda _: file)
    with pytest.raises(UserError, match=r"damaged or replaced: expected SHA-256 579344.*reinstall"):
        read_weights(file)


def test_message_about_a_download_names_models_that_need_no_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PPCLS_OFFLINE", "1")
    with pytest.raises(UserError, match=r"whose weights are installed: EfficientNet_lite0$"):
        downloads.download(tmp_path / "x.pdparams", "http://127.0.0.1/x.pdparams", lambda path: None)
