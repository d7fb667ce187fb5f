"""The page in a browser: pictures are chosen or dropped, and their classes come."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from contextlib import contextmanager

from browser import CHROMIUM, needs_chromium
from playwright.sync_api import Page, sync_playwright
from running import Running
from small_classifier import CLASSES

DROP = """([name, data]) => {
  const bytes = Uint8Array.from(atob(data), each => each.charCodeAt(0));
  const transfer = new DataTransfer();
  transfer.items.add(new File([bytes], name));
  dispatchEvent(new DragEvent("drop", {dataTransfer: transfer, bubbles: true, cancelable: true}));
}"""


@contextmanager
def opened(server: Running) -> Iterator[Page]:
    """Opens the page, which must complain of nothing but refused pictures, and ask nobody else."""
    complaints: list[str] = []
    asked: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page()
        page.set_default_timeout(120_000)
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(server.address)
        yield page
        browser.close()
    assert [each for each in complaints if "422" not in each] == []
    assert {each for each in asked if not each.startswith(("data:", "blob:"))} == {
        f"{server.address}{path}" for path in ("/", "/health", "/predict")
    }


@needs_chromium
def test_pictures_and_their_classes(server: Running, images: list[bytes]) -> None:
    with opened(server) as page:
        page.wait_for_function("document.getElementById('model').textContent")
        assert (
            page.locator("#model").inner_text().startswith("MobileNetV3_small_x0_35, 3 classes; pictures of")
        )
        page.locator("#file").set_input_files(
            {"name": "a<b>.png", "mimeType": "image/png", "buffer": images[0]}
        )
        first = page.locator("article").nth(0)
        first.locator(".row").nth(1).wait_for()
        assert first.locator("img").evaluate("each => each.complete && each.naturalWidth") == 48
        names = first.locator(".row span").all_inner_texts()
        scores = [float(each.removesuffix(" %")) for each in first.locator(".row b").all_inner_texts()]
        assert set(names) <= set(CLASSES)
        assert scores == sorted(scores, reverse=True)
        assert first.locator(".faint").inner_text() == "a<b>.png"

        page.evaluate(DROP, ["dropped.png", base64.b64encode(images[1]).decode()])
        page.locator("article").nth(0).locator(".row").nth(1).wait_for()
        assert page.locator("article").nth(0).locator(".faint").inner_text() == "dropped.png"

        page.evaluate(DROP, ["none.png", base64.b64encode(b"no image").decode()])
        refused = page.locator("article").nth(0).locator(".error")
        refused.wait_for()
        assert refused.inner_text() == "422: not an image that can be decoded"
        assert page.locator("article").count() == 3
