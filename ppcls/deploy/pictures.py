"""Reads images in the forms in which notebooks have them: paths, patterns, tables, addresses, PIL, arrays."""

from __future__ import annotations

import glob
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from ppcls.config.base.problems import show
from ppcls.data.images.header import check_size
from ppcls.data.images.paths import find_images
from ppcls.errors import DecodeError, UserError

Picture = str | os.PathLike[str] | bytes | Image.Image | NDArray[Any]
_DOWNLOAD_SECONDS = 300  # limit for one image, so that a server that sends byte by byte can't hold the caller
_CHANNELS = (1, 3, 4)  # grey, RGB, RGBA
_SCHEMES = ("http://", "https://")
_PATH_COLUMNS = ("path", "image", "file", "filename", "file_name", "filepath", "image_path", "img", "url")


def is_single(images: Any) -> bool:
    """Returns whether an argument is one image, and not several images, a folder or a pattern."""
    if isinstance(images, (str, os.PathLike)):
        return is_url(images) or not (_is_folder(images) or _is_pattern(images))
    if isinstance(images, (bytes, bytearray, Image.Image)) or _is_file(images):
        return True
    return _is_array(images) and len(images.shape) <= 3


def list_pictures(
    images: Picture | Iterable[Picture], report: Callable[[str], None] = lambda _line: None
) -> list[Any]:
    """Returns the single images of an argument.

    Folders and patterns such as ``photos/**/*.jpg`` are replaced by the paths of their images, and a table
    (a DataFrame) by its column of paths.

    Args:
        images: See `ppcls.classifier.Classifier.predict`.
        report: Function that is called with a line about skipped pictures; see `find_images`.

    Raises:
        UserError: A folder or pattern has no images, or a table has no column of paths.
    """
    items: Sequence[Any]
    if isinstance(images, (str, os.PathLike)) or is_single(images):
        items = [images]
    elif hasattr(images, "columns"):
        items = _paths_of_table(images)
    elif not isinstance(images, Iterable) or isinstance(images, Mapping):
        raise UserError(
            "images: expected an image (a path, bytes, a PIL image or an array), several images, a folder or "
            f"a table, got {show(images)}"
        )
    else:
        items = list(images)
    pictures: list[Any] = []
    for item in items:
        if isinstance(item, (str, os.PathLike)) and not is_single(item):
            pictures += find_images([Path(item)], report)
        else:
            pictures.append(item)
    return pictures


def is_url(picture: Any) -> bool:
    """Returns whether an image is the address of a file on the web."""
    return isinstance(picture, str) and picture.lower().startswith(_SCHEMES)


def _is_folder(path: str | os.PathLike[str]) -> bool:
    return Path(path).is_dir()


def _is_pattern(path: str | os.PathLike[str]) -> bool:
    return glob.has_magic(os.fspath(path)) and not Path(path).exists()


def _is_file(value: Any) -> bool:
    """Returns whether a value is an open file, whose lines would otherwise be taken for images."""
    return hasattr(value, "read") and not isinstance(value, Image.Image)


def _is_array(value: Any) -> bool:
    # Also tensors of Paddle and PyTorch, but not images of PIL, which NumPy would read without rotating them.
    # A column of a DataFrame has one axis, and a DataFrame has columns.
    is_table = hasattr(value, "columns") or len(getattr(value, "shape", ())) < 2
    return hasattr(value, "__array__") and not is_table and not isinstance(value, Image.Image)


def _paths_of_table(table: Any) -> list[str]:
    """Returns the column of paths of a DataFrame of pandas or Polars."""
    columns = [str(column) for column in table.columns]
    named = [column for column in columns if column.lower() in _PATH_COLUMNS]
    if len(columns) != 1 and len(named) != 1:
        raise UserError(
            f"images: expected a table with one column of paths, such as 'path', got the columns "
            f"{', '.join(columns)}; use table['COLUMN']"
        )
    return [str(path) for path in table[table.columns[columns.index((named or columns)[0])]]]


def read_picture(picture: Any, *, urls: bool = False) -> Any:
    """Returns an image in a form that `Predictor` accepts: the bytes of a file, or RGB pixels uint8.

    Args:
        picture: Path, address, bytes, open file, PIL image, or array; see
            `ppcls.classifier.Classifier.predict`.
        urls: Whether to download images whose address is given.

    Raises:
        UserError: A file can't be read or downloaded.
        ValueError: An array has values out of range.
    """
    if is_url(picture):
        return _download(picture, urls)
    if isinstance(picture, (str, os.PathLike)):
        try:
            return Path(picture).read_bytes()
        except OSError as error:
            raise UserError(f"{picture}: can't read this image: {error.strerror}") from None
    if _is_file(picture):
        content = picture.read()
        if not isinstance(content, bytes):
            raise UserError("images: expected a file that is opened in binary mode, such as open(path, 'rb')")
        return content
    if _is_array(picture):
        picture = _to_uint8(np.asarray(picture))
        if picture.ndim == 3 and picture.shape[2] == 3:
            return picture
        if picture.ndim == 3 and picture.shape[0] in _CHANNELS and picture.shape[2] not in _CHANNELS:
            raise ValueError(
                f"expected pixels of shape [height, width, channels], got {list(picture.shape)}; move the "
                "channels to the last axis: .transpose(1, 2, 0) in NumPy, .permute(1, 2, 0) in PyTorch"
            )
        picture = picture.squeeze(2) if picture.ndim == 3 and picture.shape[2] == 1 else picture
        if picture.ndim == 2 or (picture.ndim == 3 and picture.shape[2] == 4):
            picture = Image.fromarray(picture)
    if isinstance(picture, Image.Image):
        upright = ImageOps.exif_transpose(picture)
        return np.asarray(upright.convert("RGB"))
    return picture


def _to_uint8(pixels: NDArray[Any]) -> NDArray[Any]:
    """Converts floats from 0 to 1 and integers from 0 to 255 to uint8; other arrays are not changed."""
    if pixels.dtype == np.uint8 or not pixels.size or pixels.dtype.kind not in "fiu":
        return pixels
    low = float(pixels.min())
    high = float(pixels.max())
    most = 1 if pixels.dtype.kind == "f" else 255
    if not (low >= 0 and high <= most):  # also for NaN
        hint = (
            "; divide values from 0 to 255 by 255, or convert them with .astype('uint8')" if most == 1 else ""
        )
        raise ValueError(
            f"expected pixels of {pixels.dtype} from 0 to {most}, got values from {low:g} to {high:g}{hint}"
        )
    return np.rint(pixels * np.float64(255 / most)).astype(np.uint8)


def _download(url: str, allowed: bool) -> bytes:
    if not allowed:
        raise UserError(f"{url}: this is an address, not a file; to download it, use urls=True")
    import httpx  # needed only here

    from ppcls.weights.download import TIMEOUT

    content = bytearray()
    end = time.monotonic() + _DOWNLOAD_SECONDS
    try:
        with httpx.stream("GET", url, timeout=TIMEOUT, follow_redirects=True) as response:
            response.raise_for_status()
            for part in response.iter_bytes():
                content += part
                check_size(len(content))
                if time.monotonic() > end:  # httpx only limits the time between two parts
                    raise DecodeError(f"it takes longer than {_DOWNLOAD_SECONDS} s")
    except httpx.HTTPStatusError as error:
        answer = f"{error.response.status_code} {error.response.reason_phrase}".strip()
        raise UserError(f"{url}: can't download this image: the server answered {answer}") from None
    except (httpx.HTTPError, httpx.InvalidURL, DecodeError) as error:
        raise UserError(f"{url}: can't download this image: {error or type(error).__name__}") from None
    return bytes(content)


def label_of(picture: Any, number: int) -> str:
    """Returns the name of an image for display: its path or address, or its position."""
    return str(picture) if isinstance(picture, (str, os.PathLike)) else f"image {number}"
