"""A browser tab that fails the test for whatever a reader would not want to see."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, ConsoleMessage, Page, Request, Response, ViewportSize

_AXE = Axe()
_WATCH_POLICY = """
window.refusedByPolicy = [];
document.addEventListener("securitypolicyviolation", (e) => window.refusedByPolicy.push(e.violatedDirective));
"""


class Tab:
    """One page of a browser. ``expected`` are statuses of answers that are right to be no success."""

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.url = url
        self.faults: list[str] = []
        self.expected: set[int] = set()
        page.on("console", self._on_console)
        page.on("pageerror", lambda error: self.faults.append(f"script: {error}"))
        page.on("dialog", lambda dialog: self.faults.append(f"dialog: {dialog.message}"))
        page.on("requestfailed", self._on_failed)
        page.on("response", self._on_response)
        page.add_init_script(_WATCH_POLICY)

    def open(self, address: str) -> None:
        """Go to a page of the console, and look whether it is in order."""
        self.page.goto(self.url + address)
        self.check()

    def check(self) -> None:
        """No fault so far, nothing refused by the policy, a title, one heading, no sideways scrolling."""
        page = self.page
        assert page.title().endswith("Headrace")
        assert page.locator("h1").count() == 1, page.content()
        assert page.evaluate("window.refusedByPolicy") == []
        width = page.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")
        assert width[0] <= width[1], (page.url, width)
        assert self.faults == [], (page.url, self.faults)

    def check_for_everybody(self) -> None:
        """What axe-core finds wrong for readers with a disability: nothing."""
        results = _AXE.run(self.page)
        assert results.violations_count == 0, f"{self.page.url}\n{results.generate_report()}"

    def log_in(self, token: str) -> None:
        self.page.goto(self.url + "login")
        self.page.get_by_label("Token").fill(token)
        self.page.get_by_role("button", name="Log in").click()
        self.page.wait_for_url(lambda url: not url.endswith("login"))
        self.check()

    def press(self, name: str) -> None:
        """Press a button of the page, outside of forms that are folded."""
        self.page.get_by_role("button", name=name, exact=True).locator("visible=true").first.click()

    def fill_in(self, name: str, **fields: str) -> None:
        """Unfold the form of an action, fill it in by its labels, and send it."""
        form = self.page.locator("details.act").filter(has=self.page.locator("summary", has_text=name)).first
        form.locator("summary").click()
        for label, text in fields.items():
            field = form.get_by_label(label.replace("_", " "))
            if field.evaluate("e => e.tagName") == "SELECT":
                field.select_option(text)
            else:
                field.fill(text)
        form.get_by_role("button").click()

    def confirm(self) -> None:
        """Say yes in the dialog."""
        self.page.locator("dialog").get_by_role("button", name="Yes").click()

    def told(self, text: str) -> None:
        """Wait until the page says so."""
        self.page.get_by_text(text).first.wait_for()
        self.check()

    # -- faults -----------------------------------------------------------------------------

    def _on_console(self, message: ConsoleMessage) -> None:
        is_expected = any(f"status of {status}" in message.text for status in self.expected)
        if message.type in ("error", "warning") and not is_expected:
            self.faults.append(f"console: {message.text}")

    def _on_failed(self, request: Request) -> None:
        # A page that is left ends what it was still getting.
        if "live" not in request.url and request.failure != "net::ERR_ABORTED":
            self.faults.append(f"failed: {request.url} {request.failure}")

    def _on_response(self, response: Response) -> None:
        if response.status >= 400 and response.status not in self.expected:
            self.faults.append(f"{response.status}: {response.url}")


@contextmanager
def open_tab(
    browser: Browser,
    url: str,
    *,
    scheme: Literal["light", "dark"] = "light",
    phone: bool = False,
    script: bool = True,
) -> Iterator[Tab]:
    """A tab with cookies of its own."""
    size: ViewportSize = {"width": 390, "height": 844} if phone else {"width": 1280, "height": 900}
    context = browser.new_context(
        viewport=size,
        color_scheme=scheme,
        java_script_enabled=script,
    )
    context.set_default_timeout(60_000)
    try:
        yield Tab(context.new_page(), url)
    finally:
        context.close()
