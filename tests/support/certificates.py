"""Certificates for tests of TLS."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest


def write_certificate(folder: Path) -> tuple[Path, Path]:
    """Writes a certificate for localhost, and returns its file and the file of its key.

    Skips the test if openssl is not installed.
    """
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl")
    certificate = folder / "server.crt"
    key = folder / "server.key"
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-days",
        "2",
        "-subj",
        "/CN=localhost",
    ]
    subprocess.run([*command, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    return certificate, key
