"""Downloads weights from the Hugging Face hub with the optional package ``huggingface_hub``."""

from __future__ import annotations

import os
from pathlib import Path

from ppcls.errors import TryAgainError, UserError
from ppcls.weights.download import OFFLINE

PREFIX = "hf-hub:"
_FILE = "model.safetensors"


def fetch_from_hub(name: str, file: str = _FILE) -> Path:
    """Returns the path of the local copy of a model's file. Downloads the file if it is missing.

    The package ``huggingface_hub`` stores the copies in its cache (``HF_HOME``). It reads its own settings,
    such as ``HF_ENDPOINT``, ``HF_TOKEN`` and proxies.

    Args:
        name: Name such as ``hf-hub:timm/resnet50.a1_in1k``. A revision may follow after ``@``.
        file: Name of the file; by default the file of weights.

    Raises:
        UserError: The package is not installed, or the file can't be downloaded.
    """
    try:
        import huggingface_hub
        from huggingface_hub.errors import (
            EntryNotFoundError,
            HfHubHTTPError,
            HFValidationError,
            LocalEntryNotFoundError,
        )
    except ModuleNotFoundError:
        raise UserError(
            f"{name}: the package huggingface_hub is missing; run `pip install huggingface_hub`"
        ) from None
    model, _, revision = name.removeprefix(PREFIX).partition("@")
    offline = os.environ.get(OFFLINE, "0") not in ("", "0")
    try:
        path = huggingface_hub.hf_hub_download(
            model, file, revision=revision or None, local_files_only=offline
        )
    except LocalEntryNotFoundError as error:
        reason = f"{OFFLINE} forbids downloads" if offline else _first_line(error.__cause__ or error)
        kind = UserError if offline else TryAgainError
        raise kind(f"{name}: not downloaded yet: {reason}") from None
    except EntryNotFoundError:
        raise UserError(
            f"{name}: this model has no file {file}; download its file of weights, such as "
            "pytorch_model.bin, and set the path of that file"
        ) from None
    except HFValidationError as error:
        raise UserError(f"{name}: expected hf-hub:OWNER/MODEL: {_first_line(error)}") from None
    except (HfHubHTTPError, OSError) as error:
        raise TryAgainError(f"{name}: the download failed: {_first_line(error)}") from None
    return Path(path)


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), "") or type(error).__name__
