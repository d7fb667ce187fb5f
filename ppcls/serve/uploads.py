"""A request's body to the bytes of images, within limits. No name that an upload has is used for anything."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass

from starlette.datastructures import Headers, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from ppcls.serve.room import Share

_FORM, _BYTES, _IMAGE = "multipart/form-data", "application/octet-stream", "image/"
_SHOWN = 80  # characters of what a request says


class RefusedError(Exception):
    """A request that is not answered, and why.

    Args:
        status: Of HTTP.
        reason: For who sent it.
        images: Place among the request's images, from 0, to what is wrong with it.
    """

    def __init__(self, status: int, reason: str, images: dict[int, str] | None = None) -> None:
        super().__init__(reason)
        self.status, self.reason, self.images = status, reason, images or {}


@dataclass(frozen=True)
class Limits:
    """What one request may bring.

    Attributes:
        max_bytes: Of its body.
        max_images: In it.
        timeout: Seconds in which the body is to arrive, and then the answer to be there.
    """

    max_bytes: int
    max_images: int
    timeout: float


class _InMemory(MultiPartParser):
    """Keeps files in memory: the body is bounded already."""

    spool_max_size = 1 << 62

    @property
    def begun(self) -> int:
        """Files that have begun; those of them that have ended are in the form."""
        return self._current_files


async def read_images(
    headers: Headers, body: AsyncIterator[bytes], limits: Limits, share: Share
) -> list[bytes]:
    """Reads the images of a request: each file of a form, or the body itself.

    Args:
        headers: Of the request.
        body: As it arrives.
        limits: Of the request.
        share: Of the bytes of all requests.

    Raises:
        RefusedError: It is none of these, or breaks a limit.
        BusyError: There is no room for it.
    """
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in (_FORM, _BYTES) and not kind.startswith(_IMAGE):
        found = f"'{kind[:_SHOWN]}'" if kind else "none"
        raise RefusedError(415, f"expected Content-Type {_FORM}, {_BYTES} or {_IMAGE}…, got {found}")
    declared = headers.get("content-length", "")
    if declared.isascii() and declared.isdecimal():
        _refuse_larger(len(declared) > 18 or int(declared) > limits.max_bytes, limits)
    try:
        data = await asyncio.wait_for(_read(body, limits, share), limits.timeout)
    except asyncio.TimeoutError:
        raise RefusedError(408, f"the body did not arrive within {limits.timeout:g} s") from None
    images = await _files(headers, data, limits) if kind == _FORM else [data]
    if not images or images == [b""]:
        raise RefusedError(400, "there is no image in the request")
    return images


def _refuse_larger(larger: bool, limits: Limits) -> None:
    if larger:
        raise RefusedError(
            413, f"the request is larger than {limits.max_bytes} bytes, which are the most taken"
        )


async def _read(body: AsyncIterator[bytes], limits: Limits, share: Share) -> bytes:
    data = bytearray()
    async for chunk in body:
        _refuse_larger(len(data) + len(chunk) > limits.max_bytes, limits)
        share.take(len(chunk))
        data += chunk
    return bytes(data)


async def _files(headers: Headers, data: bytes, limits: Limits) -> list[bytes]:
    async def whole() -> AsyncGenerator[bytes, None]:
        yield data
        yield b""

    parser = _InMemory(headers, whole(), max_files=limits.max_images, max_fields=limits.max_images)
    try:
        form = await parser.parse()
    except MultiPartException as error:
        many = error.message.startswith("Too many files")
        told = f"more than {limits.max_images} images, which are the most taken" if many else error.message
        raise RefusedError(413 if many else 400, f"the form can't be read: {told}") from None
    except (ValueError, LookupError) as error:  # a charset or a header that is none
        raise RefusedError(400, f"the form can't be read: {error}") from None
    images = [await value.read() for _, value in form.multi_items() if isinstance(value, UploadFile)]
    await form.close()
    if len(images) < parser.begun:
        raise RefusedError(400, "the form can't be read: it ends within an image")
    return images
