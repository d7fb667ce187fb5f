from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, suppress

import httpx
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from starlette.datastructures import Headers

from ppcls.serve.limits import AdmissionLimit, BusyError, RequestError, RequestLimits
from ppcls.serve.uploads import read_images

pytestmark = pytest.mark.hostile

LIMITS = RequestLimits(max_bytes=4000, max_images=3, timeout=60.0)


def read(
    headers: dict[str, str], *chunks: bytes, limits: RequestLimits = LIMITS, capacity: int = 10_000
) -> list[bytes]:
    async def body() -> AsyncIterator[bytes]:
        for chunk in chunks:
            yield chunk

    async def run() -> list[bytes]:
        all_bytes = AdmissionLimit(capacity, "bytes")
        with ExitStack() as held:

            def acquire(count: int) -> None:
                held.enter_context(all_bytes.acquire(count))

            return await read_images(Headers(headers), body(), limits, acquire)

    return asyncio.run(run())


def form(*files: tuple[str, bytes]) -> tuple[dict[str, str], bytes]:
    request = httpx.Request("POST", "http://x/", files=[("image", file) for file in files])
    return {"content-type": request.headers["content-type"]}, request.read()


def test_read_images_body_is_one_image() -> None:
    for kind in ("image/jpeg", "IMAGE/PNG", "application/octet-stream", "image/x; a=b"):
        assert read({"content-type": kind}, b"ab", b"", b"c") == [b"abc"]


@settings(max_examples=30)
@given(st.lists(st.binary(max_size=600), min_size=1, max_size=3), st.integers(1, 400))
def test_read_images_form_has_images_in_order(images: list[bytes], step: int) -> None:
    headers, body = form(*((f"{at}.jpg", each) for at, each in enumerate(images)))
    chunks = [body[at : at + step] for at in range(0, len(body), step)]
    if images == [b""]:
        with pytest.raises(RequestError, match="contains no image"):
            read(headers, *chunks)
    else:
        assert read(headers, *chunks) == images


@pytest.mark.parametrize(
    ("headers", "chunks", "status", "reason"),
    [
        (
            {},
            [b"abc"],
            415,
            "expected Content-Type multipart/form-data, application/octet-stream or image/…, got none",
        ),
        ({"content-type": "text/plain; charset=x"}, [b"abc"], 415, "got 'text/plain'"),
        ({"content-type": "x" * 1000}, [b"abc"], 415, f"got '{'x' * 80}'"),
        ({"content-type": "image/png"}, [], 400, "the request contains no image"),
        (
            {"content-type": "image/png"},
            [b"x" * 4001],
            413,
            "the request is too large: expected at most 4000 bytes",
        ),
        (
            {"content-type": "image/png"},
            [b"x" * 3000] * 2,
            413,
            "the request is too large: expected at most 4000 bytes",
        ),
        ({"content-type": "image/png", "content-length": "4001"}, [], 413, "the request is too large"),
        ({"content-type": "image/png", "content-length": "9" * 5000}, [], 413, "the request is too large"),
        ({"content-type": "multipart/form-data"}, [b"abc"], 400, "invalid form: Missing boundary"),
        ({"content-type": "multipart/form-data; boundary=b"}, [b"abc"], 400, "invalid form"),
        (
            {"content-type": "multipart/form-data; boundary=b"},
            [b"--b--\r\n"],
            400,
            "the request contains no image",
        ),
        (
            {"content-type": "multipart/form-data; boundary=b"},
            [b'--b\r\nContent-Disposition: form-data; name="topk"\r\n\r\n3\r\n--b--\r\n'],
            400,
            "the request contains no image",
        ),
        (
            {"content-type": "multipart/form-data; boundary=b"},
            [b'--b\r\nContent-Disposition: form-data; name="a"; filename="a"\r\n\r\nabc'],
            400,
            "invalid form: it ends within an image",
        ),
        (
            {"content-type": "multipart/form-data; boundary=b"},
            [
                b'--b\r\nContent-Disposition: form-data; name="a"; filename="a"\r\n\r\nabc\r\n'
                b'--b\r\nContent-Disposition: form-data; name="b"; filename="b"\r\n\r\nab'
            ],
            400,
            "invalid form: it ends within an image",
        ),
    ],
)
def test_read_images_rejects_invalid_requests(
    headers: dict[str, str], chunks: Sequence[bytes], status: int, reason: str
) -> None:
    with pytest.raises(RequestError) as caught:
        read(headers, *chunks)
    assert caught.value.status == status
    assert reason in caught.value.reason


def test_read_images_rejects_too_many_images() -> None:
    headers, body = form(*((f"{at}.jpg", b"abc") for at in range(4)))
    with pytest.raises(RequestError, match="the form contains too many images: expected at most 3") as caught:
        read(headers, body)
    assert caught.value.status == 413


def test_read_images_respects_the_limit_of_all_requests() -> None:
    with pytest.raises(BusyError, match="the server is busy: 60 of 100 bytes are in use"):
        read({"content-type": "image/png"}, b"x" * 60, b"x" * 60, capacity=100)


def test_read_images_times_out() -> None:
    async def body() -> AsyncIterator[bytes]:
        yield b"x"
        await asyncio.sleep(60)

    async def run() -> None:
        limits = RequestLimits(100, 3, timeout=0.05)
        await read_images(Headers({"content-type": "image/png"}), body(), limits, lambda count: None)

    with pytest.raises(RequestError, match=r"the body was not received within 0\.05 s") as caught:
        asyncio.run(run())
    assert caught.value.status == 408


@settings(max_examples=150)
@given(
    st.binary(max_size=300),
    st.text(st.characters(codec="latin-1"), max_size=20),
    st.sampled_from(["", "b", "-"]),
)
@example(b"--b\r\nContent-Disposition: x; name=a; filename=\xff\r\n\r\n\r\n--b--", "", "b")
@example(b"--b\r\nContent-Disposition: form-data; name=a; filename=../../x\r\n\r\nq\r\n--b--", "", "b")
def test_read_images_reads_or_rejects_any_bytes(body: bytes, parameters: str, boundary: str) -> None:
    for kind in (f"multipart/form-data; boundary={boundary}{parameters}", f"image/{parameters}", parameters):
        with suppress(RequestError):
            assert all(isinstance(each, bytes) for each in read({"content-type": kind}, body))
