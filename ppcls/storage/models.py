"""Finds the models and weights that users name, and downloads those in object storage."""

from __future__ import annotations

from pathlib import Path

from ppcls.errors import UserError
from ppcls.files.urls import is_url, local_path
from ppcls.storage.objects import Objects
from ppcls.storage.run_copy import SAFE_NAME, RunCopy
from ppcls.weights.store import BEST, LATEST


def model_path(text: str) -> Path:
    """Returns the path of a model that a user named. A model in object storage is downloaded first.

    Raises:
        UserError: There is nothing at the address.
        StorageError: The storage can't be read.
    """
    return fetch_model(text) if is_url(text) else Path(text)


def weights_path(text: str) -> Path:
    """Returns the path of weights that a user named. Of a run in object storage, this is its best model.

    Raises:
        UserError: There is nothing at the address.
        StorageError: The storage can't be read.
    """
    path = model_path(text)
    links = (path / role for role in (BEST, LATEST)) if is_url(text) else ()
    return next((link for link in links if link.exists()), path)


def fetch_model(url: str) -> Path:
    """Downloads a model, and returns the path of its copy.

    Args:
        url: Address of a file, of a folder such as a bundle or an exported model, or of a run, of which the
            best model is downloaded.

    Raises:
        UserError: There is nothing at this address.
        StorageError: The storage can't be read.
    """
    objects = Objects(url)
    copy = local_path(url)
    copy.parent.mkdir(parents=True, exist_ok=True)
    if objects.is_object():
        copy.mkdir(exist_ok=True)
        file = copy / url.rstrip("/").rpartition("/")[2]  # keeps the suffix, which names the format
        objects.download("", file)
        return file
    run = RunCopy(url, copy)
    if (run.pull(roles=BEST) and (copy / BEST).exists()) or run.pull(roles=LATEST):
        return copy
    sizes = objects.sizes()
    if not sizes:
        raise UserError(f"{url}: nothing found at this address; expected a file, a model folder or a run")
    for name in sizes:
        if SAFE_NAME.fullmatch(name):
            objects.download(name, copy / name)
    return copy
