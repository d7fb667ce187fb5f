"""The nginx configuration of examples/, in front of a server."""

from __future__ import annotations

import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from certificates import write_certificate
from paths import ROOT
from running import Running, free_port, running
from runs import GUARD
from small_classifier import write_config

pytestmark = pytest.mark.hostile
CONFIG = ROOT / "examples" / "nginx.conf"
HEADERS = {"Content-Type": "image/png"}


@dataclass(frozen=True)
class Proxy:
    port: int
    behind: Running

    def client(self) -> httpx.Client:
        return httpx.Client(base_url=f"https://localhost:{self.port}", verify=False, timeout=GUARD)


@pytest.fixture(scope="module")
def proxy(tree: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    nginx = shutil.which("nginx") or shutil.which("/usr/sbin/nginx")
    if nginx is None:
        pytest.skip("needs nginx (apt-get install nginx)")
    folder = tmp_path_factory.mktemp("nginx")
    certificate, key = write_certificate(folder)
    port = free_port()
    config = write_config(folder / "config.yaml", tree)
    with running(folder, "-c", config, "--access-log") as server:
        address = urlsplit(server.address).netloc
        text = CONFIG.read_text()
        for before, after in {
            "/run/nginx.pid": f"{folder}/nginx.pid",
            "/var/log/nginx/error.log": f"{folder}/error.log",
            "127.0.0.1:8000": address,
            "listen 443 ssl": f"listen 127.0.0.1:{port} ssl",
            "/etc/ssl/models.example.crt": str(certificate),
            "/etc/ssl/private/models.example.key": str(key),
            "client_header_timeout 10s": "client_header_timeout 1s",
            "access_log off;": f"access_log off; client_body_temp_path {folder}/body;",
        }.items():
            assert text.count(before) == 1, before
            text = text.replace(before, after)
        (folder / "nginx.conf").write_text(text)
        command = [nginx, "-p", str(folder), "-c", str(folder / "nginx.conf"), "-g", "daemon off;"]
        with subprocess.Popen(command) as process:
            try:
                wait_for(port, process)
                yield Proxy(port, server)
            finally:
                process.terminate()


def wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    while process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except OSError:
            time.sleep(0.02)
        else:
            return
    raise AssertionError("nginx ended")


def test_requests_pass_the_proxy_with_the_address_of_their_client(proxy: Proxy, images: list[bytes]) -> None:
    with proxy.client() as client:
        answer = client.post("/predict", content=images[0], headers={**HEADERS, "X-Forwarded-For": "1.2.3.4"})
        page = client.post("/predict", content=images[0], headers={**HEADERS, "Origin": str(client.base_url)})
        other = client.post(
            "/predict", content=images[0], headers={**HEADERS, "Origin": "https://evil.example"}
        )
        assert [answer.status_code, page.status_code, other.status_code] == [200, 200, 403]
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert client.get("/metrics").status_code == 404
    assert proxy.behind.process.stderr is not None
    line = next(line for line in proxy.behind.process.stderr if "POST /predict" in line)
    assert "for 127.0.0.1" in line


def test_proxy_rejects_large_bodies(proxy: Proxy) -> None:
    with proxy.client() as client:
        assert client.post("/predict", content=bytes(33 << 20), headers=HEADERS).status_code == 413


def test_proxy_ends_slow_headers_and_handshakes(proxy: Proxy, images: list[bytes]) -> None:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with ExitStack() as stack:
        silent = [stack.enter_context(socket.create_connection(("127.0.0.1", proxy.port))) for _ in range(30)]
        slow = stack.enter_context(socket.create_connection(("127.0.0.1", proxy.port)))
        slow = stack.enter_context(context.wrap_socket(slow))
        slow.sendall(b"POST /predict HTTP/1.1\r\nHost: localhost\r\n")
        for connection in [slow, *silent]:
            connection.settimeout(GUARD)
            while connection.recv(1000):
                pass
    with proxy.client() as client:
        assert client.post("/predict", content=images[0], headers=HEADERS).status_code == 200


def test_proxy_gives_each_client_a_share(proxy: Proxy, images: list[bytes]) -> None:
    with ExitStack() as stack:
        clients = [stack.enter_context(proxy.client()) for _ in range(3)]
        answers = [clients[number % 3].get("/live").status_code for number in range(300)]
    assert set(answers) == {200, 503}
    time.sleep(1)
    with proxy.client() as client:
        assert client.post("/predict", content=images[0], headers=HEADERS).status_code == 200
