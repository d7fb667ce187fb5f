"""Checks the names of files and folders that users want to be written, before anything runs for long."""

from __future__ import annotations

from pathlib import Path

from ppcls.errors import UserError
from ppcls.files.object_errors import kind_of
from ppcls.files.urls import UrlPath, is_url

SPREADSHEETS = (".xlsx", ".xls", ".ods")
_COPY_TOOLS = {"s3": "aws s3 cp", "gs": "gcloud storage cp", "azure": "azcopy copy"}


def explain_address(address: str) -> str:
    """Returns why an address in object storage is no path, and how to copy files from and to it."""
    tool = _COPY_TOOLS.get(kind_of(address))
    example = "" if tool is None else f", for example with {tool}"
    return (
        f"expected a path on this machine, got the address '{address}'; copy the files between "
        f"this machine and object storage{example}"
    )


def local_output(name: str, path: str | Path) -> Path:
    """Returns the path of a file or folder that is to be written.

    Args:
        name: Name of the option or argument, for the message.
        path: Value of the option or argument.

    Raises:
        UserError: It is an address in object storage. Its path would be that of a local folder named s3: or
            similar.
    """
    text = str(UrlPath(path) if isinstance(path, Path) else path)
    if is_url(text):
        raise UserError(f"{name}: {explain_address(text)}")
    return Path(path)


def check_suffix(name: str, path: Path, *suffixes: str) -> None:
    """Checks that the suffix of a file to write is that of a format in which it can be written.

    Args:
        name: Name of the option or argument, for the message.
        path: Path of the file. Devices such as ``/dev/stdout`` need no suffix.
        suffixes: Suffixes that are accepted, in lower case.

    Raises:
        UserError: The suffix is another one.
    """
    suffix = path.suffix.lower()
    if suffix in suffixes or str(path).startswith("/dev/"):
        return
    *others, last = suffixes
    expected = f"{', '.join(others)} or {last}" if others else last
    hint = ""
    if suffix in SPREADSHEETS and ".csv" in suffixes:
        hint = f"; use {path.with_suffix('.csv')}, which spreadsheets such as Excel open"
    raise UserError(f"{name} {path}: expected a file name that ends in {expected}{hint}")
