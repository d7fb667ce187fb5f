"""Opens pages in a headless browser, and checks their console messages and requests."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from playwright.sync_api import Page, sync_playwright
from running import Running

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="no chromium is installed (Debian: chromium)")


@dataclass
class OpenedPage:
    page: Page
    messages: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)


@contextmanager
def opened(path: Path) -> Iterator[OpenedPage]:
    """Opens a file. At the end of the block it must have no console message and no other request."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        found = OpenedPage(browser.new_page(viewport={"width": 1280, "height": 900}))
        found.page.on("console", lambda message: found.messages.append(message.text))
        found.page.on("pageerror", lambda error: found.messages.append(str(error)))
        found.page.on("request", lambda request: found.requests.append(request.url))
        found.page.goto(path.as_uri())
        yield found
        browser.close()
    assert found.messages == []
    assert [each for each in found.requests if not each.startswith("data:")] == [path.as_uri()]


@contextmanager
def opened_server(server: Running, paths: Sequence[str] = ("/", "/health", "/predict")) -> Iterator[Page]:
    """Opens the page of a server. It must have no console message except 422, and request only ``paths``."""
    messages: list[str] = []
    requests: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(color_scheme="dark")
        page.set_default_timeout(120_000)
        page.on("console", lambda message: messages.append(message.text))
        page.on("pageerror", lambda error: messages.append(str(error)))
        page.on("request", lambda request: requests.append(request.url))
        page.goto(server.address)
        yield page
        browser.close()
    assert [message for message in messages if "422" not in message] == []
    asked = {url.partition("?")[0] for url in requests if not url.startswith(("data:", "blob:"))}
    assert asked == {f"{server.address}{path}" for path in paths}
