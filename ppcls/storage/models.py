"""Finds the models and weights that users name, and downloads those in object storage."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ppcls.errors import UserError
from ppcls.files.objects import ObjectInfo, Objects, StorageError
from ppcls.files.urls import is_url, model_copy, note_address
from ppcls.storage.run_copy import SAFE_NAME, RunCopy
from ppcls.weights.download import lock_file
from ppcls.weights.store import BEST, LATEST, newest

_DOWNLOADS = 5  # attempts, if the objects of a model change meanwhile
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
    copy = model_copy(url)
    copy.parent.mkdir(parents=True, exist_ok=True)
    missing = UserError(f"{url}: nothing found at this address; expected a file, a model folder or a run")
    is_object = objects.is_object()
    # The copy of an object is a folder that contains it.
    note_address(copy, url.rstrip("/").rpartition("/")[0] if is_object else url)
    if is_object:
        name = url.rstrip("/").rpartition("/")[2]  # keeps the suffix, which names the format
        if not (files := _download_unchanged(objects, copy, {"": name})):
            raise missing
        return files[0]
    run = RunCopy(url, copy)
    if (run.pull(roles=BEST) and (copy / BEST).exists()) or run.pull(roles=LATEST):
        return copy
    if not (files := _download_unchanged(objects, copy)):
        raise missing
    for file in [path for path in copy.rglob("*") if path.is_file()]:
        if file not in files:
            file.unlink()  # of an earlier model at this address
    return copy


def _download_unchanged(objects: Objects, folder: Path, names: Mapping[str, str] | None = None) -> list[Path]:
    """Downloads objects that are not replaced meanwhile, and returns their files.

    Libraries read large objects in parts, and a model consists of several objects. If somebody uploads
    another model during the download, the files would be a mixture of both.

    Args:
        objects: Address of the model.
        folder: Folder for the files.
        names: Name of the file of each object; None for all objects below the address.

    Raises:
        StorageError: The objects changed during each attempt.
    """

    def read_infos() -> dict[str, ObjectInfo]:
        if names is None:
            return {name: info for name, info in objects.infos().items() if SAFE_NAME.fullmatch(name)}
        try:
            return {name: objects.info(name) for name in names}
        except FileNotFoundError:
            return {}

    with lock_file(folder.with_name(f".{folder.name}.files.lock")):
        before = read_infos()
        for _ in range(_DOWNLOADS):
            files = [folder / (name if names is None else names[name]) for name in before]
            try:
                for name, file in zip(before, files, strict=True):
                    objects.download(name, file)
            except FileNotFoundError:
                files = []  # removed after it was listed
            after = read_infos()
            if (files and after == before) or not before:
                return files
            before = after
    raise StorageError(
        f"{objects.url}: the objects changed during each of {_DOWNLOADS} downloads; try again when the "
        "upload of the model is finished"
    )
