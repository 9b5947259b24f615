"""A visitor of the console of a real node with a real browser. Records what goes wrong."""

from __future__ import annotations

import re
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Locator, Page, Request, expect

from tests.nodes import ServeProcess

# Screenshots of the pages, for people to look at.
ARTIFACTS = Path(__file__).parents[4] / "artifacts" / "console"

# Timeout for elements to appear and pages to load: a machine may be slow.
LOOK_MS = 60_000

DESK = {"width": 1400, "height": 900}
PHONE = {"width": 390, "height": 844}
PHONE_OPTIONS: dict[str, Any] = {"viewport": PHONE, "has_touch": True, "is_mobile": True}


class Visitor:
    """A browser window of its own, with its own session."""

    def __init__(self, browser: Browser, node: ServeProcess, **options: Any) -> None:
        self.base = f"http://{node.address('http')}"
        self.context: BrowserContext = browser.new_context(**{"viewport": DESK, "locale": "en-GB", **options})
        self.context.set_default_timeout(LOOK_MS)
        self.page: Page = self.context.new_page()
        # Errors and warnings of the browser, and its requests to other hosts than the node.
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("console", self._note)
        self.page.on("request", self._note_request)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.context.close()

    def _note(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(message.text)

    def _note_request(self, request: Request) -> None:
        self.requests.append(request.url)
        if not request.url.startswith((self.base, "data:", "blob:")):
            self.complaints.append(f"asked for {request.url}")

    @property
    def own_complaints(self) -> list[str]:
        """Complaints without those about an answer that the test wants."""
        return [text for text in self.complaints if not text.startswith("Failed to load resource")]

    @property
    def main(self) -> Locator:
        return self.page.get_by_role("main")

    def begin(self) -> Self:
        """Forget what other tests have done here: their page, their question, their notes, their complaints."""
        self.page.goto(f"{self.base}/#/nowhere")
        expect(self.page.get_by_role("heading", level=1, name="Page not found")).to_be_visible()
        self.page.evaluate("() => document.querySelectorAll('.toast button').forEach((button) => button.click())")
        self.page.mouse.move(0, 0)
        self.complaints.clear()
        self.requests.clear()
        return self

    def log_in(self, name: str = "guest", password: str = "guest") -> Self:
        """Go to the console and enter it."""
        self.page.goto(self.base)
        self.fill_log_in(name, password)
        expect(self.page.get_by_role("navigation", name="Pages")).to_be_attached()
        return self

    def fill_log_in(self, name: str, password: str) -> None:
        self.page.get_by_label("User").fill(name)
        self.page.get_by_label("Password").fill(password)
        self.page.get_by_role("button", name="Log in").click()

    def open(self, place: str, heading: str | re.Pattern[str]) -> Self:
        """Go to a page and wait until it is there."""
        self.page.goto(f"{self.base}/#{place}")
        expect(self.page.get_by_role("heading", level=1, name=heading)).to_be_visible()
        return self

    def button(self, name: str) -> Locator:
        return self.main.get_by_role("button", name=name, exact=True)

    def card(self, heading: str) -> Locator:
        """The part of the page with this heading."""
        found = self.page.get_by_role("heading", name=heading, exact=True)
        return self.page.locator("section.card").filter(has=found)

    def tile(self, label: str) -> Locator:
        return self.page.locator("li.tile").filter(has_text=label).locator(".value")

    def row(self, text: str) -> Locator:
        return self.main.get_by_role("row").filter(has_text=text)

    def toast(self, text: str) -> Locator:
        return self.page.locator(".toast").filter(has_text=text)

    @property
    def dialog(self) -> Locator:
        return self.page.get_by_role("dialog")

    def keep_picture(self, name: str) -> None:
        """Show all of the page and take a picture of it."""
        ARTIFACTS.mkdir(parents=True, exist_ok=True)
        before = self.page.viewport_size
        assert before is not None
        height = self.page.evaluate("document.documentElement.scrollHeight")
        self.page.set_viewport_size({"width": before["width"], "height": max(height, before["height"])})
        # What comes into view is drawn in the next frame.
        self.page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        self.page.screenshot(path=ARTIFACTS / f"{name}.png")
        self.page.set_viewport_size(before)

    def width(self) -> int:
        found: int = self.page.evaluate("document.documentElement.scrollWidth")
        return found
