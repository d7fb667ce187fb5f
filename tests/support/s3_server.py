"""Serves an S3 bucket on this machine, behind a proxy that fails as tests ask for."""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from moto.server import ThreadedMotoServer

BUCKET = "bucket"
_ERROR = "<?xml version='1.0'?><Error><Code>{0}</Code><Message>{0}</Message></Error>"


class S3Proxy:
    """The address of the bucket, and what fails.

    Attributes:
        url: Address for ``AWS_ENDPOINT_URL``.
        count: Number of requests so far.
        served: Method and path of each request that did not fail, without the query.
        delay: Seconds before each answer.
        fault: Function of the method, the path and the number of a request. It returns None to serve the
            request, ``reset`` to close the connection, or the code of an error of S3, such as ``SlowDown``.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.count = 0
        self.served: list[tuple[str, str]] = []
        self.delay = 0.0
        self.fault: Callable[[str, str, int], str | None] = lambda method, path, number: None


_STATUS = {"SlowDown": 503, "InternalError": 500, "ExpiredToken": 400, "AccessDenied": 403}


@contextmanager
def s3_server(monkeypatch: pytest.MonkeyPatch, home: Path) -> Iterator[S3Proxy]:
    """Serves an empty bucket within the block.

    Args:
        monkeypatch: Sets the address and the credentials of the server.
        home: Folder for copies of objects.
    """
    for name, value in {
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_MAX_ATTEMPTS": "1",
        "PPCLS_HOME": str(home),
    }.items():
        monkeypatch.setenv(name, value)
    server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_any(self) -> None:
            proxy.count += 1
            length = int(self.headers.get("Content-Length") or 0)
            body = self.rfile.read(length)
            fault = proxy.fault(self.command, self.path, proxy.count)
            if fault == "reset":
                self.close_connection = True
                return
            if fault is not None:
                content = _ERROR.format(fault).encode()
                self.send_response(_STATUS[fault])
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(b"" if self.command == "HEAD" else content)
                return
            proxy.served.append((self.command, self.path.partition("?")[0]))
            time.sleep(proxy.delay)
            connection = http.client.HTTPConnection(host, port, timeout=60)
            connection.request(self.command, self.path, body, dict(self.headers))
            answer = connection.getresponse()
            content = answer.read()
            self.send_response(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in ("transfer-encoding", "connection", "content-length"):
                    self.send_header(name, value)
            size = answer.getheader("Content-Length") if self.command == "HEAD" else str(len(content))
            self.send_header("Content-Length", size or "0")
            self.end_headers()
            self.wfile.write(content)
            connection.close()

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = handle_any

        def log_message(self, *_: Any) -> None:
            pass

    front = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    front.daemon_threads = True
    proxy = S3Proxy(f"http://127.0.0.1:{front.server_address[1]}")
    threading.Thread(target=front.serve_forever, daemon=True).start()
    connection = http.client.HTTPConnection(host, port, timeout=60)
    for method, path in (
        ("POST", "/moto-api/reset"),
        ("PUT", f"/{BUCKET}"),
    ):  # servers of a process share data
        connection.request(method, path)
        answer = connection.getresponse()
        answer.read()
        assert answer.status == 200, path
    monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
    try:
        yield proxy
    finally:
        front.shutdown()
        front.server_close()
        server.stop()
