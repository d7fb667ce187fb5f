"""A request's body: images, or a refusal that says why; whatever the bytes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress

import httpx
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from starlette.datastructures import Headers

from ppcls.serve.room import BusyError, Room, Share
from ppcls.serve.uploads import Limits, RefusedError, read_images

LIMITS = Limits(max_bytes=4000, max_images=3, timeout=60.0)


def read(headers: dict[str, str], *chunks: bytes, limits: Limits = LIMITS, room: int = 10_000) -> list[bytes]:
    async def body() -> AsyncIterator[bytes]:
        for chunk in chunks:
            yield chunk

    async def run() -> list[bytes]:
        all_bytes = Room(room, "bytes")
        try:
            with Share(all_bytes) as share:
                return await read_images(Headers(headers), body(), limits, share)
        finally:
            assert all_bytes.taken == 0

    return asyncio.run(run())


def form(*files: tuple[str, bytes]) -> tuple[dict[str, str], bytes]:
    request = httpx.Request("POST", "http://x/", files=[("image", file) for file in files])
    return {"content-type": request.headers["content-type"]}, request.read()


def test_a_body_is_an_image() -> None:
    for kind in ("image/jpeg", "IMAGE/PNG", "application/octet-stream", "image/x; a=b"):
        assert read({"content-type": kind}, b"ab", b"", b"c") == [b"abc"]


@settings(max_examples=30)
@given(st.lists(st.binary(max_size=600), min_size=1, max_size=3), st.integers(1, 400))
def test_files_of_a_form_are_images_in_order(images: list[bytes], step: int) -> None:
    headers, body = form(*((f"{at}.jpg", each) for at, each in enumerate(images)))
    chunks = [body[at : at + step] for at in range(0, len(body), step)]
    if images == [b""]:
        with pytest.raises(RefusedError, match="there is no image"):
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
        ({"content-type": "image/png"}, [], 400, "there is no image in the request"),
        ({"content-type": "image/png"}, [b"x" * 4001], 413, "the request is larger than 4000 bytes"),
        ({"content-type": "image/png"}, [b"x" * 3000] * 2, 413, "the request is larger than 4000 bytes"),
        ({"content-type": "image/png", "content-length": "4001"}, [], 413, "the request is larger than"),
        ({"content-type": "image/png", "content-length": "9" * 5000}, [], 413, "the request is larger than"),
        ({"content-type": "multipart/form-data"}, [b"abc"], 400, "the form can't be read: Missing boundary"),
        ({"content-type": "multipart/form-data; boundary=b"}, [b"abc"], 400, "the form can't be read"),
        ({"content-type": "multipart/form-data; boundary=b"}, [b"--b--\r\n"], 400, "there is no image"),
        (
            {"content-type": "multipart/form-data; boundary=b"},
            [b'--b\r\nContent-Disposition: form-data; name="topk"\r\n\r\n3\r\n--b--\r\n'],
            400,
            "there is no image in the request",
        ),
        (
            {"content-type": "multipart/form-data; boundary=b"},
            [b'--b\r\nContent-Disposition: form-data; name="a"; filename="a"\r\n\r\nabc'],
            400,
            "the form can't be read: it ends within an image",
        ),
    ],
)
def test_what_is_refused(headers: dict[str, str], chunks: Sequence[bytes], status: int, reason: str) -> None:
    with pytest.raises(RefusedError) as caught:
        read(headers, *chunks)
    assert caught.value.status == status
    assert reason in caught.value.reason


def test_more_images_than_are_taken() -> None:
    headers, body = form(*((f"{at}.jpg", b"abc") for at in range(4)))
    with pytest.raises(RefusedError, match="more than 3 images, which are the most taken") as caught:
        read(headers, body)
    assert caught.value.status == 413


def test_all_requests_together_have_a_limit() -> None:
    with pytest.raises(BusyError, match="too busy: 60 of at most 100 bytes are in work"):
        read({"content-type": "image/png"}, b"x" * 60, b"x" * 60, room=100)


def test_a_body_that_does_not_come_is_given_up() -> None:
    async def body() -> AsyncIterator[bytes]:
        yield b"x"
        await asyncio.sleep(60)

    async def run() -> None:
        with Share(Room(100, "bytes")) as share:
            limits = Limits(100, 3, timeout=0.05)
            await read_images(Headers({"content-type": "image/png"}), body(), limits, share)

    with pytest.raises(RefusedError, match=r"the body did not arrive within 0\.05 s") as caught:
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
def test_garbage_is_read_or_refused(body: bytes, parameters: str, boundary: str) -> None:
    for kind in (f"multipart/form-data; boundary={boundary}{parameters}", f"image/{parameters}", parameters):
        with suppress(RefusedError):
            assert all(isinstance(each, bytes) for each in read({"content-type": kind}, body))
