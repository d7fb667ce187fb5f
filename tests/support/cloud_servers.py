"""Serves object storage of each kind on this machine, behind a proxy that fails as tests ask for."""

from __future__ import annotations

import asyncio
import base64
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from fault_proxy import Answer, FaultProxy, fault_proxy
from running import free_port
from s3_server import BUCKET, s3_server

_ACCOUNT = "tester"
_KEY = base64.b64encode(b"key of a test").decode()


@dataclass(frozen=True)
class Cloud:
    """A storage with an empty bucket.

    Attributes:
        proxy: The proxy in front of its server.
        url: Address of a folder in the bucket.
        renew: Makes new credentials, which take the place of those that the proxy rejects as expired.
    """

    proxy: FaultProxy
    url: str
    renew: Callable[[], None]


def _azure_error(status: int, code: str, detail: str = "") -> Answer:
    detail = f"<AuthenticationErrorDetail>{detail}</AuthenticationErrorDetail>" if detail else ""
    content = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{code}</Message>{detail}</Error>"
    return Answer(status, content.encode(), {"x-ms-error-code": code, "Content-Type": "application/xml"})


def _google_error(status: int, reason: str) -> Answer:
    content = (
        f'{{"error": {{"code": {status}, "message": "{reason}", "errors": [{{"reason": "{reason}"}}]}}}}'
    )
    return Answer(status, content.encode(), {"Content-Type": "application/json"})


_AZURE_FAULTS = {
    "busy": _azure_error(503, "ServerBusy"),
    "reset": None,
    "internal": _azure_error(500, "InternalError"),
    "expired": _azure_error(403, "AuthenticationFailed", "Signature not valid in the specified time frame"),
    "denied": _azure_error(403, "AuthorizationFailure"),
}
_GOOGLE_FAULTS = {
    "busy": _google_error(429, "rateLimitExceeded"),
    "reset": None,
    "internal": _google_error(503, "backendError"),
    "expired": _google_error(401, "Invalid Credentials"),
    "denied": _google_error(403, "forbidden"),
}
FAULTS = tuple(_AZURE_FAULTS)


def _sleep_less(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shortens the pauses of the libraries' own retries: 15 s in that for Azure, which has no setting."""
    whole = asyncio.sleep

    async def sleep(delay: float, result: Any = None) -> Any:
        return await whole(min(delay, 0.001), result)

    monkeypatch.setattr(asyncio, "sleep", sleep)


@contextmanager
def _s3(monkeypatch: pytest.MonkeyPatch, home: Path) -> Iterator[Cloud]:
    credentials = home.with_name("credentials")

    def write(key: str) -> None:
        credentials.write_text(f"[default]\naws_access_key_id = {key}\naws_secret_access_key = secret\n")

    with s3_server(monkeypatch, home) as proxy:
        monkeypatch.delenv("AWS_ACCESS_KEY_ID")
        monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(credentials))
        write("EARLIER")
        yield Cloud(proxy, f"s3://{BUCKET}/pets", lambda: write("RENEWED"))


def azure_signature(permissions: str, hours: int, key: str = _KEY) -> str:
    """Returns a shared access signature for azurite.

    Args:
        permissions: Letters of the permissions, such as ``rl``.
        hours: Hours until it expires; negative if it has expired.
        key: Key of the account.
    """
    from azure.storage.blob import AccountSasPermissions, ResourceTypes, generate_account_sas

    signature: str = generate_account_sas(
        _ACCOUNT,
        key,
        ResourceTypes.from_string("sco"),
        AccountSasPermissions.from_string(permissions),
        datetime.now(timezone.utc) + timedelta(hours=hours),
        start=datetime.now(timezone.utc) - timedelta(days=2),
    )
    return signature


@contextmanager
def _azure(monkeypatch: pytest.MonkeyPatch, home: Path) -> Iterator[Cloud]:
    program = shutil.which("azurite-blob")
    if program is None:
        pytest.skip("azurite is not installed: npm install -g azurite")
    pytest.importorskip("adlfs")
    from azure.storage.blob import BlobServiceClient

    _sleep_less(monkeypatch)
    monkeypatch.setenv("AZURITE_ACCOUNTS", f"{_ACCOUNT}:{_KEY}")
    monkeypatch.setenv("PPCLS_HOME", str(home))
    port = free_port()
    options = ["--blobHost", "127.0.0.1", "--blobPort", str(port), "--inMemoryPersistence", "--silent"]
    options += ["--skipApiVersionCheck", "--disableTelemetry"]
    server = subprocess.Popen(
        [program, *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=home.parent
    )
    try:
        with fault_proxy("127.0.0.1", port, _AZURE_FAULTS) as proxy:
            endpoint = f"BlobEndpoint={proxy.url}/{_ACCOUNT};"
            direct = endpoint.replace(proxy.url, f"http://127.0.0.1:{port}")
            _wait_for(server, f"http://127.0.0.1:{port}/")
            key = f"DefaultEndpointsProtocol=http;AccountName={_ACCOUNT};AccountKey={_KEY};"
            with BlobServiceClient.from_connection_string(key + direct) as client:
                client.create_container(BUCKET)

            def write(name: str, hours: int) -> str:
                signature = azure_signature("rwdlac", hours)
                monkeypatch.setenv(
                    "AZURE_STORAGE_CONNECTION_STRING", f"{endpoint}SharedAccessSignature={signature}"
                )
                return name

            write("EARLIER", 1)
            yield Cloud(proxy, f"az://{BUCKET}/pets", lambda: write("RENEWED", 2))
    finally:
        server.kill()
        server.wait()


@contextmanager
def _google(monkeypatch: pytest.MonkeyPatch, home: Path) -> Iterator[Cloud]:
    emulator = pytest.importorskip("gcp_storage_emulator.server")
    monkeypatch.setenv("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")  # which the emulator does not have
    pytest.importorskip("gcsfs")
    _sleep_less(monkeypatch)
    monkeypatch.setenv("PPCLS_HOME", str(home))
    port = free_port()
    server = emulator.create_server("127.0.0.1", port, in_memory=True, default_bucket=BUCKET)
    server.start()
    try:
        with fault_proxy("127.0.0.1", port, _GOOGLE_FAULTS) as proxy:
            monkeypatch.setenv("STORAGE_EMULATOR_HOST", proxy.url)
            yield Cloud(proxy, f"gs://{BUCKET}/pets", lambda: None)
    finally:
        server.stop()


def _wait_for(server: subprocess.Popen[bytes], url: str) -> None:
    """Waits until a server answers, whatever it answers."""
    while True:
        assert server.poll() is None, f"the server has ended with exit code {server.returncode}"
        try:
            urllib.request.urlopen(url, timeout=5).close()
        except urllib.error.HTTPError:
            return
        except OSError:
            time.sleep(0.05)
        else:
            return


CLOUDS = {"s3": _s3, "azure": _azure, "google": _google}
