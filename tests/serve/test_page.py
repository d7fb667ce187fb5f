from __future__ import annotations

import base64
import re
from pathlib import Path
from typing import Any

from browser import needs_chromium, opened_server
from running import Running, running
from small_classifier import CLASSES, write_config

DROP = """files => {
  const transfer = new DataTransfer();
  for (const [name, data] of files) {
    const bytes = Uint8Array.from(atob(data), char => char.charCodeAt(0));
    transfer.items.add(new File([bytes], name));
  }
  dispatchEvent(new DragEvent("drop", {dataTransfer: transfer, bubbles: true, cancelable: true}));
}"""


@needs_chromium
def test_page_shows_classes_in_order_and_errors_in_plain_words(server: Running, images: list[bytes]) -> None:
    with opened_server(server, ("/", "/health", "/predict", "/explain")) as page:
        page.locator("#model:not(:empty)").wait_for()
        model = page.locator("#model").inner_text()
        assert model.startswith("WideResNet, 3 classes; images of up to")
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 23, 28)"
        page.locator("#file").set_input_files(
            {"name": "a<b>.png", "mimeType": "image/png", "buffer": images[0]}
        )
        first = page.locator("article").nth(0)
        first.locator(".row").nth(1).wait_for()
        assert first.locator("img").evaluate("image => image.complete && image.naturalWidth") == 48
        names = first.locator(".row span").all_inner_texts()
        scores = [float(text.removesuffix(" %")) for text in first.locator(".row b").all_inner_texts()]
        assert set(names) <= set(CLASSES)
        assert scores == sorted(scores, reverse=True)

        first.locator("button", has_text="Show heat map").click()
        first.locator("img.heat").wait_for()
        assert (
            first.locator("img.heat").evaluate("async image => (await image.decode(), image.naturalWidth)")
            == 32
        )
        assert first.locator("button").count() == 0

        dropped = [("first.png", images[1]), ("none.png", b"no image"), ("last.png", images[2])]
        page.evaluate(DROP, [[name, base64.b64encode(data).decode()] for name, data in dropped])
        page.locator("article").nth(2).locator(".row").nth(1).wait_for()
        titles = page.locator("article > div > .faint").all_inner_texts()
        assert titles == ["first.png", "none.png", "last.png", "a<b>.png"], "new files on top, in order"
        error = page.locator("article").nth(1).locator(".error").inner_text()
        assert error == "This file could not be predicted: not an image that can be decoded."
        assert page.locator("article").nth(1).locator(".blank").inner_text() == "no preview"
        page.set_viewport_size({"width": 390, "height": 800})
        assert page.evaluate("document.documentElement.scrollWidth") == 390, "nothing is cut off on a phone"


HOSTILE = ["\x1b[31m\u202egpj.exe", "<img src=x onerror=document.title='run'>", "\x9b31m&amp;\u2066"]


@needs_chromium
def test_page_shows_hostile_names_as_text(
    tree: dict[str, Any], images: list[bytes], tmp_path: Path, folder: Path
) -> None:
    names = "".join(f"{label} {name}\n" for label, name in enumerate(HOSTILE))
    (tmp_path / "names.txt").write_text(names, encoding="utf-8")
    named = {**tree["Infer"]["PostProcess"], "class_id_map_file": str(tmp_path / "names.txt"), "topk": 3}
    infer = {**tree["Infer"], "PostProcess": named}
    config = write_config(tmp_path / "config.yaml", {**tree, "Infer": infer})
    with running(folder, "-c", config) as server, opened_server(server, ("/", "/health", "/predict")) as page:
        name = f"{HOSTILE[0]}{HOSTILE[1].replace('/', '')}.png"
        page.locator("#file").set_input_files({"name": name, "mimeType": "image/png", "buffer": images[0]})
        page.locator(".row").nth(2).wait_for()
        text = page.locator("main").inner_text()
        assert "\\u001b[31m\\u202egpj.exe" in text
        assert "<img src=x onerror=document.title='run'>" in text
        assert not re.search("[\x1b\x80-\x9f\u202e\u2066]", page.content())
        assert page.locator("main img").count() == 1
        assert page.title() == "Image classification"


@needs_chromium
def test_documentation_lists_the_api_without_loading_anything_from_elsewhere(server: Running) -> None:
    with opened_server(server, ("/", "/health", "/docs", "/openapi.json")) as page:
        page.locator("#model:not(:empty)").wait_for()
        page.locator("a", has_text="API").click()
        page.locator("details").nth(1).wait_for()
        assert "POST /predict" in page.locator("summary code").all_inner_texts()
        page.locator("summary", has_text="POST /predict").click()
        assert page.locator("td", has_text="topk").first.is_visible()
