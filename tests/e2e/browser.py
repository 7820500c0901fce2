"""A real Chromium without a window, which remembers everything that a page complains of and asks for."""

from __future__ import annotations

import contextlib
import shutil

import pytest

WIDE = {"width": 1100, "height": 900}


class Visit:
    """A page that is open, `page`, with what was said and asked for while it was."""

    def __init__(self, page):
        self.page = page
        self.complaints: list[str] = []
        self.asked: list[str] = []
        page.on(
            "console", lambda line: self.complaints.append(line.text) if line.type in ("error", "warning") else None
        )
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("dialog", lambda dialog: (self.complaints.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        page.on("request", lambda request: self.asked.append(request.url))


@contextlib.contextmanager
def browser():
    """Yields a visit of no page yet. Skips the test where this machine has no Chromium or no playwright to drive it."""
    playwright = pytest.importorskip("playwright.sync_api", reason="there is no playwright to drive a browser by")
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("there is no chromium on this machine")
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(
            executable_path=program, args=["--no-sandbox", "--disable-gpu", "--no-proxy-server"]
        )
        try:
            yield Visit(chromium.new_page(viewport=WIDE))
        finally:
            chromium.close()
