"""Clients that try to occupy the server, to hide requests, or to reach it from web pages."""

from __future__ import annotations

import io
import select
import signal
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import psutil
import pytest
from certificates import write_certificate
from PIL import Image
from running import Running, running
from runs import GUARD

pytestmark = pytest.mark.hostile


@pytest.fixture(scope="module")
def strict(exported: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    options = ["--timeout", "2", "--max-connections", "40", "--allowed-hosts", "models.example"]
    options += ["--model", exported]
    with running(tmp_path_factory.mktemp("cwd"), *options) as started:
        yield started


def connect(server: Running) -> socket.socket:
    where = urlsplit(server.address)
    return socket.create_connection((where.hostname, where.port), timeout=GUARD)


def answer(server: Running, request: bytes) -> bytes:
    with connect(server) as connection:
        connection.sendall(request)
        parts = []
        try:
            while part := connection.recv(1000):
                parts.append(part)
        except ConnectionResetError:
            pass
        return b"".join(parts)


def test_slow_headers_end_after_the_timeout(strict: Running) -> None:
    with connect(strict) as connection:
        connection.sendall(b"GET /live HTTP/1.1\r\nHost: localhost\r\n\r\nGET /live HTTP/1.1\r\nHost:")
        with suppress(ConnectionError):
            while connection.recv(1000):
                connection.sendall(b"x")


def wait_for_end(connection: socket.socket) -> bool:
    """Returns whether the server ends the connection, without reading what it sent."""
    poll = select.poll()
    poll.register(connection, 0)  # errors and hang-ups are always reported
    return bool(poll.poll(GUARD * 1000))


def send_until_error(connection: socket.socket, data: bytes, pause: float = 0.0) -> OSError | None:
    """Sends data again and again until there is an error."""
    end = time.monotonic() + GUARD
    while time.monotonic() < end:
        try:
            connection.sendall(data)
        except OSError as error:
            return error
        time.sleep(pause)
    return None


def test_unread_responses_end_the_connection(strict: Running) -> None:
    where = urlsplit(strict.address)
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect((where.hostname, where.port))
        connection.settimeout(1)
        request = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
        send_until_error(connection, request * 100)
        assert wait_for_end(connection)


def test_body_that_never_ends_after_its_answer_ends_the_connection(strict: Running) -> None:
    head = b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\n"
    with connect(strict) as connection:
        connection.sendall(head + b"Content-Length: 1000000\r\n\r\n")
        assert connection.recv(1000).startswith(b"HTTP/1.1 415 ")
        assert isinstance(send_until_error(connection, b"x", pause=0.5), ConnectionError)


def is_healthy(server: Running) -> bool:
    with suppress(httpx.TransportError), server.client() as client:
        return client.get("/health").status_code == 200
    return False


def test_clients_at_the_connection_limit_do_not_block_others(strict: Running) -> None:
    with ExitStack() as stack:
        for _ in range(300):
            stack.enter_context(connect(strict)).sendall(b"GET /health HTTP/1.1\r\n")
        while not is_healthy(strict):  # until the timeout of the headers has ended the connections
            time.sleep(0.1)


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:8000", 200),
        ("127.0.0.1", 200),
        ("[::1]:8000", 200),
        ("Models.Example", 200),
        ("attacker.example", 400),
        ("localhost.attacker.example", 400),
        ("[", 400),
    ],
)
def test_host_header_names_the_server(strict: Running, host: str, status: int) -> None:
    text = answer(strict, f"GET /live HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
    assert text.startswith(f"HTTP/1.1 {status} ".encode()), text


def test_image_of_thousands_of_scans_is_rejected_before_decoding(exported: Path, tmp_path: Path) -> None:
    file = io.BytesIO()
    Image.new("L", (9990, 9990)).save(file, "JPEG", progressive=True)
    whole = file.getvalue()
    image = whole[:-2] + whole[whole.rindex(b"\xff\xda") : -2] * 4000 + whole[-2:]
    with running(tmp_path, "--model", exported) as server, server.client() as client:
        answer = client.post("/predict", content=image, headers={"Content-Type": "image/jpeg"})
        assert answer.status_code == 422
        assert "the JPEG has 4006 scans of 9990x9990 pixels" in answer.json()["error"]


def test_bare_line_feeds_are_rejected(strict: Running) -> None:
    for request in (
        b"GET /live HTTP/1.1\nHost: localhost\n\n",
        b"GET /live HTTP/1.1\r\nHost: localhost\nConnection: close\r\n\r\n",
        b"GET /live HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\n",
    ):
        text = answer(strict, request)
        assert text.startswith(b"HTTP/1.1 400 "), request
        assert b"\r\nx-content-type-options: nosniff\r\n" in text.lower()


def test_bare_line_feeds_after_the_rest_of_an_answered_request_are_rejected(strict: Running) -> None:
    head = b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\n"
    with connect(strict) as connection:
        connection.sendall(head + b"Content-Length: 4\r\n\r\n")
        received = b""
        while not received.endswith(b"}"):
            received += connection.recv(1000)
        assert received.startswith(b"HTTP/1.1 415 ")
        connection.sendall(b"rest" + b"GET /live HTTP/1.1\nHost: localhost\n\n")
        assert connection.recv(1000).startswith(b"HTTP/1.1 400 ")


def test_line_feeds_in_a_body_are_allowed(strict: Running) -> None:
    body = b"\n\nGET / HTTP/1.1\n\n"
    head = b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/png\r\nConnection: close\r\n"
    text = answer(strict, head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
    assert text.startswith(b"HTTP/1.1 422 "), text


def test_connections_without_tls_handshake_neither_block_others_nor_fill_the_log(
    exported: Path, tmp_path: Path
) -> None:
    certificate, key = write_certificate(tmp_path)
    options = ["--max-connections", "20", "--tls-cert", certificate, "--tls-key", key, "--model", exported]
    with running(tmp_path, *options) as server, ExitStack() as stack:
        process = psutil.Process(server.process.pid)
        before = process.num_fds()
        for _ in range(300):
            stack.enter_context(connect(server))
        with pytest.raises(httpx.HTTPError), server.client() as client:
            client.get("/live")  # this address has its share of connections
        assert process.num_fds() <= before + 12
        while process.num_fds() > before + 1:  # until the handshakes time out
            time.sleep(0.1)
        with server.client() as client:
            assert client.get("/live").status_code == 200
        server.process.terminate()
        _, errors = server.process.communicate(timeout=GUARD)
        assert server.process.returncode == 0
        (line,) = errors.splitlines()
        assert "more than 10 connections from one address: new connections are closed" in line


@pytest.mark.parametrize("log_format", [pytest.param("text", marks=pytest.mark.slow), "json"])
def test_standard_error_that_nobody_reads_stops_neither_requests_nor_sigterm(
    log_format: str, exported: Path, tmp_path: Path
) -> None:
    capacity = 65_536  # of a pipe
    with running(tmp_path, "--model", exported, "--access-log", "--log-format", log_format) as server:
        with server.client() as client:
            for _ in range(2 * capacity // 1000):
                assert client.get("/live", params={"long": "x" * 1000}).status_code == 200
        server.process.terminate()
        assert server.process.wait(GUARD) == 0


def test_one_client_does_not_block_the_others(exported: Path, tmp_path: Path, images: list[bytes]) -> None:
    """Eight requests of one client, each with 32 images of 100 million pixels in 400 KB."""
    file = io.BytesIO()
    Image.new("1", (10_000, 9990)).save(file, "PNG")
    bombs = [("image", ("x.png", file.getvalue()))] * 32
    headers = {"Content-Type": "image/png"}

    def attack(address: str) -> int:
        forwarded = {"X-Forwarded-For": "198.51.100.1"}
        return httpx.post(f"{address}/predict", files=bombs, headers=forwarded, timeout=GUARD).status_code

    with running(tmp_path, "--model", exported, "--timeout", "8") as server, ThreadPoolExecutor(8) as pool:
        attacks = [pool.submit(attack, server.address) for _ in range(8)]
        answers = []
        with server.client() as client:
            while not all(done.done() for done in attacks):
                answers.append(client.post("/predict", content=images[0], headers=headers).status_code)
                time.sleep(0.2)
        assert {done.result() for done in attacks} <= {503, 504}
        assert len(answers) > 10
        assert set(answers) == {200}


@pytest.mark.slow
def test_sigterm_ends_the_server_although_its_threads_hang(exported: Path, tmp_path: Path) -> None:
    hang = "import time\nfrom ppcls.serve import preparation\n"
    hang += "preparation.read_header = lambda *_: time.sleep(900)"
    with running(tmp_path, "--model", exported, "--timeout", "1", before=hang) as server:
        with server.client() as client:
            headers = {"Content-Type": "image/png"}
            assert client.post("/predict", content=b"image", headers=headers).status_code == 504
        with pytest.raises(httpx.HTTPError), httpx.Client(timeout=0.2) as client:
            client.post(f"{server.address}/predict", content=b"image", headers=headers)
        server.process.send_signal(signal.SIGTERM)
        _, errors = server.process.communicate(timeout=GUARD)
        assert server.process.returncode == 1
        assert (
            "error: threads did not end within 5 s after the signal; the process exits nevertheless" in errors
        )
