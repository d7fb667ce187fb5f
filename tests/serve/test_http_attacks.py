"""Requests that hide, misplace or inflate something, sent to a real server. Each must get a clear answer.

After each attack, the server still answers a usual request. At the end, it has written no traceback and no
file.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from running import Running, running
from runs import GUARD
from small_classifier import export_model, write_config
from sockets import exchange

pytestmark = [pytest.mark.hostile, pytest.mark.slow]

KEY = "0123456789abcdef"
PNG = {"Content-Type": "image/png"}
HOST = f"Host: localhost\r\nX-API-Key: {KEY}\r\n".encode()
END = b"Connection: close\r\n\r\n"
POST = b"POST /predict HTTP/1.1\r\n" + HOST + b"Content-Type: image/png\r\n"
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n"
HIDDEN = b"GET /models HTTP/1.1\r\n" + HOST + b"\r\n"
MAX_BYTES = 300_000


@dataclass
class Target:
    server: Running
    client: httpx.Client
    image: bytes
    folder: Path

    def works(self) -> bool:
        return self.client.post("/predict", content=self.image, headers=PNG).status_code == 200


@pytest.fixture(scope="module")
def target(
    tree: dict[str, Any], images: list[bytes], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Target]:
    folder = tmp_path_factory.mktemp("attacked")
    config = write_config(folder / "config.yaml", tree)
    models = folder / "models"
    models.mkdir()
    export_model(models)
    (folder / "secret").mkdir()
    (models / "link").symlink_to(models / "onnx")
    (models / "loop").symlink_to(models / "loop")
    (models / "parent").symlink_to(folder)
    (models / "file").write_text("no folder")
    (models / "empty").mkdir()
    cwd = folder / "cwd"
    cwd.mkdir()
    (folder / "keys").write_text(KEY)
    options = ["-c", config, "--models-folder", models, "--api-key-file", folder / "keys", "--timeout", "5"]
    options += ["--max-mib", str(MAX_BYTES / (1 << 20))]
    with running(cwd, *options) as server, server.client() as client:
        client.headers["X-API-Key"] = KEY
        yield Target(server, client, images[0], cwd)
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(GUARD) == 0
        assert server.process.stderr is not None
        log = server.process.stderr.read()
        assert "Traceback" not in log, log
        assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", log)
        assert not list(cwd.iterdir())


# Bytes that no client would send, and the possible statuses of the answer. "" is a closed connection.
RAW = {
    "line feeds": (b"GET /live HTTP/1.1\nHost: localhost\n\n", "400"),
    "carriage returns": (b"GET /live HTTP/1.1\rHost: localhost\r\r", "400|"),
    "no host": (b"GET /live HTTP/1.1\r\n" + END, "400"),
    "two hosts": (b"GET /live HTTP/1.1\r\nHost: localhost\r\nHost: evil\r\n" + END, "400"),
    "empty host": (b"GET /live HTTP/1.1\r\nHost: evil.example, localhost\r\n" + END, "400"),
    "blank before colon": (b"GET /live HTTP/1.1\r\nHost : localhost\r\n\r\n", "400"),
    "folded header": (b"GET /live HTTP/1.1\r\n" + HOST + b"X: a\r\n b\r\n" + END, "400|200"),
    "folded length": (POST + b"Content-Length:\r\n 5\r\n" + END + b"abcde", "400|422"),
    "NUL in header": (b"GET /live HTTP/1.1\r\n" + HOST + b"X: a\0b\r\n" + END, "400"),
    "NUL in path": (b"GET /li\0ve HTTP/1.1\r\n" + HOST + END, "400"),
    "both lengths": (
        POST + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + HIDDEN,
        "400",
    ),
    "both lengths, other order": (CHUNKED + b"Content-Length: 6\r\n\r\n0\r\n\r\n" + HIDDEN, "400"),
    "two lengths": (POST + b"Content-Length: 4\r\nContent-Length: 5\r\n\r\nabcde", "400"),
    "length twice": (POST + b"Content-Length: 4, 4\r\n\r\nabcd", "400|422"),
    "negative length": (POST + b"Content-Length: -1\r\n\r\n", "400"),
    "signed length": (POST + b"Content-Length: +4\r\n\r\nabcd", "400"),
    "hexadecimal length": (POST + b"Content-Length: 0x4\r\n\r\nabcd", "400"),
    "underscored length": (POST + b"Content-Length: 1_0\r\n\r\n0123456789", "400"),
    "Arabic length": (POST + "Content-Length: \u0664\r\n\r\nabcd".encode(), "400"),
    "length of 500 digits": (POST + b"Content-Length: " + b"9" * 500 + b"\r\n\r\n", "400|413"),
    "length of 20 digits": (POST + b"Content-Length: 18446744073709551617\r\n\r\nx", "400|413"),
    "encoding of another kind": (POST + b"Transfer-Encoding: xchunked\r\n" + END, "400"),
    "encoding with tab": (
        POST + b"Transfer-Encoding:\tchunked\r\n" + END + b"1\r\nx\r\n0\r\n\r\n",
        "400|422",
    ),
    "encoding twice": (CHUNKED + b"Transfer-Encoding: identity\r\n" + END + b"0\r\n\r\n" + HIDDEN, "400"),
    "compressed encoding": (POST + b"Transfer-Encoding: gzip, chunked\r\n" + END + b"0\r\n\r\n", "400"),
    "chunked first": (POST + b"Transfer-Encoding: chunked, gzip\r\n" + END + b"0\r\n\r\n" + HIDDEN, "400"),
    "no chunk": (CHUNKED + b"\r\nZZ\r\n", "400"),
    "huge chunk": (CHUNKED + b"\r\nFFFFFFFFFFFFFFFF\r\nx", "400|408|413"),
    "chunk size beyond 64 bits": (CHUNKED + b"\r\n10000000000000001\r\nx", "400|408|413"),
    "negative chunk": (CHUNKED + b"\r\n-1\r\nx\r\n", "400"),
    "chunk size of zeros": (CHUNKED + END + b"0" * 100_000 + b"1\r\nx\r\n0\r\n\r\n", "400|422|"),
    "chunk extension": (CHUNKED + END + b"1;" + b"a" * 100_000 + b"\r\nx\r\n0\r\n\r\n", "400|422|"),
    "chunk without line end": (CHUNKED + b"\r\n3\r\nabcX0\r\n\r\n" + HIDDEN, "400"),
    "many small chunks": (CHUNKED + END + b"1\r\nx\r\n" * 100_000 + b"0\r\n\r\n", "422"),
    "endless chunks": (CHUNKED + END + b"8000\r\n" + (b"x" * 32768 + b"\r\n8000\r\n") * 40, "413"),
    "host in trailer": (CHUNKED + END + b"1\r\nx\r\n0\r\nHost: evil\r\n\r\n", "400|422"),
    "long trailer": (CHUNKED + END + b"1\r\nx\r\n0\r\n" + b"X: y\r\n" * 100_000 + b"\r\n", "400|422|"),
    "incomplete body": (POST + b"Content-Length: 10\r\n\r\nx", "408"),
    "incomplete head": (b"GET /live HTTP/1.1\r\nHost: loc", "408|"),
    "version 9": (b"GET /live HTTP/9.9\r\n" + HOST + END, "200|400|505"),
    "version 0.9": (b"GET /live\r\n\r\n", "400"),
    "TLS": (b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03" + bytes(60) + b"\r\n\r\n", "400"),
    "HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "400|401|404"),
    "long path": (b"GET /" + b"a" * 200_000 + b" HTTP/1.1\r\n" + HOST + END, "400|414"),
    "long method": (b"A" * 200_000 + b" / HTTP/1.1\r\n" + HOST + END, "400"),
    "long header": (b"GET /live HTTP/1.1\r\n" + HOST + b"X: " + b"y" * 200_000 + b"\r\n" + END, "400|431"),
    "many headers": (b"GET /live HTTP/1.1\r\n" + HOST + b"X: y\r\n" * 50_000 + END, "400|431"),
    "many cookies": (b"GET /live HTTP/1.1\r\n" + HOST + b"Cookie: a=b\r\n" * 1000 + END, "200|400|431"),
    "other host in target": (b"GET http://evil.example/live HTTP/1.1\r\n" + HOST + END, "200|400|404"),
    "tunnel": (b"CONNECT evil.example:80 HTTP/1.1\r\n" + HOST + END, "400|404|405"),
    "star": (b"OPTIONS * HTTP/1.1\r\n" + HOST + END, "400|404|405"),
    "web socket": (
        b"GET /live HTTP/1.1\r\nUpgrade: websocket\r\nConnection: Upgrade, close\r\nSec-WebSocket-Key: x\r\n"
        b"Sec-WebSocket-Version: 13\r\n" + HOST + b"\r\n",
        "200|400|403|404|426",
    ),
    "upgrade to HTTP/2": (
        b"GET /live HTTP/1.1\r\n"
        + HOST
        + b"Upgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\nConnection: Upgrade, close\r\n\r\n",
        "200|400|426",
    ),
    "promised terabytes": (POST + b"Expect: 100-continue\r\nContent-Length: 99999999999\r\n\r\n", "413|417"),
    "lines before the request": (b"\r\n" * 100_000 + b"GET /live HTTP/1.1\r\n" + HOST + END, "200|400|"),
    "all bytes": (bytes(range(256)) * 400, "400"),
    "ESC in the path": (b"GET /\x1b]0;x\x07 HTTP/1.1\r\n" + HOST + END, "400|404"),
    "ESC in the method": (b"G\x1b[31mT / HTTP/1.1\r\n" + HOST + END, "400"),
    "line in the request id": (
        b"GET /x HTTP/1.1\r\n" + HOST + b"X-Request-ID: a\x0b\x1b[2J\r\n" + END,
        "400|404",
    ),
}


@pytest.mark.parametrize("name", RAW)
def test_bytes_get_one_answer(name: str, target: Target) -> None:
    request, expected = RAW[name]
    with_end = exchange(target.server.address, request)
    statuses = re.findall(rb"^HTTP/1\.1 (\d+)", with_end, re.MULTILINE)
    assert len(statuses) <= 1, with_end  # no second request was hidden in the first one
    assert "".join(status.decode() for status in statuses) in expected.split("|"), with_end[:300]
    assert b"MobileNet" not in with_end
    assert target.works()


PATHS = {
    "GET": (
        "/../../etc/passwd",
        "/..%2f..%2fetc/passwd",
        "/%2e%2e/%2e%2e/etc/passwd",
        "//evil.example/",
        "/predict",
        "/docs/%3Cscript%3E",
        "/redoc",
        "/live%0d%0aSet-Cookie:a",
        "/models/onnx/inference.onnx",
        "/%ff%fe",
        "/" + "a/" * 5000,
    ),
    "PUT": (
        "/models/..",
        "/models/%2e%2e",
        "/models/%2e%2e%2f%2e%2e%2fsecret",
        "/models/..%5c..%5csecret",
        "/models/%2fetc",
        "/models/.",
        "/models/.hidden",
        "/models/%00",
        "/models/a%00b",
        "/models/a%0ab",
        "/models/%1b%5d0;x%07",
        "/models/%e2%80%ae",
        "/models/" + "a" * 255,
        "/models/" + "a" * 5000,
        "/models/missing",
        "/models/link",
        "/models/loop",
        "/models/parent",
        "/models/parent%2fsecret",
        "/models/file",
        "/models/empty",
        "/models/onnx/../../secret",
        "/models/%252e%252e",
        "/models/~root",
        "/models/$HOME",
    ),
    "DELETE": ("/models/..", "/models/%00", "/models/missing", "/models/%2e%2e%2fsecret", "/"),
    "POST": (
        "/predict?topk=0",
        "/predict?topk=-1",
        "/predict?topk=99999999999999999999",
        "/predict?topk=" + "9" * 5000,
        "/predict?topk=1e3",
        "/predict?topk=%D9%A3x",
        "/predict?topk=nan",
        "/predict?model=" + "x" * 5000,
        "/predict?model=%1b%5d0;x%07",
        "/predict?model=../../etc",
        "/explain?class_id=99",
        "/explain?class_id=-1",
        "/explain?class_id=" + "9" * 5000,
        "/explain?class_id=",
        "/explain",
        "/search",
        "/models/onnx",
    ),
    "TRACE": ("/live", "/predict"),
    "PATCH": ("/predict", "/models/onnx"),
    "HEAD": ("/predict",),
    "PROPFIND": ("/",),
}


@pytest.mark.parametrize(("method", "path"), [(method, path) for method in PATHS for path in PATHS[method]])
def test_paths_get_an_error_and_reveal_nothing(method: str, path: str, target: Target) -> None:
    body = target.image if method == "POST" else b""
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nX-API-Key: {KEY}\r\nContent-Type: image/png\r\n"
    head += f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    text = exchange(target.server.address, head.encode() + body)
    assert re.match(rb"HTTP/1\.1 4\d\d ", text), text[:500]
    assert b"root:" not in text
    assert str(target.folder.parent).encode() not in text
    assert re.search(rb"\r\nx-content-type-options: nosniff\r\n", text, re.IGNORECASE)
    assert not re.search(rb"\r\nset-cookie", text, re.IGNORECASE)
    assert not re.search(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]", text), text[:500]
    assert target.works()


HEADERS: tuple[dict[str, str], ...] = (
    {"Origin": "https://evil.example"},
    {"Origin": "null"},
    {"Origin": "http://localhost.evil.example"},
    {"Origin": "http://localhost@evil.example"},
    {"Origin": "file://"},
    {"Origin": ""},
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
    {"Sec-Fetch-Site": "Cross-Site"},
    {"Host": "evil.example"},
    {"Host": "localhost.evil.example"},
    {"Host": "127.0.0.1.evil.example"},
    {"Host": "evil.example:80@localhost"},
    {"Host": "localhost\t.evil.example"},
    {"Content-Type": "text/html"},
    {"Content-Type": "application/json"},
    {"Content-Type": "application/x-www-form-urlencoded"},
    {"Content-Type": "multipart/form-data"},
    {"Content-Type": "multipart/form-data; boundary="},
    {"Content-Type": "multipart/form-data; boundary=" + "b" * 3000},
    {"Content-Type": "multipart/form-data; boundary=b; charset=nonsense"},
    {"Content-Type": "multipart/form-data; boundary*=utf-8''b"},
    {"Content-Type": ";" * 5000},
)


@pytest.mark.parametrize("headers", HEADERS, ids=lambda headers: str(headers)[:60])
def test_headers_get_an_error(headers: dict[str, str], target: Target) -> None:
    answer = target.client.post("/predict", content=target.image, headers={**PNG, **headers})
    assert 400 <= answer.status_code < 500, answer.text
    assert target.works()


def test_pages_of_other_origins_are_not_allowed_by_a_preflight(target: Target) -> None:
    ask = {
        "Origin": "https://evil.example",
        "Access-Control-Request-Method": "PUT",
        "Access-Control-Request-Headers": "content-type",
        "Access-Control-Request-Private-Network": "true",
    }
    for path in ("/predict", "/models/onnx", "/"):
        answer = target.client.options(path, headers=ask)
        assert not [name for name in answer.headers if name.lower().startswith("access-control-")]
    answer = target.client.get("/models", headers=ask)
    assert not [name for name in answer.headers if name.lower().startswith("access-control-")]


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br", "zstd", "gzip, gzip"])
def test_compressed_bodies_are_not_decompressed(coding: str, target: Target) -> None:
    import gzip

    bomb = gzip.compress(bytes(200_000_000))
    answer = target.client.post("/predict", content=bomb, headers={**PNG, "Content-Encoding": coding})
    assert answer.status_code in (413, 415, 422)
    assert target.works()


def form(*parts: bytes) -> bytes:
    return b"".join(b"--b\r\n" + part + b"\r\n" for part in parts) + b"--b--\r\n"


FILE = b'Content-Disposition: form-data; name="a"; filename="%b"\r\n\r\n'
FORMS = {
    "nothing": b"",
    "no parts": form(),
    "many files": form(*[FILE % b"x" + b"no image"] * 400),
    "many fields": form(*[b'Content-Disposition: form-data; name="a"\r\n\r\nx'] * 4000),
    "no disposition": form(b"\r\nx"),
    "many headers": form(b"X: y\r\n" * 5000 + b"\r\nx"),
    "long header": form(b"X: " + b"y" * 100_000 + b"\r\n\r\nx"),
    "no end": form(FILE % b"x" + b"no image")[:-8],
    "path": form(FILE % b"../../../../tmp/file" + b"no image"),
    "control characters": form(FILE % b"\x1b]0;x\x07\0" + b"no image"),
    "long name": form(FILE % (b"x" * 50_000) + b"no image"),
    "nested": form(
        b'Content-Disposition: form-data; name="a"; filename="x"\r\n'
        b"Content-Type: multipart/mixed; boundary=b\r\n\r\n--b"
    ),
    "other transfer encoding": form(
        b'Content-Disposition: form-data; name="a"; filename="x"\r\n'
        b"Content-Transfer-Encoding: base64\r\n\r\nAAAA"
    ),
    "boundary in a line": b"--b--b--b\r\n" * 5000,
    "only boundaries": b"--b\r\n" * 50_000,
    "only blanks": b" " * 200_000,
}


@pytest.mark.parametrize("name", FORMS)
def test_forms_get_an_error(name: str, target: Target) -> None:
    headers = {"Content-Type": "multipart/form-data; boundary=b"}
    answer = target.client.post("/predict", content=FORMS[name], headers=headers)
    assert answer.status_code in (400, 413, 422), answer.text
    assert "\x1b" not in answer.text
    assert target.works()
