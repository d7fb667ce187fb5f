"""A proxy in front of a server of object storage on this machine, which fails as tests ask for."""

from __future__ import annotations

import http.client
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Answer:
    """An answer of a server that reports an error.

    Attributes:
        status: Status code.
        content: Body.
        headers: Headers besides the length.
    """

    status: int
    content: bytes
    headers: Mapping[str, str] = field(default_factory=dict)


class FaultProxy:
    """The address of the proxy, and what fails.

    Attributes:
        url: Address.
        count: Number of requests so far.
        served: Method and path of each request that did not fail, without the query.
        delay: Seconds before each answer.
        faults: Answer of each fault of this kind of server, by its name; None closes the connection.
        fault: Function of the method, the path and the number of a request. It returns None to serve the
            request, or the name of a fault.
        expired: Text in the headers or in the query of requests whose credentials have expired.
        victim: Process to kill at a request; None for no kill.
        kill_at: Number of this request.
        kill_after: Whether the server has served the request before the kill.
    """

    def __init__(self, url: str, faults: Mapping[str, Answer | None]) -> None:
        self.url = url
        self.count = 0
        self.served: list[tuple[str, str]] = []
        self.delay = 0.0
        self.faults = faults
        self.fault: Callable[[str, str, int], str | None] = lambda method, path, number: None
        self.expired: str | None = None
        self.victim: int | None = None
        self.kill_at = 0
        self.kill_after = False

    def kill(self, number: int, after: bool) -> bool:
        """Kills the victim at its request, and returns whether it did."""
        if self.victim is None or (number, after) != (self.kill_at, self.kill_after):
            return False
        with suppress(ProcessLookupError):
            os.kill(self.victim, signal.SIGKILL)
        return True


@contextmanager
def fault_proxy(host: str, port: int, faults: Mapping[str, Answer | None]) -> Iterator[FaultProxy]:
    """Serves a proxy within the block.

    Args:
        host: Host of the server.
        port: Port of the server.
        faults: See `FaultProxy`. ``expired`` must be one of them.
    """

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_any(self) -> None:
            proxy.count += 1
            number = proxy.count
            body = self._read_body()
            fault = proxy.fault(self.command, self.path, number)
            if proxy.expired is not None and proxy.expired in f"{self.path} {self.headers}":
                fault = "expired"
            if proxy.kill(number, after=False):
                self.close_connection = True
                return
            if fault is not None:
                answer = proxy.faults[fault]
                if answer is None:
                    self.close_connection = True
                else:
                    self._send(answer.status, list(answer.headers.items()), answer.content)
                return
            proxy.served.append((self.command, self.path.partition("?")[0]))
            time.sleep(proxy.delay)
            connection = http.client.HTTPConnection(host, port, timeout=60)
            headers = {name: value for name, value in self.headers.items() if name != "Transfer-Encoding"}
            connection.request(self.command, self.path, body, headers)
            reply = connection.getresponse()
            content = reply.read()
            connection.close()
            if proxy.kill(number, after=True):
                self.close_connection = True
                return
            size = reply.getheader("Content-Length") if self.command == "HEAD" else None
            self._send(reply.status, reply.getheaders(), content, size)

        def _read_body(self) -> bytes:
            if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
                return self.rfile.read(int(self.headers.get("Content-Length") or 0))
            body = b""
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return body

        def _send(
            self, status: int, headers: list[tuple[str, str]], content: bytes, size: str | None = None
        ) -> None:
            self.send_response(status)
            for name, value in headers:
                if name.lower() not in ("transfer-encoding", "connection", "content-length", "keep-alive"):
                    self.send_header(name, value)
            self.send_header("Content-Length", size or str(len(content)))
            self.end_headers()
            with suppress(BrokenPipeError, ConnectionResetError):  # the client was killed
                self.wfile.write(b"" if self.command == "HEAD" else content)

        def handle_one_request(self) -> None:
            try:
                super().handle_one_request()
            except ConnectionError:  # the client ended, and the server would print a traceback
                self.close_connection = True

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = do_PATCH = handle_any

        def log_message(self, *_: Any) -> None:
            pass

    front = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    front.daemon_threads = True
    proxy = FaultProxy(f"http://127.0.0.1:{front.server_address[1]}", faults)
    threading.Thread(target=front.serve_forever, daemon=True).start()
    try:
        yield proxy
    finally:
        front.shutdown()
        front.server_close()
