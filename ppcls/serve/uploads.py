"""Reads the images of a request, and checks limits. The file names in an upload are not used."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable

import anyio
from starlette.datastructures import Headers, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from ppcls.serve.limits import RequestError, RequestLimits

_FORM = "multipart/form-data"
_BYTES = "application/octet-stream"
_IMAGE = "image/"
_SHOWN = 80  # maximum number of characters of a quoted value


class _InMemoryParser(MultiPartParser):
    """Parser that keeps files in memory, because the size of the body is limited."""

    spool_max_size = 1 << 62
    ends_within_part = False  # Starlette leaves such a part out of the form without an error

    def on_headers_finished(self) -> None:
        """Is called when the headers of a part are complete."""
        super().on_headers_finished()
        self.ends_within_part = True

    def on_part_end(self) -> None:
        """Is called when a part is complete."""
        super().on_part_end()
        self.ends_within_part = False


async def read_images(
    headers: Headers, body: AsyncIterator[bytes], limits: RequestLimits, acquire: Callable[[int], None]
) -> list[bytes]:
    """Returns the encoded images of a request: the files of a form, or the body itself.

    Args:
        headers: Headers of the request.
        body: Chunks of the body.
        limits: Limits of the request.
        acquire: Function that reserves memory for a number of bytes, or raises `BusyError`.

    Raises:
        RequestError: The request contains no images, is invalid, or exceeds a limit.
        BusyError: There is not enough memory for the request.
    """
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in (_FORM, _BYTES) and not kind.startswith(_IMAGE):
        shown = f"'{kind[:_SHOWN]}'" if kind else "none"
        raise RequestError(415, f"expected Content-Type {_FORM}, {_BYTES} or {_IMAGE}…, got {shown}")
    declared = headers.get("content-length", "")
    if declared.isascii() and declared.isdecimal():
        # A number with 19 digits exceeds any limit, and int() is slow for thousands of digits.
        _check_size(limits.max_bytes + 1 if len(declared) > 18 else int(declared), limits)
    try:
        with anyio.fail_after(limits.timeout):
            data = await _read_body(body, limits, acquire)
    except TimeoutError:
        raise RequestError(408, f"the body was not received within {limits.timeout:g} s") from None
    images = await _read_form(headers, data, limits) if kind == _FORM else [data]
    if not images or images == [b""]:
        raise RequestError(400, "the request contains no image")
    return images


def _check_size(size: int, limits: RequestLimits) -> None:
    if size > limits.max_bytes:
        raise RequestError(413, f"the request is too large: expected at most {limits.max_bytes} bytes")


async def _read_body(
    body: AsyncIterator[bytes], limits: RequestLimits, acquire: Callable[[int], None]
) -> bytes:
    data = bytearray()
    async for chunk in body:
        _check_size(len(data) + len(chunk), limits)
        acquire(len(chunk))
        data += chunk
    return bytes(data)


async def _read_form(headers: Headers, data: bytes, limits: RequestLimits) -> list[bytes]:
    async def chunks() -> AsyncGenerator[bytes, None]:
        yield data
        yield b""

    parser = _InMemoryParser(headers, chunks(), max_files=limits.max_images, max_fields=limits.max_images)
    try:
        form = await parser.parse()
    except MultiPartException as error:
        if error.message.startswith("Too many files"):
            reason = f"the form contains too many images: expected at most {limits.max_images}"
            raise RequestError(413, reason) from None
        raise RequestError(400, f"invalid form: {error.message}") from None
    except (ValueError, LookupError) as error:  # an invalid charset or header
        raise RequestError(400, f"invalid form: {error}") from None
    images = [await value.read() for _, value in form.multi_items() if isinstance(value, UploadFile)]
    await form.close()
    if parser.ends_within_part:
        raise RequestError(400, "invalid form: it ends within an image")
    return images
