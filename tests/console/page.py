"""A page of the console, and what went wrong in it."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext, Dialog, Locator, Response, Route

PATIENCE = 60_000
"""Milliseconds within which something must be there."""

AXE = """async () => {
  const found = await axe.run(document, {runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"]});
  return found.violations.filter((one) => ["serious", "critical"].includes(one.impact))
    .map((one) => `${one.id}: ${one.help}: ${one.nodes.slice(0, 3).map((node) => node.html.slice(0, 200) + " " + node.failureSummary.slice(0, 240)).join(" | ")}`);
}"""


class Page:
    """A page in a separate context.

    Args:
        context: of a browser. It is closed with the page.
        url: the URL of the server.

    Attributes:
        expected: patterns of errors in the browser's console that a test causes on purpose.
    """

    def __init__(self, context: BrowserContext, url: str) -> None:
        self.context = context
        self.url = url
        self.expected: list[str] = []
        self.errors: list[str] = []
        self.elsewhere: list[str] = []
        context.set_default_timeout(PATIENCE)
        self.tab = context.new_page()
        self.tab.on("pageerror", lambda error: self.errors.append(f"{error}"))
        self.tab.on(
            "console", lambda message: message.type in ("error", "warning") and self.errors.append(message.text)
        )
        self.tab.on("request", lambda request: self._asked(request.url))
        self.tab.on("dialog", self._on_dialog)
        self.tab.on("response", self._answered)

    def _asked(self, url: str) -> None:
        if not url.startswith((self.url, "data:", "blob:")):
            self.elsewhere.append(url)

    def _answered(self, response: Response) -> None:
        if response.status >= 400:
            self.errors.append(f"{response.status} {response.request.method} {response.url}")

    def _on_dialog(self, dialog: Dialog) -> None:
        self.errors.append(f"the browser asks {dialog.message!r}")
        dialog.dismiss()

    def view(self, path: str, heading: str | None = None) -> Page:
        """Load a view, and wait for its heading and its first data."""
        self.tab.goto(f"{self.url}/console/{path}")
        return self.settled(heading)

    def go(self, path: str, heading: str | None = None) -> Page:
        """Go to a view as a link does, without loading the page again."""
        self.tab.evaluate(
            "(path) => { history.pushState(null, '', new URL(path || './', document.baseURI)); dispatchEvent(new PopStateEvent('popstate')); }",
            path,
        )
        return self.settled(heading)

    def settled(self, heading: str | None = None) -> Page:
        """Wait until the view shows what it loads."""
        self.tab.locator("h1", has_text=heading or "").first.wait_for()
        self.tab.locator(".loading").first.wait_for(state="detached")
        return self

    def alter(self, pattern: str, change: Callable[[Any], None]) -> None:
        """Change the JSON of responses before the page gets them. A 304 has none."""

        def respond(route: Route) -> None:
            response = route.fetch()
            if response.status != 200:
                route.fulfill(response=response)
                return
            body = response.json()
            change(body)
            route.fulfill(response=response, json=body)

        self.tab.route(pattern, respond)

    def until(self, expression: str) -> None:
        """Wait until an expression of JavaScript is true. The policy of the page forbids Playwright's own way, so the
        debugger evaluates it again and again."""
        end = time.monotonic() + PATIENCE / 1000
        while not self.tab.evaluate(expression):
            assert time.monotonic() < end, f"still not true: {expression}"
            self.tab.wait_for_timeout(20)

    def get(self, role: Any, name: str | re.Pattern[str] | None = None, **options: Any) -> Locator:
        """Find an element by its role and its name, as a screen reader does."""
        return self.tab.get_by_role(role, name=name, **options)

    def text(self, text: str | re.Pattern[str]) -> Locator:
        """Find a text."""
        return self.tab.get_by_text(text)

    def see(self, text: str | re.Pattern[str]) -> None:
        """Wait until a text is visible."""
        self.text(text).first.wait_for()

    def click(self, name: str | re.Pattern[str], role: Any = "button", **options: Any) -> None:
        """Press a button, or follow a link."""
        self.get(role, name, **options).first.click()

    def act(self, verb: str | re.Pattern[str]) -> None:
        """Press the button of the open dialog, and wait until it is closed."""
        dialog = self.tab.locator("dialog[open]")
        dialog.get_by_role("button", name=verb).click()
        dialog.wait_for(state="detached")

    def cells(self, row: int = 0) -> list[str]:
        """Return the cells of a row of the first table."""
        return self.tab.locator("tbody tr").nth(row).locator("th, td").all_inner_texts()

    def accessible(self, axe: str) -> list[str]:
        """Return what axe finds that is serious or critical. The policy of the page forbids other scripts, so it is
        evaluated by the debugger."""
        if not self.tab.evaluate("'axe' in window"):
            self.tab.evaluate(axe)
        found: list[str] = self.tab.evaluate(AXE)
        return found

    def overflow(self) -> int:
        """Return the pixels by which the page is wider than its window."""
        return int(self.tab.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth"))

    def close(self) -> None:
        """Close it, once the handlers of its routes have ended. They use what is gone then."""
        self.tab.unroute_all(behavior="wait")
        self.context.close()

    def check(self) -> None:
        """Check that the page had no error, and asked for nothing elsewhere."""
        wrong = [one for one in self.errors if not any(re.search(pattern, one) for pattern in self.expected)]
        assert not wrong, json.dumps(wrong, indent=1)
        assert not self.elsewhere, self.elsewhere
