"""Serves an S3 bucket on this machine, behind a proxy that fails as tests ask for."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import botocore.session
import certifi
import pytest
from botocore.loaders import create_loader
from fault_proxy import Answer, FaultProxy, fault_proxy
from moto.server import ThreadedMotoServer

BUCKET = "bucket"


def _error(status: int, code: str) -> Answer:
    content = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{code}</Message></Error>"
    return Answer(status, content.encode())


S3_FAULTS = {
    "busy": _error(503, "SlowDown"),
    "reset": None,
    "internal": _error(500, "InternalError"),
    "expired": _error(400, "ExpiredToken"),
    "denied": _error(403, "AccessDenied"),
}


@contextmanager
def s3_server(monkeypatch: pytest.MonkeyPatch, home: Path) -> Iterator[FaultProxy]:
    """Serves an empty bucket within the block.

    Args:
        monkeypatch: Sets the address and the credentials of the server.
        home: Folder for copies of objects.
    """
    home.mkdir(parents=True, exist_ok=True)
    first, end, _ = Path(certifi.where()).read_text(encoding="utf-8").partition("-----END CERTIFICATE-----\n")
    (home / "certificates.pem").write_text(first + end, encoding="utf-8")
    for name, value in {
        # Each connection reads all known certificates, although it is one of HTTP. One is enough.
        "AWS_CA_BUNDLE": str(home / "certificates.pem"),
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_MAX_ATTEMPTS": "1",
        "PPCLS_HOME": str(home),
    }.items():
        monkeypatch.setenv(name, value)
    # Each connection would read botocore's descriptions of S3 again, which takes two thirds of its time.
    loader = create_loader()
    monkeypatch.setattr(botocore.session, "create_loader", lambda _path=None: loader)
    server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    try:
        with fault_proxy(host, port, S3_FAULTS) as proxy:
            connection = http.client.HTTPConnection(host, port, timeout=60)
            for method, path in (  # servers of a process share data
                ("POST", "/moto-api/reset"),
                ("PUT", f"/{BUCKET}"),
            ):
                connection.request(method, path)
                answer = connection.getresponse()
                answer.read()
                assert answer.status == 200, path
            monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
            yield proxy
    finally:
        server.stop()
