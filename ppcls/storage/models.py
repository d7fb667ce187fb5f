"""Finds the models and weights that users name, and downloads those in object storage.

A run that trains on this machine has a copy of its own at `ppcls.files.urls.local_path`. Its last files may
not be uploaded yet, so a download for a prediction must never write to that copy.
"""

from __future__ import annotations

from pathlib import Path

from ppcls.errors import UserError
from ppcls.files.objects import Objects
from ppcls.files.urls import is_url, local_path
from ppcls.storage.run_copy import SAFE_NAME, RunCopy
from ppcls.weights.store import BEST, LATEST, newest

_WEIGHTS = "model.safetensors"  # a constant of `ppcls.weights.files`, which imports NumPy


def model_path(text: str) -> Path:
    """Returns the path of a model that a user named. A model in object storage is downloaded first.

    Raises:
        UserError: There is nothing at the address.
        StorageError: The storage can't be read.
    """
    if text.lower().startswith(("http://", "https://")):
        raise UserError(
            f"{text}: not downloaded, because it is a web address; download the file, and name it"
        )
    return fetch_model(text) if is_url(text) else Path(text)


def weights_path(text: str) -> Path:
    """Returns the path of weights that a user named. Of the folder of a run, this is its best model.

    Raises:
        UserError: There is nothing at the address.
        StorageError: The storage can't be read.
    """
    path = model_path(text)
    if not path.is_dir() or (path / _WEIGHTS).is_file():
        return path
    checkpoints = (newest(role, path, None) for role in (BEST, LATEST))
    return next((checkpoint for checkpoint in checkpoints if checkpoint is not None), path)


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
    run_folder = local_path(url)
    copy = run_folder.with_name(f"{run_folder.name}-model")
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
    names = [name for name in sizes if SAFE_NAME.fullmatch(name)]
    for name in names:
        objects.download(name, copy / name)
    for file in [path for path in copy.rglob("*") if path.is_file()]:
        if file.relative_to(copy).as_posix() not in names:
            file.unlink()  # of an earlier model at this address
    return copy
