"""Checks the host, the API key and the body length of each request before the application receives it."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterable, Sequence
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from fastapi.responses import JSONResponse, Response
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ppcls.errors import UserError
from ppcls.files import escape_controls

_SHORTEST_KEY = 16  # minimum length of a key in characters
_SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
_OTHER_SITES = ("cross-site", "same-site")  # values of Sec-Fetch-Site for pages of another origin
_NO_HOST = re.compile(r"[^\w.:\[\]-]", re.ASCII)
_WITHOUT_KEY = ("/", "/docs", "/live", "/ready")


class EscapedJSONResponse(JSONResponse):
    r"""JSON whose texts contain no characters that control a terminal, which shows responses to curl.

    They are written as ``\u202e``, so that a program reads the same texts.
    """

    def render(self, content: Any) -> bytes:
        """Returns the body."""
        return escape_controls(bytes(super().render(content)).decode()).encode()


def error_response(
    status: int,
    reason: str,
    images: dict[int, str] | None = None,
    headers: dict[str, str] | None = None,
) -> Response:
    """Returns the response to a failed request.

    Args:
        status: HTTP status.
        reason: Explanation for the client.
        images: Errors of single images, keyed by the index of the image in the request.
        headers: Headers of the response.
    """
    tree: dict[str, Any] = {"error": reason}
    if images:
        tree["images"] = [{"image": index, "reason": text} for index, text in images.items()]
    return EscapedJSONResponse(tree, status_code=status, headers=headers)


class RejectAmbiguousLength:
    """Rejects requests with both Content-Length and Transfer-Encoding, and closes their connection.

    Proxies disagree on the end of such a request, so attackers could hide a second request in it (request
    smuggling, RFC 9112).
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes a request to the application, or responds with status 400."""
        names = {name for name, _ in scope.get("headers", ())}
        app = self._app
        if {b"content-length", b"transfer-encoding"} <= names:
            reason = "expected either Content-Length or Transfer-Encoding, got both"
            app = error_response(400, reason, headers={"Connection": "close"})
        await app(scope, receive, send)


class AllowedHosts:
    """Rejects requests whose header ``Host`` is not a name of this server, to prevent DNS rebinding.

    In this attack, the host name of a malicious web page resolves to the address of this server. IP addresses
    are always allowed, because they are not resolved.

    Args:
        app: Application.
        names: Host names of the server; ``*`` allows any name.
    """

    def __init__(self, app: ASGIApp, names: Iterable[str]) -> None:
        self._app = app
        self._names = {name.lower() for name in names}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes a request to the application, or responds with status 400."""
        app = self._app
        if scope["type"] == "http" and not self._allows(Headers(scope=scope).get("host", "")):
            reason = "the header Host is not a name of this server; add the name with --allowed-hosts"
            app = error_response(400, reason, headers={"Connection": "close"})
        await app(scope, receive, send)

    def _allows(self, host: str) -> bool:
        if _NO_HOST.search(host):  # a user name or a path, which a parser of URLs would skip
            return False
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        if not host or name in self._names or "*" in self._names:
            return True
        try:
            ip_address(name)
        except ValueError:
            return False
        return True


class SameOrigin:
    """Rejects requests that a web page of another origin makes its visitor's browser send.

    Browsers send forms to any server without asking it, but with the header ``Origin`` or
    ``Sec-Fetch-Site``. Other clients do not send these headers.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes a request to the application, or responds with status 403."""
        app = self._app
        if scope["type"] == "http" and scope["method"] not in _SAFE_METHODS:
            headers = Headers(scope=scope)
            origin = headers.get("origin")
            host = headers.get("host", "")
            is_other = origin is not None and origin.partition("://")[2].lower() != host.lower()
            if is_other or headers.get("sec-fetch-site", "none").lower() in _OTHER_SITES:
                reason = "requests of web pages of another origin are rejected"
                app = error_response(403, reason, headers={"Connection": "close"})
        await app(scope, receive, send)


class NoSniffing:
    """Adds a header to each response that forbids browsers to guess another content type."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes a request to the application."""

        async def send_with_header(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["X-Content-Type-Options"] = "nosniff"
            await send(message)

        await self._app(scope, receive, send_with_header)


class ApiKeys:
    """Rejects requests without a valid ``Authorization: Bearer KEY`` or ``X-API-Key: KEY``.

    The pages ``/`` and ``/docs``, ``/live`` and ``/ready`` need no key.

    Args:
        app: Application.
        keys: Valid keys.
    """

    def __init__(self, app: ASGIApp, keys: Sequence[str]) -> None:
        self._app = app
        self._digests = [_digest(key) for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes a request to the application, or responds with status 401."""
        app = self._app
        if scope["type"] == "http" and scope["path"] not in _WITHOUT_KEY:
            headers = Headers(scope=scope)
            kind, _, token = headers.get("authorization", "").partition(" ")
            key = token if kind.lower() == "bearer" else headers.get("x-api-key", "")
            if not self._accepts(key.strip()):
                reason = "expected a valid API key in the header Authorization: Bearer KEY or X-API-Key: KEY"
                app = error_response(401, reason, headers={"WWW-Authenticate": "Bearer"})
        await app(scope, receive, send)

    def _accepts(self, key: str) -> bool:
        """Returns whether a key is valid. All digests are compared, to hide which one matches."""
        digest = _digest(key)
        return sum(hmac.compare_digest(digest, valid) for valid in self._digests) > 0


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()


def read_keys(file: Path) -> list[str]:
    """Returns the API keys in a file, one per line. Empty lines and lines that start with ``#`` are ignored.

    Raises:
        UserError: The file cannot be read, contains no key, or contains a key that is too short.
    """
    try:
        lines = [line.strip() for line in file.read_text(encoding="ascii").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "expected ASCII text"
        raise UserError(f"--api-key-file {file}: cannot be read: {reason}") from None
    keys = [line for line in lines if line and not line.startswith("#")]
    if not keys or min(map(len, keys)) < _SHORTEST_KEY:
        actual = "no key" if not keys else f"a key of {min(map(len, keys))}"
        raise UserError(
            f"--api-key-file {file}: expected one key per line, of at least {_SHORTEST_KEY} characters, "
            f"found {actual}; `openssl rand -hex 32` prints a good key"
        )
    return keys
